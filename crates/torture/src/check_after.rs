//! What must be true when the orders of a round have been paid for, given up, or have run out of time:
//! each ended as its buyer was told, each unit came back once, no payment is lost, and whose order is
//! over may buy again.

use std::collections::{BTreeMap, HashMap};

use flashsale_domain::{LatePayment, OrderId, OrderState, SaleId};
use flashsale_operations::Receipt;
use flashsale_storage_sql::StoredOrder;
use flashsale_test_support::try_eventually;

use crate::after::{Ended, Wish};
use crate::check::Found;
use crate::deployment::{Deployment, SOON};
use crate::plan::After;

/// So many whose order is over buy again, and so many who hold one try to.
const AGAIN_MAX: usize = 5;

impl Deployment {
    /// Judges what became of the orders; their buyers' payments are reported once more, too.
    pub(crate) async fn check_ended(
        &self,
        found: &mut Found,
        after: &After,
        sale: i64,
        rows: &HashMap<OrderId, StoredOrder>,
        ended: &[Ended],
    ) -> anyhow::Result<()> {
        found.ended = ended.len();
        let (mut wrong, mut others) = (Vec::new(), Vec::new());
        for told in ended {
            wrong.extend(told.wrong.iter().cloned());
            let row = rows.get(&told.order).filter(|row| row.order.user_id == told.user);
            let state = row.map(|row| row.order.state);
            if told.wrong.is_empty() && !state.is_some_and(|state| is_as_told(state, told, after)) {
                others.push(format!("{told:?} is {state:?}"));
            }
        }
        found.complain("wrong answers", &wrong);
        found.complain("orders did not end as their buyers were told", &others);

        let clients = self.clients();
        let payments = self.sql.list_payments(sale).await?;
        let mut written: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for payment in payments {
            written.entry(payment.webhook_id.clone()).or_default().push(payment);
        }
        let mut lost = Vec::new();
        for told in ended {
            let rows = written.remove(&told.webhook_id()).unwrap_or_default();
            let Some(outcome) = &told.payment else {
                if !rows.is_empty() && told.wrong.is_empty() {
                    lost.push(format!("{rows:?} of nobody"));
                }
                continue;
            };
            let is_written = rows.len() == 1
                && rows[0].order_id == told.order.as_i64()
                && rows[0].outcome == *outcome;
            let again = clients.pay(&told.webhook_id(), told.order).await;
            if !is_written || again.as_ref() != Ok(outcome) {
                lost.push(format!("{told:?}: {rows:?}, and again {again:?}"));
            }
        }
        lost.extend(written.into_values().map(|rows| format!("{rows:?} of nobody")));
        found.complain("payments are not written as they were answered", &lost);
        self.check_units(found, sale).await
    }

    /// At rest both stores have the same units for sale.
    pub(crate) async fn check_units(&self, found: &mut Found, sale: i64) -> anyhow::Result<()> {
        let id = SaleId::from_i64(sale).ok_or_else(|| anyhow::anyhow!("sale {sale}"))?;
        let ledger = self.operations.read_ledger(id).await?;
        let available = ledger.redis.as_ref().map(|account| account.available);
        let at_rest = ledger.in_transit == 0 && ledger.late_payments == 0 && ledger.queued == 0;
        if !ledger.is_balanced() || !at_rest || available != Some(ledger.stock_left) {
            found.failures.push(format!("units after the orders ended: {ledger:?}"));
        }
        Ok(())
    }

    /// Some whose order is over buy again, and some who hold one try in vain; who was told of what.
    pub(crate) async fn buy_again(
        &self,
        found: &mut Found,
        sale: i64,
        rows: &HashMap<OrderId, StoredOrder>,
        ended: &[Ended],
    ) -> anyhow::Result<Vec<Receipt>> {
        let id = SaleId::from_i64(sale).ok_or_else(|| anyhow::anyhow!("sale {sale}"))?;
        let left = self.operations.get_sale(id).await?.stock_left;
        // One unit stays, or the last buyers would be told that there are none.
        let free = usize::try_from(left).unwrap_or(0).saturating_sub(1);
        let state = |told: &&Ended| rows.get(&told.order).map(|row| row.order.state);
        let over = |told: &&Ended| state(told).is_some_and(|state| !state.is_open());
        let clients = self.clients();
        let (mut receipts, mut refused) = (Vec::new(), Vec::new());
        for told in ended.iter().filter(over).take(AGAIN_MAX.min(free)) {
            let token = self.token(told.user.as_str())?;
            let key = format!("again-{}", told.order);
            let pressed = try_eventually(SOON, "whose order is over buys again", async || {
                // Gateways may go on saying "sold out" for a moment after a unit came back.
                match clients.press(sale, &token, &key).await? {
                    (202, answer) => Ok(answer),
                    (status, answer) => Err(format!("{status} {answer}")),
                }
            });
            let new = match pressed.await {
                Ok(answer) => answer["order_id"].as_str().and_then(|id| id.parse().ok()),
                Err(in_vain) => {
                    refused.push(in_vain);
                    continue;
                }
            };
            match new {
                Some(order_id) if order_id != told.order => {
                    receipts.push(Receipt { order_id, user_id: told.user.clone() });
                }
                other => refused.push(format!("{other:?} in place of {}", told.order)),
            }
        }
        let holds = |told: &&Ended| state(told) == Some(OrderState::Paid);
        let tries = if free > 0 { AGAIN_MAX } else { 0 };
        for told in ended.iter().filter(holds).take(tries) {
            let token = self.token(told.user.as_str())?;
            let answer = clients.press(sale, &token, &format!("again-{}", told.order)).await;
            let is_his = answer.as_ref().is_ok_and(|(status, answer)| {
                *status == 409
                    && answer["type"] == "/problems/already-ordered"
                    && answer["order_id"].as_str() == Some(&told.order.to_string())
            });
            if !is_his {
                refused.push(format!("{} holds {} and is told {answer:?}", told.user, told.order));
            }
        }
        found.complain("buyers who press again are answered wrongly", &refused);
        Ok(receipts)
    }

