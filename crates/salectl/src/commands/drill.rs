//! `salectl drill`: what an alert is about, on purpose.

use std::time::{Duration, Instant};

use flashsale_bootstrap::Settings;
use flashsale_bootstrap::settings::{Profile, Risk};
use flashsale_domain::{LatePayment, NewSale, Sale, SaleId, SaleMode, Window};
use flashsale_operations::{DRILL_TITLE, DeadFilter, Operations};
use serde::Serialize;
use tokio::time::sleep;

use super::rehearse::{clean_up, price, say};
use super::{ACTOR, pay};
use crate::Verdict;
use crate::drills::{Drill, DrillName, Kind};
use crate::failure::Failure;
use crate::output::{Output, columns};
use crate::rehearsal_args::{DrillArgs, DrillWord};
use crate::shopfront::{Shopfront, buyers};
use crate::when::now_ms;

/// How often something is looked at, or a buyer presses.
const EACH: Duration = Duration::from_secs(1);
/// A dead letter or a loss is seen by a worker at its next look.
const CAUSED_WITHIN: Duration = Duration::from_secs(60);
/// Units of a drill's sale; one is enough.
const STOCK: i64 = 10;
/// How long a drill's sale is on, and its orders can be paid, if nobody ends it.
const LASTS_S: i64 = 3600;

/// `{"drills":[{"name":"dead-letters","kind":"stays","alerts":["FlashsaleDeadLetters"],"what":"…",
///   "back":"…","within":"a minute"}]}`
#[derive(Serialize)]
struct Drills {
    drills: Vec<Drill>,
}

/// `{"drill":"dead-letters","state":"caused","sale_id":"7","alerts":["FlashsaleDeadLetters"],
///   "within":"a minute","runbook":"docs/runbooks/dead-letters.md"}`; `state` is `caused` (`--undo` ends
/// it) or `over`; without a sale of its own `sale_id` is null.
#[derive(Serialize)]
struct Drilled {
    drill: &'static str,
    state: &'static str,
    sale_id: Option<SaleId>,
    alerts: &'static [&'static str],
    within: &'static str,
    runbook: String,
}

/// `{"drill":"dead-letters","removed":["7"]}`
#[derive(Serialize)]
struct Undone {
    drill: &'static str,
    removed: Vec<SaleId>,
}

/// Lists the drills, begins one, or puts right what one has left.
pub(crate) async fn run(
    args: &DrillArgs,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    let DrillWord::Named(name) = args.drill else {
        let drills = Drills { drills: DrillName::all().collect() };
        output.print(&drills, || list(&drills.drills))?;
        return Ok(Verdict::Good);
    };
    let drill = name.drill();
    if args.undo {
        // Always allowed: it only puts right.
        let operations = super::operations(settings).await?;
        let undone = undo(&operations, drill).await?;
        output.print(&undone, || match undone.removed.as_slice() {
            [] => format!("the drill {} has left nothing", drill.name),
            sales => format!("{} sales of the drill {} are gone", sales.len(), drill.name),
        })?;
        return Ok(Verdict::Good);
    }
    must_be_allowed(settings)?;
    let operations = super::operations(settings).await?;
    let drilling = Drilling { operations: &operations, settings, drill, lasts: args.lasts };
    let url = args.url.clone().unwrap_or_else(|| pay::url_of(settings.http.listen));
    let shop = Shopfront::new(pay::client()?, &url, Instant::now() + args.lasts)?;
    let (state, sale_id) = match name {
        DrillName::DeadLetters => ("caused", Some(drilling.dead_letters().await?)),
        DrillName::EntriesLost => ("caused", Some(drilling.entries_lost().await?)),
        DrillName::LedgerImbalance => ("caused", Some(drilling.ledger_imbalance().await?)),
        DrillName::OrdersWaiting => ("over", Some(drilling.orders_waiting().await?)),
        DrillName::GateClosed => ("over", Some(drilling.gate_closed(&shop).await?)),
        DrillName::NoWorker => ("over", drilling.guide(async || drilling.no_worker().await).await?),
        DrillName::NoGateway => ("over", drilling.guide(async || Ok(!shop.is_open().await)).await?),
        DrillName::AofOff => ("over", drilling.guide(async || drilling.aof_is_off().await).await?),
        DrillName::RedisMayEvict => {
            ("over", drilling.guide(async || drilling.may_evict().await).await?)
        }
    };
    let drilled = Drilled {
        drill: drill.name,
        state,
        sale_id,
        alerts: drill.alerts,
        within: drill.within,
        runbook: drill.runbook(),
    };
    output.print(&drilled, || drilled.text(&drill))?;
    Ok(Verdict::Good)
}

