//! `salectl sale …`: a sale's life.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashsale_domain::{NewSale, Price, SaleId, Window};
use flashsale_operations::SaleView;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{ACTOR, edit};
use crate::Verdict;
use crate::cli::{CreateArgs, SaleArgs, SaleCommand, StockArgs};
use crate::failure::Failure;
use crate::output::{Output, columns, fields};
use crate::remote::Access;
use crate::when::{now_ms, rfc3339};

/// `{"sales":[…]}`, each as [`SaleView`] has it.
#[derive(Debug, Serialize, Deserialize)]
struct Sales {
    sales: Vec<SaleView>,
}

/// Carries out one of the commands.
pub(crate) async fn run(
    command: SaleCommand,
    access: &Access<'_>,
    output: Output,
) -> Result<Verdict, Failure> {
    match command {
        SaleCommand::Create(args) => {
            // A wrong argument needs no database to be wrong.
            let shown = create(&new_sale(args)?, access).await?;
            output.print(&shown, || shown.sale_id.to_string())?;
        }
        SaleCommand::List => {
            let shown: Sales = match access {
                Access::Gateway(remote) => remote.get("sales", &[]).await?,
                Access::Stores(settings) => {
                    let sales = super::operations(settings).await?.list_sales().await?;
                    Sales { sales: sales.into_iter().map(SaleView::from).collect() }
                }
            };
            output.print(&shown, || list(&shown.sales))?;
        }
        SaleCommand::Show(SaleArgs { sale }) => {
            let shown: SaleView = match access {
                Access::Gateway(remote) => remote.get(format!("sales/{sale}"), &[]).await?,
                Access::Stores(settings) => {
                    super::operations(settings).await?.get_sale(sale).await?.into()
                }
            };
            output.print(&shown, || describe(&shown))?;
        }
        SaleCommand::Edit(args) => {
            let shown = edit::edit(args, access).await?;
            output.print(&shown, || describe(&shown))?;
        }
        SaleCommand::Publish(args) => step(args.sale, Step::Publish, access, output).await?,
        SaleCommand::Pause(args) => step(args.sale, Step::Pause, access, output).await?,
        SaleCommand::Resume(args) => step(args.sale, Step::Resume, access, output).await?,
        SaleCommand::Close(args) => step(args.sale, Step::Close, access, output).await?,
        SaleCommand::Stock(args) => {
            let shown = adjust(args, access).await?;
            output.print(&shown, || {
                let (id, left, total) = (shown.sale_id, shown.stock_left, shown.stock_total);
                format!("sale {id} has {total} units, {left} left (in the database)")
            })?;
        }
    }
    Ok(Verdict::Good)
}

async fn create(new: &NewSale, access: &Access<'_>) -> Result<SaleView, Failure> {
    match access {
        Access::Stores(settings) => {
            Ok(super::operations(settings).await?.by(ACTOR).create_sale(new).await?.into())
        }
        Access::Gateway(remote) => {
            let body = json!({
                "title": new.title, "mode": new.mode, "stock": new.stock,
                "opens_at": rfc3339(new.window.opens_ms()),
                "closes_at": rfc3339(new.window.closes_ms()),
                "per_buyer": new.per_buyer, "price": new.price,
                "payment_window_s": new.payment_window_s, "late_payment": new.late_payment,
            });
            remote.post("sales", &body).await
        }
    }
}

/// A sale's step to another state.
#[derive(Debug, Clone, Copy)]
enum Step {
    Publish,
    Pause,
    Resume,
    Close,
}

async fn step(
    sale: SaleId,
    step: Step,
    access: &Access<'_>,
    output: Output,
) -> Result<(), Failure> {
    let shown: SaleView = match access {
        Access::Stores(settings) => {
            let operations = super::operations(settings).await?;
            let operator = operations.by(ACTOR);
            let moved = match step {
                Step::Publish => operator.publish_sale(sale).await,
                Step::Pause => operator.pause_sale(sale).await,
                Step::Resume => operator.resume_sale(sale).await,
                Step::Close => operator.close_sale(sale).await,
            };
            moved?.into()
        }
        Access::Gateway(remote) => {
            let name = match step {
                Step::Publish => "publish",
                Step::Pause => "pause",
                Step::Resume => "resume",
                Step::Close => "close",
            };
            remote.post(format!("sales/{sale}/{name}"), &json!({})).await?
        }
    };
    output.print(&shown, || format!("sale {} is {}", shown.sale_id, shown.state))
}

async fn adjust(args: StockArgs, access: &Access<'_>) -> Result<SaleView, Failure> {
    let StockArgs { sale, delta, reason, key } = args;
    match access {
        Access::Stores(settings) => {
            let operations = super::operations(settings).await?;
            let adjusting = operations.adjust_stock_once(ACTOR, sale, delta, &reason, key.as_ref());
            Ok(adjusting.await?.into())
        }
        Access::Gateway(remote) => {
            let key = key.map_or_else(new_key, |key| key.as_str().to_owned());
            let body = json!({ "delta": delta, "reason": reason });
            remote.post_once(format!("sales/{sale}/stock"), &key, &body).await
        }
    }
}

/// A key that no other call takes.
fn new_key() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("salectl-{}-{}", since.as_nanos(), std::process::id())
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
