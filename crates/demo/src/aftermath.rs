//! After the rush: a third of the buyers pay, a third cancel, a third let the time run out; and the
//! units that come back are sold to later buyers.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use flashsale_webhooks::{ID_HEADER, SIGNATURE_HEADER, Secrets, TIMESTAMP_HEADER};
use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::options::Options;
use crate::programs::{Audit, Ledger};
use crate::report::{grouped, say};
use crate::rush::{Rushed, rush};
use crate::stack::{PRICE, Stack};

/// Requests at a time.
const SIDE_BY_SIDE: usize = 32;
/// Long after the payment window.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(200);
/// Later buyers for each unit that came back.
const LATER_BUYERS_PER_UNIT: u64 = 3;

/// What came of it.
pub(crate) struct Aftermath {
    paid: u64,
    cancelled: u64,
    expired: u64,
    /// The later buyers' rush; none when no unit came back.
    later: Option<Rushed>,
    ledger: Ledger,
    audit: Audit,
}

/// An accepted order, as `rush` wrote it down.
#[derive(Clone)]
struct Receipt {
    order_id: String,
    buyer: String,
}

/// Lets the buyers of `receipts` pay, cancel and wait, and sells what comes back.
pub(crate) async fn live_through(
    stack: &Stack,
    sale: &str,
    options: &Options,
    receipts: &Path,
) -> anyhow::Result<Aftermath> {
    let held = read_receipts(receipts)?;
    let (payers, rest) = held.split_at(held.len() / 3);
    let (cancellers, waiters) = rest.split_at(held.len() / 3);
    say(&format!(
        "of {} buyers {} pay, {} cancel, and {} let their {} run out",
        grouped(length(&held)),
        grouped(length(payers)),
        grouped(length(cancellers)),
        grouped(length(waiters)),
        crate::stack::PAYMENT_WINDOW,
    ))?;
    for_each(payers, |receipt| pay(stack, receipt)).await?;
    for_each(cancellers, |receipt| cancel(stack, receipt)).await?;
    let back = length(cancellers) + length(waiters);
    let ledger = wait_until_back(stack, sale, options.stock, length(payers)).await?;
    say(&format!("{} units are back, and later buyers come", grouped(back)))?;

    let (paid, cancelled, expired) = (ledger.paid, ledger.cancelled, ledger.expired);
    let later_receipts = stack.file("later-receipts.csv");
    let later = if ledger.stock_left > 0 {
        let later = Options {
            buyers: u64::try_from(ledger.stock_left)? * LATER_BUYERS_PER_UNIT,
            stock: u64::try_from(ledger.stock_left)?,
            kill_worker: false,
            ..*options
        };
        Some(rush(stack, sale, &later, &later_receipts).await?)
    } else {
        None
    };
    let ledger = crate::story::wait_until_written(stack, sale).await?;
    if later.is_some() {
        append(receipts, &later_receipts)?;
    }
    let receipts = receipts.to_str().context("the temporary folder's path is not UTF-8")?;
    let audit = stack.salectl().audit(sale, receipts).await?;
    Ok(Aftermath { paid, cancelled, expired, later, ledger, audit })
}

impl Aftermath {
    /// What is not as it must be.
    pub(crate) fn problems(&self, orders: u64) -> Vec<String> {
        let Self { ledger, audit, later, .. } = self;
        let mut problems = Vec::new();
        let mut require = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        let third = orders / 3;
        require(
            self.paid == third && self.cancelled == third && self.expired == orders - 2 * third,
            format!(
                "{} orders are paid, {} cancelled, {} expired, of {orders}",
                self.paid, self.cancelled, self.expired
            ),
        );
        let sold_again = later.as_ref().map_or(0, |later| later.orders);
        let back = self.cancelled + self.expired;
        require(
            later.is_none() || sold_again >= back,
            format!("{sold_again} units were sold again, of {back}"),
        );
        if let Some(later) = later {
            require(later.ok, "rush is not content with the later buyers".to_owned());
        }
        require(
            ledger.balanced,
            format!("the last ledger is not balanced: {}", ledger.problems.join("; ")),
        );
        for finding in &audit.findings {
            require(false, format!("last audit: {} {}", finding.invariant, finding.what));
        }
        problems
    }