fn must_be_allowed(settings: &Settings) -> Result<(), Failure> {
    if !settings.drills.allowed {
        return Err(Failure::refused(
            "drills are not allowed here: they break things on purpose. Where somebody practises, set \
             drills.allowed to true",
        ));
    }
    if settings.profile == Profile::Production && !settings.allow_unsafe.contains(&Risk::Drills) {
        return Err(Failure::refused(
            "drills.allowed is true, and profile is production: drills are allowed here only when \
             allow_unsafe names `drills` as well",
        ));
    }
    Ok(())
}

async fn undo(operations: &Operations, drill: Drill) -> Result<Undone, Failure> {
    let title = format!("{DRILL_TITLE}{}", drill.name);
    let mut removed = Vec::new();
    for sale in operations.list_rehearsals().await? {
        if sale.title == title {
            clean_up(operations, sale.id).await?;
            removed.push(sale.id);
        }
    }
    Ok(Undone { drill: drill.name, removed })
}

fn list(drills: &[Drill]) -> String {
    let mut rows = vec![["drill", "alerts", "ends", "what"].map(str::to_owned).to_vec()];
    rows.extend(drills.iter().map(|drill| {
        let ends = match drill.kind {
            Kind::Stays => "by --undo",
            Kind::EndsItself => "by itself",
            Kind::Guided => "guided",
        };
        vec![drill.name.to_owned(), drill.alerts.join(" "), ends.to_owned(), drill.what.to_owned()]
    }));
    columns(&rows)
}

impl Drilled {
    fn text(&self, drill: &Drill) -> String {
        if self.state == "over" {
            return format!("the drill {} is over, and nothing is left of it", self.drill);
        }
        let sale = self.sale_id.map(|sale| format!(" (sale {sale})")).unwrap_or_default();
        format!(
            "{}{sale}\n{} fires within {}: {}\n{}",
            drill.what,
            self.alerts.join(" and "),
            self.within,
            self.runbook,
            drill.back
        )
    }
}

struct Drilling<'a> {
    operations: &'a Operations,
    settings: &'a Settings,
    drill: Drill,
    lasts: Duration,
}

