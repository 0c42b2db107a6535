//! `salectl rehearse`: a whole sale, from its publication to its report, by buyers who are none.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use flashsale_bootstrap::{Settings, clock};
use flashsale_domain::{
    LatePayment, NewSale, OrderId, Price, Sale, SaleId, SaleMode, SaleState, UserId, Window,
};
use flashsale_operations::{OperationError, Operations, Receipt, Refused};
use flashsale_webhooks::Secrets;
use futures_util::stream::{StreamExt as _, iter};
use serde::Serialize;
use tokio::time::sleep;

use super::{ACTOR, pay};
use crate::Verdict;
use crate::failure::Failure;
use crate::output::{Output, fields};
use crate::rehearsal_args::RehearseArgs;
use crate::shopfront::{Buyer, Shopfront, buyers, buyers_of};
use crate::when::now_ms;

/// What is left of a killed worker's orders comes back after 1.5 times `worker.reclaim_idle` (30 s).
const CLEANED_WITHIN: Duration = Duration::from_secs(90);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Gateways add up what they told every two seconds, and those that are slow some time later.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The sale closes by itself so long after the rehearsal's own time, if nobody does.
const CLOSES_AFTER: Duration = Duration::from_secs(60);
/// Problems that are told in words.
const TOLD_MAX: usize = 20;

/// ```json
/// {"good":true,"sale_id":"7","buyers":100,"stock":60,"answers":{"admitted":60,"sold-out":40},
///  "replayed":60,"paid":20,"cancelled":20,"expired":20,"problems":[],"cleaned_up":true}
/// ```
/// With `--clean-up`: `{"cleaned_up":["7"]}`.
#[derive(Serialize)]
struct Played {
    good: bool,
    sale_id: SaleId,
    buyers: usize,
    stock: u32,
    /// What buyers were told at first, and how many of them.
    answers: BTreeMap<String, u64>,
    /// How many were told the same order again under the same key.
    replayed: u64,
    paid: u64,
    cancelled: u64,
    expired: u64,
    /// What was not as it has to be.
    problems: Vec<String>,
    cleaned_up: bool,
}

#[derive(Serialize)]
struct CleanedUp {
    cleaned_up: Vec<SaleId>,
}

/// Plays a rehearsal, or cleans up after others. Exit code 1 when something was not as it has to be.
pub(crate) async fn run(
    args: &RehearseArgs,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    if args.clean_up {
        let operations = super::operations(settings).await?;
        let mut done = CleanedUp { cleaned_up: Vec::new() };
        for sale in operations.list_rehearsals().await? {
            clean_up(&operations, sale.id).await?;
            done.cleaned_up.push(sale.id);
        }
        output.print(&done, || match done.cleaned_up.as_slice() {
            [] => "no rehearsal has left anything".to_owned(),
            sales => format!("{} sales of rehearsals and drills are gone", sales.len()),
        })?;
        return Ok(Verdict::Good);
    }

    let ends = Instant::now() + args.timeout;
    let url = args.url.clone().unwrap_or_else(|| pay::url_of(settings.http.listen));
    let shop = Shopfront::new(pay::client()?, &url, ends)?;
    let run = format!("{:x}", now_ms());
    let buyers = match &args.tokens {
        Some(file) => buyers_of(file, &run)?,
        None => buyers(settings, &run, args.buyers)?,
    };
    let count = u32::try_from(buyers.len()).unwrap_or(u32::MAX);
    let stock = args.stock.unwrap_or_else(|| (count.saturating_mul(6) / 10).max(1));

    let operations = super::operations(settings).await?;
    clean_up_what_is_over(&operations).await?;
    let sale = operations.by(ACTOR).begin_rehearsal(&new_sale(args, stock)?).await?;
    say(&format!("rehearsing with sale {}: {count} buyers, {stock} units", sale.id));
    let mut rehearsal = Rehearsal {
        operations: &operations,
        settings,
        shop: &shop,
        buyers: &buyers,
        sale: &sale,
        concurrency: args.concurrency.into(),
        played: Played {
            good: false,
            sale_id: sale.id,
            buyers: buyers.len(),
            stock,
            answers: BTreeMap::new(),
            replayed: 0,
            paid: 0,
            cancelled: 0,
            expired: 0,
            problems: Vec::new(),
            cleaned_up: false,
        },
    };
    let ended = tokio::select! {
        played = rehearsal.play() => played.err().map(|failure| failure.to_string()),
        _ = tokio::signal::ctrl_c() => Some("it was interrupted".to_owned()),
        () = sleep(args.timeout) => Some("it took longer than --timeout".to_owned()),
    };
    let mut played = rehearsal.played;
    played.problems.extend(ended);
    played.good = played.problems.is_empty();
    say("cleaning up");
    match clean_up(&operations, sale.id).await {
        Ok(()) => played.cleaned_up = true,
        Err(failure) => {
            played.good = false;
            played.problems.push(format!(
                "it is not cleaned up ({failure}): `salectl rehearse --clean-up` tries it again"
            ));
        }
    }
    output.print(&played, || played.text())?;
    Ok(if played.good { Verdict::Good } else { Verdict::Broken })
}

