//! `salectl refunds …`: money that has to go back.

use flashsale_bootstrap::Settings;
use flashsale_domain::{OrderId, PaymentOutcome, Price};
use flashsale_storage_sql::StoredPayment;
use serde::Serialize;

use super::ACTOR;
use crate::Verdict;
use crate::cli::RefundsCommand;
use crate::failure::Failure;
use crate::output::{Output, columns};
use crate::when::rfc3339;

/// ```json
/// {"refunds":[{"payment_id":"7","order_id":"...","price":{"amount":9900,"currency":"CNY"},
///   "outcome":"refund_due","webhook_id":"msg_1","received_at":"2026-11-11T00:00:00.000Z"}]}
/// ```
/// `outcome` is `refund_due` or `mismatch`, which is money that is not what the order costs.
#[derive(Serialize)]
struct Refunds {
    refunds: Vec<Refund>,
}

#[derive(Serialize)]
struct Refund {
    payment_id: String,
    order_id: OrderId,
    price: Price,
    outcome: PaymentOutcome,
    webhook_id: String,
    received_at: String,
}

/// `{"payment_id":"7","refunded":true}`
#[derive(Serialize)]
struct Done {
    payment_id: String,
    refunded: bool,
}

impl From<StoredPayment> for Refund {
    fn from(payment: StoredPayment) -> Self {
        Self {
            payment_id: payment.id.to_string(),
            order_id: payment.order_id,
            price: payment.price,
            outcome: payment.outcome,
            webhook_id: payment.webhook_id,
            received_at: rfc3339(payment.received_ms),
        }
    }
}

/// Carries out one of the commands.
pub(crate) async fn run(
    command: RefundsCommand,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    let operations = super::operations(settings).await?;
    match command {
        RefundsCommand::List { limit } => {
            let due = operations.list_refunds_due(limit).await?;
            let shown = Refunds { refunds: due.into_iter().map(Refund::from).collect() };
            output.print(&shown, || list_text(&shown.refunds))?;
        }
        RefundsCommand::Done { payment } => {
            operations.mark_refunded(ACTOR, payment).await?;
            let done = Done { payment_id: payment.to_string(), refunded: true };
            output.print(&done, || format!("payment {payment} went back"))?;
        }
    }
    Ok(Verdict::Good)
}

fn list_text(refunds: &[Refund]) -> String {
    if refunds.is_empty() {
        return "no money is due back".to_owned();
    }
    let head = ["payment", "order", "amount", "why", "since", "message"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(refunds.iter().map(|refund| {
        vec![
            refund.payment_id.clone(),
            refund.order_id.to_string(),
            format!("{} {}", refund.price.amount, refund.price.currency),
            refund.outcome.to_string(),
            refund.received_at.clone(),
            refund.webhook_id.clone(),
        ]
    }));
    columns(&rows)
}