    /// The orders of those who bought again are rows that wait for payment.
    pub(crate) fn check_bought_again(
        found: &mut Found,
        rows: &HashMap<OrderId, StoredOrder>,
        receipts: &[Receipt],
    ) {
        let missing: Vec<String> = receipts
            .iter()
            .filter(|receipt| {
                !rows.get(&receipt.order_id).is_some_and(|row| {
                    row.order.user_id == receipt.user_id
                        && row.order.state == OrderState::AwaitingPayment
                })
            })
            .map(|receipt| format!("{} of {}", receipt.order_id, receipt.user_id))
            .collect();
        found.complain("orders of those who bought again are no open rows", &missing);
    }
}

/// Whether an order may be in this state after what its buyer did and was told.
fn is_as_told(state: OrderState, told: &Ended, after: &After) -> bool {
    let answers = (told.payment.as_deref(), told.cancelled);
    match told.wish {
        Wish::Pay => (state, answers) == (OrderState::Paid, (Some("paid"), None)),
        Wish::Cancel => (state, answers) == (OrderState::Cancelled, (None, Some(true))),
        // Exactly one of the two wins.
        Wish::PayAndCancel => match state {
            OrderState::Paid => answers == (Some("paid"), Some(false)),
            OrderState::Cancelled => answers == (Some("refund_due"), Some(true)),
            _ => false,
        },
        Wish::PayAtTheEnd | Wish::PayLate => match state {
            OrderState::Paid => {
                let too_late =
                    told.wish == Wish::PayLate && after.late_payment == LatePayment::Refund;
                answers == (Some("paid"), None) && !too_late
            }
            OrderState::RefundDue => answers == (Some("refund_due"), None),
            _ => false,
        },
        Wish::Leave => (state, answers) == (OrderState::Expired, (None, None)),
    }
}

#[cfg(test)]
mod tests {
    use flashsale_domain::UserId;

    use super::*;

    fn told(wish: Wish, payment: Option<&str>, cancelled: Option<bool>) -> Ended {
        Ended {
            order: OrderId::from_i64(385_724_913_408_081_920).expect("an order id"),
            user: UserId::new("buyer").expect("a buyer"),
            wish,
            payment: payment.map(str::to_owned),
            cancelled,
            wrong: Vec::new(),
        }
    }

    #[test]
    fn of_a_payment_and_a_cancel_at_the_same_instant_exactly_one_may_win() {
        let after = After { late_payment: LatePayment::Refund, seed: 0, faults: Vec::new() };
        let both = |payment, cancelled| told(Wish::PayAndCancel, Some(payment), Some(cancelled));
        for (state, told, good) in [
            (OrderState::Paid, both("paid", false), true),
            (OrderState::Cancelled, both("refund_due", true), true),
            (OrderState::Paid, both("paid", true), false),
            (OrderState::Cancelled, both("refund_due", false), false),
            (OrderState::Cancelled, both("paid", true), false),
            (OrderState::Expired, both("refund_due", false), false),
        ] {
            assert_eq!(is_as_told(state, &told, &after), good, "{state} {told:?}");
        }
    }

    #[test]
    fn late_money_buys_nothing_where_the_sale_says_so() {
        let late = told(Wish::PayLate, Some("paid"), None);
        for (late_payment, good) in [(LatePayment::Reacquire, true), (LatePayment::Refund, false)] {
            let after = After { late_payment, seed: 0, faults: Vec::new() };
            assert_eq!(is_as_told(OrderState::Paid, &late, &after), good);
        }
    }
}
