//! `salectl sale …`: a sale's life.

use std::time::Duration;

use flashsale_bootstrap::Settings;
use flashsale_domain::{NewSale, Price, Sale, Window};
use flashsale_operations::SaleView;
use serde::Serialize;

use super::ACTOR;
use crate::Verdict;
use crate::cli::{CreateArgs, SaleArgs, SaleCommand, StockArgs};
use crate::failure::Failure;
use crate::output::{Output, columns, fields};
use crate::when::now_ms;

/// `{"sales":[…]}`, each as [`SaleView`] has it.
#[derive(Debug, Serialize)]
struct Sales {
    sales: Vec<SaleView>,
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
            let shown = SaleView::from(operations.by(ACTOR).create_sale(&new_sale).await?);
            output.print(&shown, || shown.sale_id.to_string())?;
        }
        SaleCommand::List => {
            let sales = super::operations(settings).await?.list_sales().await?;
            let shown = Sales { sales: sales.into_iter().map(SaleView::from).collect() };
            output.print(&shown, || list(&shown.sales))?;
        }
        SaleCommand::Show(SaleArgs { sale }) => {
            let sale = super::operations(settings).await?.get_sale(sale).await?;
            let shown = SaleView::from(sale);
            output.print(&shown, || describe(&shown))?;
        }
        SaleCommand::Publish(SaleArgs { sale }) => {
            let operations = super::operations(settings).await?;
            show_moved(operations.by(ACTOR).publish_sale(sale).await?, output)?;
        }
        SaleCommand::Pause(SaleArgs { sale }) => {
            let operations = super::operations(settings).await?;
            show_moved(operations.by(ACTOR).pause_sale(sale).await?, output)?;
        }
        SaleCommand::Resume(SaleArgs { sale }) => {
            let operations = super::operations(settings).await?;
            show_moved(operations.by(ACTOR).resume_sale(sale).await?, output)?;
        }
        SaleCommand::Close(SaleArgs { sale }) => {
            let operations = super::operations(settings).await?;
            show_moved(operations.by(ACTOR).close_sale(sale).await?, output)?;
        }
        SaleCommand::Stock(StockArgs { sale, delta, reason }) => {
            let operations = super::operations(settings).await?;
            let sale = operations.adjust_stock(ACTOR, sale, delta, &reason).await?;
            let shown = SaleView::from(sale);
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

fn show_moved(sale: Sale, output: Output) -> Result<(), Failure> {
    let shown = SaleView::from(sale);
    output.print(&shown, || format!("sale {} is {}", shown.sale_id, shown.state))
}

fn list(sales: &[SaleView]) -> String {
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
            sale.title.clone(),
        ]
    }));
    columns(&rows)
}

fn describe(sale: &SaleView) -> String {
    let payment_window = Duration::from_secs(u64::try_from(sale.payment_window_s).unwrap_or(0));
    fields([
        ("sale", sale.sale_id.to_string()),
        ("title", sale.title.clone()),
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
