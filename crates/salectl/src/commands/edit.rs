//! `salectl sale edit`.

use flashsale_domain::{Price, Window};
use flashsale_operations::SaleView;
use flashsale_storage_sql::SaleEdit;
use serde_json::{Value, json};

use super::ACTOR;
use crate::cli::EditArgs;
use crate::failure::Failure;
use crate::remote::Access;
use crate::when::{now_ms, rfc3339};

/// Changes a sale's description; the sale as it is now.
pub(crate) async fn edit(args: EditArgs, access: &Access<'_>) -> Result<SaleView, Failure> {
    let EditArgs { sale, title, opens, closes, per_buyer, price, currency, .. } = args;
    let now = now_ms();
    let (opens_ms, closes_ms) =
        (opens.map(|when| when.resolve(now)), closes.map(|when| when.resolve(now)));
    let price = price.zip(currency).map(|(amount, currency)| Price { amount, currency });
    let window_s =
        |window: std::time::Duration| i64::try_from(window.as_secs()).unwrap_or(i64::MAX);
    let payment_window_s = args.payment_window.map(window_s);
    let late_payment = args.late_payment;
    match access {
        Access::Stores(settings) => {
            let operations = super::operations(settings).await?;
            let window = if opens_ms.is_some() || closes_ms.is_some() {
                let window = operations.get_sale(sale).await?.window;
                let opens_ms = opens_ms.unwrap_or(window.opens_ms());
                let window = Window::new(opens_ms, closes_ms.unwrap_or(window.closes_ms()));
                Some(window.map_err(|error| Failure::refused(error.to_string()))?)
            } else {
                None
            };
            let edit = SaleEdit { title, window, per_buyer, price, payment_window_s, late_payment };
            Ok(operations.by(ACTOR).edit_sale(sale, &edit).await?.into())
        }
        Access::Gateway(remote) => {
            let fields = [
                ("title", json!(title)),
                ("opens_at", json!(opens_ms.map(rfc3339))),
                ("closes_at", json!(closes_ms.map(rfc3339))),
                ("per_buyer", json!(per_buyer)),
                ("price", json!(price)),
                ("payment_window_s", json!(payment_window_s)),
                ("late_payment", json!(late_payment)),
            ];
            let named = fields.into_iter().filter(|(_, value)| !value.is_null());
            let body: Value = named.map(|(name, value)| (name.to_owned(), value)).collect();
            remote.patch(format!("sales/{sale}"), &body).await
        }
    }
}
