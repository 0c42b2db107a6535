//! `salectl sale …`: a sale's life.

use std::time::Duration;

use flashsale_bootstrap::Settings;
use flashsale_domain::{LatePayment, NewSale, Price, Sale, SaleId, SaleMode, SaleState, Window};
use flashsale_operations::{OperationError, Refused};
use serde::Serialize;

use super::ACTOR;
use crate::Verdict;
use crate::cli::{CreateArgs, SaleArgs, SaleCommand, StockArgs};
use crate::failure::Failure;
use crate::output::{Output, columns, fields};
use crate::when::{now_ms, rfc3339};

/// A sale, as every command that gives one prints it:
///
/// ```json
/// {"sale_id":"1","title":"Voucher","mode":"queued","state":"published",
///  "stock_total":1000,"stock_left":1000,
///  "opens_at":"2026-11-11T00:00:00.000Z","closes_at":"2026-11-11T01:00:00.000Z",
///  "per_buyer":1,"price":{"amount":9900,"currency":"CNY"},"payment_window_s":900,
///  "late_payment":"reacquire","partition":0,"epoch":0}
/// ```
/// `stock_left` is the database's: what is still queued is not off it yet. `partition` is null until
/// a queued sale is published. `sale list` prints `{"sales":[…]}`.
#[derive(Debug, Serialize)]
struct SaleView<'a> {
    sale_id: SaleId,
    title: &'a str,
    mode: SaleMode,
    state: SaleState,
    stock_total: i64,
    stock_left: i64,
    opens_at: String,
    closes_at: String,
    per_buyer: u16,
    price: Price,
    payment_window_s: i64,
    late_payment: LatePayment,
    partition: Option<u16>,
    epoch: i64,
}

impl<'a> From<&'a Sale> for SaleView<'a> {
    fn from(sale: &'a Sale) -> Self {
        Self {
            sale_id: sale.id,
            title: &sale.title,
            mode: sale.mode,
            state: sale.state,
            stock_total: sale.stock_total,
            stock_left: sale.stock_left,
            opens_at: rfc3339(sale.window.opens_ms()),
            closes_at: rfc3339(sale.window.closes_ms()),
            per_buyer: sale.per_buyer,
            price: sale.price,
            payment_window_s: sale.payment_window_s,
            late_payment: sale.late_payment,
            partition: sale.partition.map(|partition| partition.number()),
            epoch: sale.epoch,
        }
    }
}

#[derive(Debug, Serialize)]
struct Sales<'a> {
    sales: Vec<SaleView<'a>>,
}

/// Carries out one of the commands.
pub(crate) async fn run(
    command: SaleCommand,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    match command {
        SaleCommand::Create(args) => {
            // A wrong argument needs no database to be wrong.
            let new_sale = new_sale(args)?;
            let operations = super::operations(settings).await?;
            let sale = operations.create_sale(&new_sale).await?;
            output.print(&SaleView::from(&sale), || sale.id.to_string())?;
        }
        SaleCommand::List => {
            let sales = super::operations(settings).await?.list_sales().await?;
            let shown = Sales { sales: sales.iter().map(SaleView::from).collect() };
            output.print(&shown, || list(&shown.sales))?;
        }
        SaleCommand::Show(SaleArgs { sale }) => {
            let sale = super::operations(settings).await?.get_sale(sale).await?;
            let shown = SaleView::from(&sale);
            output.print(&shown, || describe(&shown))?;
        }
        SaleCommand::Publish(SaleArgs { sale }) => {
            let moved = super::operations(settings).await?.publish_sale(sale).await;
            show_moved(moved, Move::Publish, output)?;
        }
        SaleCommand::Pause(SaleArgs { sale }) => {
            let moved = super::operations(settings).await?.pause_sale(sale).await;
            show_moved(moved, Move::Pause, output)?;
        }
        SaleCommand::Resume(SaleArgs { sale }) => {
            let moved = super::operations(settings).await?.resume_sale(sale).await;
            show_moved(moved, Move::Resume, output)?;
        }
        SaleCommand::Close(SaleArgs { sale }) => {
            let moved = super::operations(settings).await?.close_sale(sale).await;
            show_moved(moved, Move::Close, output)?;
        }
        SaleCommand::Stock(StockArgs { sale, delta, reason }) => {
            let operations = super::operations(settings).await?;
            let sale = operations.adjust_stock(ACTOR, sale, delta, &reason).await?;
            let shown = SaleView::from(&sale);
            output.print(&shown, || {
                let (id, left, total) = (shown.sale_id, shown.stock_left, shown.stock_total);
                format!("sale {id} has {total} units, {left} left (in the database)")
            })?;
        }
    }
    Ok(Verdict::Good)
}

