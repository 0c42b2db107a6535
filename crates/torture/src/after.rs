//! Life after the order: buyers pay, give up, or let their time run out, while faults go on.
//!
//! Whatever is not answered is sent again, as a buyer's page and a payment provider do it: a payment
//! under the same webhook id.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flashsale_bootstrap::clock;
use flashsale_domain::{OrderId, Partition, UserId};
use flashsale_storage_sql::StoredOrder;
use flashsale_webhooks::{ID_HEADER, SIGNATURE_HEADER, Secrets, TIMESTAMP_HEADER};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::damage::Damage;
use crate::deployment::{Deployment, PRICE, SOON};
use crate::plan::{After, Plan};

/// Over how long the buyers' requests are spread.
const SPREAD_MS: u64 = 1_800;
/// When the time of those runs out who let it run out, in milliseconds from the start.
const DEADLINES_MS: (u64, u64) = (300, 2_000);
/// How long after its deadline money is late for sure: longer than the sweep takes when all is well.
const LATE_BY_MS: i64 = 800;
/// Before a request that failed is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// What a buyer does with his order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// He pays in time.
    Pay,
    /// He gives it up in time.
    Cancel,
    /// He pays, and gives it up at the same instant.
    PayAndCancel,
    /// He pays when his time is just running out.
    PayAtTheEnd,
    /// He pays when his time has run out.
    PayLate,
    /// He does nothing.
    Leave,
}

impl Wish {
    /// About a third each: paid for, given up, run out of time.
    fn draw(chance: &mut StdRng) -> Self {
        match chance.random_range(0..100) {
            0..30 => Self::Pay,
            30..57 => Self::Cancel,
            57..67 => Self::PayAndCancel,
            67..74 => Self::PayAtTheEnd,
            74..81 => Self::PayLate,
            _ => Self::Leave,
        }
    }

    const fn pays(self) -> bool {
        matches!(self, Self::Pay | Self::PayAndCancel | Self::PayAtTheEnd | Self::PayLate)
    }

    const fn cancels(self) -> bool {
        matches!(self, Self::Cancel | Self::PayAndCancel)
    }

    const fn runs_out_of_time(self) -> bool {
        matches!(self, Self::PayAtTheEnd | Self::PayLate | Self::Leave)
    }
}

/// An order, what its buyer did with it, and what he and the payment provider were told.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) order: OrderId,
    pub(crate) user: UserId,
    pub(crate) wish: Wish,
    /// The outcome of his payment.
    pub(crate) payment: Option<String>,
    /// Whether it could be given up.
    pub(crate) cancelled: Option<bool>,
    /// Answers that nobody should get.
    pub(crate) wrong: Vec<String>,
}

impl Ended {
    /// The id of the message that tells of this order's payment.
    pub(crate) fn webhook_id(&self) -> String {
        format!("drill-{}", self.order)
    }
}

/// The payment provider, and the buyers' pages.
pub(crate) struct Clients {
    http: reqwest::Client,
    url: String,
    secrets: Secrets,
}

impl Clients {
    /// Reports the payment of an order until it is decided.
    pub(crate) async fn pay(&self, webhook_id: &str, order: OrderId) -> Result<String, String> {
        let url = format!("{}/api/v1/payments/webhook", self.url);
        let data = json!({ "order_id": order, "amount": PRICE, "currency": "CNY" });
        let body = json!({ "type": "payment.succeeded", "data": data }).to_string();
        let answer = until_answered(|| {
            let sent_s = clock::now_ms() / 1_000;
            let signature = self.secrets.sign(webhook_id, sent_s, body.as_bytes());
            self.http
                .post(&url)
                .header(ID_HEADER, webhook_id)
                .header(TIMESTAMP_HEADER, sent_s.to_string())
                .header(SIGNATURE_HEADER, signature)
                .body(body.clone())
        });
        let (status, answer) = answer.await?;
        match answer["outcome"].as_str() {
            Some(outcome) if status == 200 => Ok(outcome.to_owned()),
            _ => Err(format!("the payment of {order} is answered {status} {answer}")),
        }
    }

    /// Gives an order up; whether that was possible.
    async fn cancel(&self, token: &str, order: OrderId) -> Result<bool, String> {
        let url = format!("{}/api/v1/orders/{order}/cancel", self.url);
        let answer = until_answered(|| self.http.post(&url).bearer_auth(token));
        let (status, answer) = answer.await?;
        match status {
            200 if answer["state"] == "cancelled" => Ok(true),
            409 if answer["type"] == "/problems/not-cancellable" => Ok(false),
            _ => Err(format!("the cancel of {order} is answered {status} {answer}")),
        }
    }

    /// Presses the button of a sale with this key: status and answer.
    pub(crate) async fn press(
        &self,
        sale: i64,
        token: &str,
        key: &str,
    ) -> Result<(u16, Value), String> {
        let url = format!("{}/api/v1/sales/{sale}/orders", self.url);
        until_answered(|| self.http.post(&url).bearer_auth(token).header("idempotency-key", key))
            .await
    }