impl Drilling<'_> {
    async fn begin(&self) -> Result<Sale, Failure> {
        let now = now_ms();
        let window = Window::new(now, now + LASTS_S * 1000);
        let new = NewSale {
            title: DRILL_TITLE.to_owned(),
            mode: SaleMode::Queued,
            stock: STOCK,
            window: window.map_err(|error| Failure::refused(error.to_string()))?,
            per_buyer: 1,
            price: price(),
            payment_window_s: LASTS_S,
            late_payment: LatePayment::Refund,
        };
        Ok(self.operations.by(ACTOR).begin_drill(self.drill.name, &new).await?)
    }

    /// What fires when, and what to read meanwhile.
    fn announce(&self) {
        let Drill { alerts, within, what, .. } = self.drill;
        say(&format!("{what}; {} fires within {within}: {}", alerts[0], self.drill.runbook()));
    }

    /// Removes a sale that something went wrong with.
    async fn or_clean_up<T>(&self, sale: &Sale, done: Result<T, Failure>) -> Result<T, Failure> {
        if done.is_err() {
            // What is to be told is why the drill failed; what is left is found by --undo.
            let _left = clean_up(self.operations, sale.id).await;
        }
        done
    }

    async fn dead_letters(&self) -> Result<SaleId, Failure> {
        let sale = self.begin().await?;
        let caused = async {
            self.operations.drill_dead_letter(&sale).await?;
            let ends = Instant::now() + CAUSED_WITHIN;
            let filter = DeadFilter { sale_id: Some(sale.id), ..DeadFilter::default() };
            while self.operations.list_dead(&filter).await?.is_empty() {
                if Instant::now() > ends {
                    return Err(Failure::refused("no order-worker has set it aside for a minute"));
                }
                sleep(EACH / 5).await;
            }
            Ok(sale.id)
        };
        let caused = caused.await;
        self.or_clean_up(&sale, caused).await
    }

    async fn entries_lost(&self) -> Result<SaleId, Failure> {
        let sale = self.begin().await?;
        let caused = self.operations.drill_lost_entry(&sale).await;
        let caused = caused.map(|_| sale.id).map_err(Failure::from);
        self.or_clean_up(&sale, caused).await
    }

    async fn ledger_imbalance(&self) -> Result<SaleId, Failure> {
        let sale = self.begin().await?;
        let caused = self.operations.drill_imbalance(&sale).await;
        let caused = caused.map(|()| sale.id).map_err(Failure::from);
        self.or_clean_up(&sale, caused).await
    }

    async fn orders_waiting(&self) -> Result<SaleId, Failure> {
        let sale = self.begin().await?;
        let held = async {
            let order = self.operations.drill_held_order(&sale).await?;
            self.announce();
            let keep = async {
                loop {
                    sleep(self.settings.worker.reclaim_idle / 4).await;
                    if !self.operations.keep_drill_order(&order).await? {
                        return Err(Failure::refused("a worker has taken the drill's order over"));
                    }
                }
            };
            let kept: Result<(), Failure> = tokio::select! {
                kept = keep => kept,
                () = self.is_over() => Ok(()),
            };
            self.operations.hand_back_drill_order(&order).await?;
            kept
        };
        let held = held.await;
        clean_up(self.operations, sale.id).await?;
        held.map(|()| sale.id)
    }

    async fn gate_closed(&self, shop: &Shopfront) -> Result<SaleId, Failure> {
        let buyers = buyers(self.settings, &format!("{:x}", now_ms()), 1)?;
        let buyer = &buyers[0];
        let sale = self.begin().await?;
        let closed = async {
            // Nothing is closed for nothing: without a gateway nobody would be turned away.
            shop.press_once(sale.id, buyer).await?;
            let turned_away = async {
                self.announce();
                let press = async {
                    loop {
                        // What he is told is for the metrics to count.
                        let _told = shop.press_once(sale.id, buyer).await;
                        sleep(EACH).await;
                    }
                };
                tokio::select! {
                    never = press => never,
                    () = self.is_over() => {}
                }
            };
            self.operations.drill_closed_gate(&sale, turned_away).await?;
            Ok(sale.id)
        };
        let closed = closed.await;
        clean_up(self.operations, sale.id).await?;
        closed
    }

    /// The drill's time, or Ctrl-C.
    async fn is_over(&self) {
        tokio::select! {
            () = sleep(self.lasts) => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }

    /// Says what to do, and watches until it is seen; then the same for putting it right.
    async fn guide(
        &self,
        is_so: impl AsyncFn() -> Result<bool, Failure>,
    ) -> Result<Option<SaleId>, Failure> {
        if is_so().await? {
            return Err(Failure::refused(format!(
                "it is so already, and no drill: {}",
                self.drill.runbook()
            )));
        }
        self.operations.by(ACTOR).note_drill(self.drill.name).await?;
        let Drill { alerts, within, what, back, .. } = self.drill;
        say(what);
        self.watch(&is_so, true).await?;
        say(&format!("it is seen; {} fires within {within}: {}", alerts[0], self.drill.runbook()));
        say(&format!("in the end {back}"));
        self.watch(&is_so, false).await?;
        Ok(None)
    }

    async fn watch(
        &self,
        is_so: &impl AsyncFn() -> Result<bool, Failure>,
        wanted: bool,
    ) -> Result<(), Failure> {
        let ends = Instant::now() + self.lasts;
        while is_so().await? != wanted {
            if Instant::now() > ends {
                let what = if wanted { self.drill.what } else { self.drill.back };
                return Err(Failure::refused(format!(
                    "not seen within --for; still to do: {what}"
                )));
            }
            sleep(EACH).await;
        }
        Ok(())
    }

    async fn no_worker(&self) -> Result<bool, Failure> {
        Ok(!self.operations.has_worker().await?)
    }

    async fn aof_is_off(&self) -> Result<bool, Failure> {
        Ok(!self.operations.keeps_append_only_file().await?)
    }

    async fn may_evict(&self) -> Result<bool, Failure> {
        Ok(self.operations.may_evict().await?)
    }
}