    /// The result in figures.
    pub(crate) fn table(&self) -> String {
        let Self { ledger, audit, .. } = self;
        format!(
            "\n  after the sale  {} paid, {} cancelled, {} expired; {} sold to later buyers\n  \
             ledger          {}: {} units = {} left + {} awaiting payment + {} paid\n  \
             audit           {}\n",
            grouped(self.paid),
            grouped(self.cancelled),
            grouped(self.expired),
            grouped(self.later.as_ref().map_or(0, |later| later.orders)),
            if ledger.balanced { "balanced" } else { "NOT BALANCED" },
            grouped(ledger.total),
            ledger.stock_left,
            grouped(ledger.awaiting_payment),
            grouped(ledger.paid),
            match audit.findings.len() {
                0 => "clean: the invariants I1 to I7 hold".to_owned(),
                findings => format!("{findings} FINDINGS"),
            }
        )
    }
}

/// Tells the gateway what a payment provider would.
async fn pay(stack: &Stack, receipt: Receipt) -> anyhow::Result<()> {
    let secrets = Secrets::parse(&stack.payment_secret)?;
    let body = json!({
        "type": "payment.succeeded",
        "data": { "order_id": receipt.order_id, "amount": PRICE, "currency": "CNY" },
    });
    let (body, id) = (body.to_string(), format!("demo-{}", receipt.order_id));
    let now_s = now_s()?;
    let answer = stack
        .http
        .post(format!("{}/api/v1/payments/webhook", stack.gateway.url))
        .header(ID_HEADER, &id)
        .header(TIMESTAMP_HEADER, now_s)
        .header(SIGNATURE_HEADER, secrets.sign(&id, now_s, body.as_bytes()))
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await?;
    expect(answer, "outcome", "paid").await
}

async fn cancel(stack: &Stack, receipt: Receipt) -> anyhow::Result<()> {
    let claims = json!({ "sub": receipt.buyer, "exp": now_s()? + 600 });
    let key = EncodingKey::from_secret(stack.jwt_secret.as_bytes())?;
    let token = jsonwebtoken::encode(&Header::default(), &claims, &key)?;
    let answer = stack
        .http
        .post(format!("{}/api/v1/orders/{}/cancel", stack.gateway.url, receipt.order_id))
        .bearer_auth(token)
        .send()
        .await?;
    expect(answer, "state", "cancelled").await
}

async fn expect(answer: reqwest::Response, member: &str, value: &str) -> anyhow::Result<()> {
    let status = answer.status();
    let body: Value = answer.json().await?;
    ensure!(body[member] == value, "{member} is not {value}: {status} {body}");
    Ok(())
}

async fn for_each<F>(receipts: &[Receipt], act: impl Fn(Receipt) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    // Not spawned: they borrow the stack. One task is enough to keep the gateway busy.
    for chunk in receipts.chunks(SIDE_BY_SIDE) {
        let acts = chunk.iter().cloned().map(&act);
        for done in futures_util::future::join_all(acts).await {
            done?;
        }
    }
    Ok(())
}

/// Waits until every order is paid or over and Redis has all the units that came back.
async fn wait_until_back(
    stack: &Stack,
    sale: &str,
    stock: u64,
    paid: u64,
) -> anyhow::Result<Ledger> {
    let started = Instant::now();
    let left = i64::try_from(stock - paid)?;
    loop {
        let ledger = stack.salectl().ledger(sale).await?;
        let redis_has = ledger.redis.as_ref().map_or(0, |redis| redis.available);
        if ledger.awaiting_payment == 0 && ledger.in_transit == 0 && redis_has == left {
            return Ok(ledger);
        }
        ensure!(
            started.elapsed() < COMES_BACK_WITHIN,
            "after {COMES_BACK_WITHIN:?} {} orders still wait for payment, and {redis_has} of \
             {left} units are for sale",
            ledger.awaiting_payment
        );
        sleep(POLL).await;
    }
}

fn read_receipts(path: &Path) -> anyhow::Result<Vec<Receipt>> {
    let text = fs::read_to_string(path)?;
    text.lines()
        .skip(1)
        .map(|line| {
            let (order_id, buyer) = line.split_once(',').context("a receipt without a buyer")?;
            Ok(Receipt { order_id: order_id.to_owned(), buyer: buyer.to_owned() })
        })
        .collect()
}

/// Adds the receipts of one file to those of another.
fn append(to: &Path, from: &Path) -> anyhow::Result<()> {
    let mut all = fs::read_to_string(to)?;
    for line in fs::read_to_string(from)?.lines().skip(1) {
        all.push_str(line);
        all.push('\n');
    }
    Ok(fs::write(to, all)?)
}

fn length(receipts: &[Receipt]) -> u64 {
    u64::try_from(receipts.len()).expect("a count fits")
}

fn now_s() -> anyhow::Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?)
}