fn new_sale(args: CreateArgs) -> Result<NewSale, Failure> {
    let now = now_ms();
    let window = Window::new(args.opens.resolve(now), args.closes.resolve(now));
    let sale = NewSale {
        title: args.title,
        mode: args.mode,
        stock: args.stock,
        window: window.map_err(|error| Failure::usage(error.to_string()))?,
        per_buyer: args.per_buyer,
        price: Price { amount: args.price, currency: args.currency },
        payment_window_s: i64::try_from(args.payment_window.as_secs()).unwrap_or(i64::MAX),
        late_payment: args.late_payment,
    };
    sale.validate().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(sale)
}

/// What was asked for; the same state may be reached by two commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Publish,
    Pause,
    Resume,
    Close,
}

fn show_moved(
    moved: Result<Sale, OperationError>,
    asked: Move,
    output: Output,
) -> Result<(), Failure> {
    let sale = match moved {
        Ok(sale) => sale,
        Err(OperationError::Refused(Refused::State { sale, state, .. })) => {
            return Err(Failure::refused(why_not(asked, sale, state)));
        }
        Err(error) => return Err(error.into()),
    };
    output.print(&SaleView::from(&sale), || format!("sale {} is {}", sale.id, sale.state))
}

/// Why a sale in `state` cannot be moved so, and what can be done.
fn why_not(asked: Move, sale: SaleId, state: SaleState) -> String {
    match (asked, state) {
        (_, SaleState::Closed) => format!("sale {sale} is closed, and stays so"),
        (Move::Publish, SaleState::Paused) => {
            format!("sale {sale} is paused: `salectl sale resume {sale}` puts it on sale again")
        }
        (Move::Resume, _) => {
            format!("sale {sale} is {state}: only a paused sale can be resumed")
        }
        (Move::Pause, _) => format!("sale {sale} is {state}: only a published sale can be paused"),
        (Move::Close, _) => {
            format!("sale {sale} is {state}: only a published or paused sale can be closed")
        }
        (Move::Publish, _) => {
            format!("sale {sale} is {state}: only a draft can be published")
        }
    }
}

fn list(sales: &[SaleView<'_>]) -> String {
    if sales.is_empty() {
        return "there is no sale; `salectl sale create` makes one".to_owned();
    }
    let mut rows =
        vec![["id", "state", "left", "opens", "closes", "title"].map(str::to_owned).to_vec()];
    rows.extend(sales.iter().map(|sale| {
        vec![
            sale.sale_id.to_string(),
            sale.state.to_string(),
            format!("{}/{}", sale.stock_left, sale.stock_total),
            sale.opens_at.clone(),
            sale.closes_at.clone(),
            sale.title.to_owned(),
        ]
    }));
    columns(&rows)
}

fn describe(sale: &SaleView<'_>) -> String {
    let payment_window = Duration::from_secs(u64::try_from(sale.payment_window_s).unwrap_or(0));
    fields([
        ("sale", sale.sale_id.to_string()),
        ("title", sale.title.to_owned()),
        ("state", sale.state.to_string()),
        ("mode", sale.mode.to_string()),
        ("stock", format!("{} left of {} (in the database)", sale.stock_left, sale.stock_total)),
        ("opens", sale.opens_at.clone()),
        ("closes", sale.closes_at.clone()),
        ("per buyer", sale.per_buyer.to_string()),
        ("price", format!("{} {} (minor units)", sale.price.amount, sale.price.currency)),
        ("to pay within", humantime::format_duration(payment_window).to_string()),
        ("late payments", sale.late_payment.to_string()),
        (
            "partition",
            match sale.partition {
                Some(partition) => format!("{partition}, epoch {}", sale.epoch),
                None => "none".to_owned(),
            },
        ),
    ])
}