    /// Does with an order what its buyer wants; all of it at the same instant.
    async fn carry_out(&self, ended: &mut Ended, twice: bool, token: &str) {
        let (id, order, wish) = (ended.webhook_id(), ended.order, ended.wish);
        let pay = async |does: bool| {
            if does { Some(self.pay(&id, order).await) } else { None }
        };
        let cancel =
            async { if wish.cancels() { Some(self.cancel(token, order).await) } else { None } };
        let (paid, again, cancelled) =
            tokio::join!(pay(wish.pays()), pay(wish.pays() && twice), cancel);
        if let (Some(first), Some(second)) = (&paid, &again)
            && first != second
        {
            ended.wrong.push(format!("the payment of {} is {first:?} and {second:?}", ended.order));
        }
        match paid.transpose() {
            Ok(outcome) => ended.payment = outcome,
            Err(wrong) => ended.wrong.push(wrong),
        }
        match cancelled.transpose() {
            Ok(cancelled) => ended.cancelled = cancelled,
            Err(wrong) => ended.wrong.push(wrong),
        }
    }
}

/// Sends a request until it is answered with anything but "try again".
async fn until_answered(
    request: impl Fn() -> reqwest::RequestBuilder + Send,
) -> Result<(u16, Value), String> {
    let ends = Instant::now() + SOON;
    loop {
        let said = match request().send().await {
            Err(error) => format!("{error:#}"),
            Ok(answer) => {
                let status = answer.status().as_u16();
                let text = answer.text().await.unwrap_or_default();
                if status != 503 {
                    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
                    return Ok((status, value));
                }
                text
            }
        };
        if Instant::now() > ends {
            return Err(format!("no answer within {SOON:?}: {said}"));
        }
        sleep(AGAIN_AFTER).await;
    }
}

impl Deployment {
    pub(crate) fn clients(&self) -> Clients {
        Clients {
            http: self.http.clone(),
            url: self.gateway.url(),
            secrets: self.payment_secrets.clone(),
        }
    }

    /// Lets the buyers of these orders do what they want with them, with the plan's faults meanwhile;
    /// what they were told, when everybody has an answer.
    pub(crate) async fn live_on(
        &mut self,
        plan: &Plan,
        after: &After,
        home: Partition,
        orders: Vec<StoredOrder>,
        damage: &mut Damage,
    ) -> anyhow::Result<Vec<Ended>> {
        let mut all: Vec<(Ended, StdRng)> = orders
            .into_iter()
            .map(|stored| {
                let (order, user) = (stored.order.id, stored.order.user_id);
                // By his number in the crowd: what a buyer wants is the same in a replay.
                let number = user.as_str().rsplit('-').next().and_then(|n| n.parse::<u64>().ok());
                let mut chance = StdRng::seed_from_u64(after.seed ^ number.unwrap_or_default());
                let wish = Wish::draw(&mut chance);
                let (payment, cancelled) = (None, None);
                (Ended { order, user, wish, payment, cancelled, wrong: Vec::new() }, chance)
            })
            .collect();
        let near: Vec<OrderId> = all
            .iter()
            .filter(|(ended, _)| ended.wish.runs_out_of_time())
            .map(|(ended, _)| ended.order)
            .collect();
        let (from_ms, to_ms) = DEADLINES_MS;
        let deadlines = self.sql.bring_deadlines_near(&near, from_ms, to_ms).await?;
        let (begun, begun_ms) = (Instant::now(), clock::now_ms());

        let clients = Arc::new(self.clients());
        let mut buyers = JoinSet::new();
        for (mut ended, mut chance) in all.drain(..) {
            let deadline_ms = deadlines.get(&ended.order).copied().unwrap_or(begun_ms);
            let at_ms = match ended.wish {
                Wish::PayAtTheEnd => deadline_ms - begun_ms,
                Wish::PayLate => deadline_ms - begun_ms + LATE_BY_MS,
                _ => chance.random_range(0..SPREAD_MS).cast_signed(),
            };
            let at = Duration::from_millis(u64::try_from(at_ms).unwrap_or(0));
            // Providers send twice when an answer is slow.
            let twice = chance.random_ratio(1, 4);
            let (clients, token) = (Arc::clone(&clients), self.token(ended.user.as_str())?);
            buyers.spawn(async move {
                sleep(at.saturating_sub(begun.elapsed())).await;
                clients.carry_out(&mut ended, twice, &token).await;
                ended
            });
        }

        let faults = plan.of_after(after);
        for step in faults.steps() {
            let at = Duration::from_millis(step.at_ms);
            sleep(at.saturating_sub(begun.elapsed())).await;
            let fault = &faults.faults[step.fault];
            self.carry_out(&faults, fault, step.phase, home, damage).await?;
        }
        let mut told = Vec::new();
        while let Some(ended) = buyers.join_next().await {
            told.push(ended.context("a buyer")?);
        }
        told.sort_by_key(|ended| ended.order);
        Ok(told)
    }
}