fn new_sale(args: &RehearseArgs, stock: u32) -> Result<NewSale, Failure> {
    let now = now_ms();
    let lasts = i64::try_from((args.timeout + CLOSES_AFTER).as_millis()).unwrap_or(i64::MAX);
    let window = Window::new(now, now.saturating_add(lasts));
    Ok(NewSale {
        title: "Rehearsal".to_owned(),
        mode: SaleMode::Queued,
        stock: stock.into(),
        window: window.map_err(|error| Failure::refused(error.to_string()))?,
        per_buyer: 1,
        price: price(),
        payment_window_s: i64::try_from(args.payment_window.as_secs()).unwrap_or(i64::MAX),
        late_payment: LatePayment::Refund,
    })
}

/// An amount like any other: the payment provider hears nothing of it.
pub(super) fn price() -> Price {
    Price { amount: 100, currency: "CNY".parse().expect("a currency") }
}

/// Removes what earlier ones have left; of one that is still on it only says so.
async fn clean_up_what_is_over(operations: &Operations) -> Result<(), Failure> {
    for sale in operations.list_rehearsals().await? {
        let id = sale.id;
        if sale.state == SaleState::Closed || sale.window.closes_ms() <= clock::now_ms() {
            clean_up(operations, id).await?;
            say(&format!("sale {id}, which an earlier rehearsal or drill has left, is gone"));
        } else {
            say(&format!(
                "sale {id} is another rehearsal's or a drill's, and still on: unless somebody is at it, \
                 `salectl rehearse --clean-up` ends it"
            ));
        }
    }
    Ok(())
}

/// Removes a sale of a rehearsal, and waits for what is under way.
pub(super) async fn clean_up(operations: &Operations, sale: SaleId) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        match operations.by(ACTOR).clean_up_rehearsal(sale).await {
            Ok(()) => return Ok(()),
            Err(OperationError::Refused(
                Refused::RehearsalBusy { .. } | Refused::RebuildRunning(_),
            )) if started.elapsed() < CLEANED_WITHIN => sleep(LOOK_AGAIN).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Says on standard error where it stands.
pub(super) fn say(what: &str) {
    let _reader_gone = writeln!(std::io::stderr(), "salectl: {what}");
}

struct Rehearsal<'a> {
    operations: &'a Operations,
    settings: &'a Settings,
    shop: &'a Shopfront,
    buyers: &'a [Buyer],
    sale: &'a Sale,
    concurrency: usize,
    played: Played,
}

/// What a buyer has.
struct Held<'a> {
    buyer: &'a Buyer,
    order: OrderId,
}

impl<'a> Rehearsal<'a> {
    async fn play(&mut self) -> Result<(), Failure> {
        let seen = self.shop.list_sales().await?;
        let id = self.sale.id.to_string();
        let listed = seen.body["sales"].as_array();
        if listed.is_some_and(|sales| sales.iter().any(|sale| sale["sale_id"] == id.as_str())) {
            self.problem(
                "buyers see the rehearsal's sale: a gateway is of a version that knows of no rehearsals",
            );
        }
        let held = self.press().await;
        say(&format!("{} orders are admitted; waiting until they are rows", held.len()));
        self.follow(&held).await;
        let left = self.decide(&held).await;
        say(&format!("{left} orders are left unpaid; waiting until they expire"));
        self.settle().await?;
        self.check(&held, left).await
    }

    fn problem(&mut self, what: impl Into<String>) {
        if self.played.problems.len() < TOLD_MAX {
            self.played.problems.push(what.into());
        }
    }

    /// Everybody presses, and who has got something presses again.
    async fn press(&mut self) -> Vec<Held<'a>> {
        let (shop, sale, buyers) = (self.shop, self.sale.id, self.buyers);
        let presses = buyers.iter().map(|buyer| press(shop, sale, buyer));
        let told: Vec<_> = iter(presses).buffer_unordered(self.concurrency).collect().await;
        let mut held = Vec::new();
        for told in told {
            match told {
                Ok((word, order)) => {
                    *self.played.answers.entry(word).or_default() += 1;
                    held.extend(order);
                }
                Err(what) => self.problem(what),
            }
        }
        self.played.replayed = u64::try_from(held.len()).unwrap_or(u64::MAX);
        let expected =
            self.buyers.len().min(usize::try_from(self.played.stock).unwrap_or(usize::MAX));
        if held.len() != expected {
            self.problem(format!("{} orders are admitted, and not {expected}", held.len()));
        }
        held
    }

    /// Every order becomes one that can be paid.
    async fn follow(&mut self, held: &[Held<'a>]) {
        let shop = self.shop;
        let follows = held.iter().map(|held| follow(shop, held));
        let seen: Vec<_> = iter(follows).buffer_unordered(self.concurrency).collect().await;
        for problem in seen.into_iter().filter_map(Result::err) {
            self.problem(problem);
        }
    }

    /// A third is paid, a third is cancelled; how many are left to expire.
    async fn decide(&mut self, held: &[Held<'a>]) -> u64 {
        let (shop, secrets) = (self.shop, self.settings.payment.webhook_secret.as_ref());
        if secrets.is_none() {
            say("payment.webhook_secret is not set: nothing is paid for");
        }
        let decisions = held.iter().enumerate().map(|(place, held)| async move {
            match (place % 3, secrets) {
                (0, Some(secrets)) => pay_for(shop, held, secrets).await.map(|()| Decided::Paid),
                (1, _) => cancel(shop, held).await.map(|()| Decided::Cancelled),
                _ => Ok(Decided::Left),
            }
        });
        let decided: Vec<_> = iter(decisions).buffer_unordered(self.concurrency).collect().await;
        let mut left = 0;
        for decided in decided {
            match decided {
                Ok(Decided::Paid) => self.played.paid += 1,
                Ok(Decided::Cancelled) => self.played.cancelled += 1,
                Ok(Decided::Left) => left += 1,
                Err(what) => self.problem(what),
            }
        }
        left
    }

    /// Waits until nothing of the sale is under way, and closes it.
    async fn settle(&mut self) -> Result<(), Failure> {
        let id = self.sale.id;
        loop {
            let ledger = self.operations.read_ledger(id).await?;
            let queued = ledger.queued > 0 || ledger.in_transit > 0 || ledger.late_payments > 0;
            if !queued && ledger.awaiting_payment == 0 {
                break;
            }
            if self.shop.time_left().is_zero() {
                self.problem(format!(
                    "{} orders are still queued, {} were not paid and have not expired, {} releases \
                     have not reached Redis",
                    ledger.queued, ledger.awaiting_payment, ledger.in_transit
                ));
                break;
            }
            sleep(LOOK_AGAIN).await;
        }
        self.operations.by(ACTOR).close_sale(id).await?;
        Ok(())
    }

    /// What the report and the audit say, against what buyers were told.
    async fn check(&mut self, held: &[Held<'a>], left: u64) -> Result<(), Failure> {
        let told = self.played.replayed + self.played.answers.values().sum::<u64>();
        let counted_by = Instant::now() + ANSWERS_WITHIN;
        let report = loop {
            let report = self.operations.report(self.sale.id).await?;
            let counted = report.answers.values().sum::<i64>();
            if u64::try_from(counted).unwrap_or(0) >= told {
                break report;
            }
            if Instant::now() > counted_by {
                self.problem(format!("{told} answers were given, and the report has {counted}"));
                break report;
            }
            sleep(LOOK_AGAIN).await;
        };
        self.played.expired = u64::try_from(report.not_sold.expired).unwrap_or(0);
        if self.played.expired != left {
            self.problem(format!("{} orders expired, and not {left}", self.played.expired));
        }
        if u64::try_from(report.sold.paid) != Ok(self.played.paid) {
            let paid = self.played.paid;
            self.problem(format!(
                "{paid} orders were paid, and the report has {}",
                report.sold.paid
            ));
        }
        if !report.is_final {
            self.problem("the sale is closed, and its report is not final");
        }
        match report.proof {
            Some(proof) if proof.missing == 0 => {}
            Some(proof) => self.problem(format!("{} orders are missing", proof.missing)),
            None => self.problem("Redis does not have the sale"),
        }
        let receipts: Vec<Receipt> = held
            .iter()
            .filter_map(|held| {
                let user_id: UserId = held.buyer.sub.clone()?;
                Some(Receipt { order_id: held.order, user_id })
            })
            .collect();
        let audit = self.operations.audit_sale(self.sale.id, &receipts).await?;
        for finding in audit.findings {
            self.problem(format!("{}: {}", finding.invariant, finding.what));
        }
        Ok(())
    }
}

enum Decided {
    Paid,
    Cancelled,
    Left,
}

async fn press<'a>(
    shop: &Shopfront,
    sale: SaleId,
    buyer: &'a Buyer,
) -> Result<(String, Option<Held<'a>>), String> {
    let first = shop.place_order(sale, buyer).await.map_err(|failure| failure.to_string())?;
    let Some(order) = first.order_id().filter(|_| first.status == 202) else {
        return Ok((first.word(), None));
    };
    let again = shop.place_order(sale, buyer).await.map_err(|failure| failure.to_string())?;
    if again.order_id() == Some(order) && again.replayed {
        return Ok(("admitted".to_owned(), Some(Held { buyer, order })));
    }
    Err(format!("order {order}: the same key was told {} the second time", again.word()))
}

async fn follow(shop: &Shopfront, held: &Held<'_>) -> Result<(), String> {
    let order = held.order;
    loop {
        let told = shop.read_order(order, held.buyer).await;
        let told = told.map_err(|failure| format!("order {order}: {failure}"))?;
        match told.state() {
            "awaiting_payment" => return Ok(()),
            "queued" if !shop.time_left().is_zero() => {}
            "" => return Err(format!("order {order}: told {}", told.word())),
            state => return Err(format!("order {order} is {state}, and not awaiting_payment")),
        }
    }
}

async fn cancel(shop: &Shopfront, held: &Held<'_>) -> Result<(), String> {
    let order = held.order;
    let told = shop.cancel(order, held.buyer).await;
    match told.map_err(|failure| format!("order {order}: {failure}"))? {
        told if told.state() == "cancelled" => Ok(()),
        told => Err(format!("order {order} cannot be cancelled: told {}", told.word())),
    }
}

async fn pay_for(shop: &Shopfront, held: &Held<'_>, secrets: &Secrets) -> Result<(), String> {
    let order = held.order;
    let webhook_id = format!("rehearsal_{order}");
    let payment = pay::Payment { order, price: price(), webhook_id };
    let url = shop.url(pay::PATH).map_err(|failure| failure.to_string())?;
    let told = shop.ask(|| payment.request(shop.client(), url.clone(), secrets)).await;
    let told = told.map_err(|failure| format!("the payment of order {order}: {failure}"))?;
    match told.body["outcome"].as_str() {
        Some("paid") => Ok(()),
        outcome => Err(format!(
            "the payment of order {order}: told {}",
            outcome.map_or_else(|| told.word(), str::to_owned)
        )),
    }
}

impl Played {
    fn text(&self) -> String {
        let answers = self.answers.iter().map(|(word, count)| format!("{count} {word}"));
        let answers = answers.collect::<Vec<_>>().join(", ");
        let mut text = fields([
            ("sale", format!("{}, {} buyers for {} units", self.sale_id, self.buyers, self.stock)),
            ("answers", format!("{answers}; {} again under the same key", self.replayed)),
            (
                "orders",
                format!(
                    "{} paid, {} cancelled, {} expired",
                    self.paid, self.cancelled, self.expired
                ),
            ),
            (
                "clean-up",
                if self.cleaned_up { "nothing is left" } else { "NOT CLEANED UP" }.to_owned(),
            ),
            (
                "verdict",
                if self.good { "all as it has to be" } else { "NOT AS IT HAS TO BE" }.to_owned(),
            ),
        ]);
        for problem in &self.problems {
            text.push_str(&format!("  {problem}\n"));
        }
        text
    }
}
