//! The catalogue: the published sales, in memory, followed from the database.
//!
//! The placing path reads only this. What it decides here is that a sale exists, where it lives and
//! how it decides; whether a buyer gets a unit is Redis's word, or the database's, alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use flashsale_bootstrap::telemetry::count;
use flashsale_bootstrap::{Readiness, Shutdown, clock};
use flashsale_domain::{Partition, Sale, SaleId, SaleMode, SaleState};
use flashsale_operations::pools;
use flashsale_storage_redis::{Redis, RedisFault};
use flashsale_storage_sql::{Database, SqlFault};
use tokio::time::sleep;
use tracing::{info, warn};

pub(crate) const CHECK_CATALOGUE: &str = "catalogue";
pub(crate) const CHECK_REDIS: &str = "redis";

/// How far back each look at the database goes: a change is stamped before it is committed, and may
/// become visible after a later stamp was already seen.
const OVERLAP_MS: i64 = 30_000;

/// How far before its start a sale is refused from memory; a server that takes over after a failover
/// may have a clock that is ahead of the old one's.
const START_MARGIN_MS: i64 = 1000;

/// How far an id may lie behind the end of its sale's window: the script gives none that is more than
/// a minute ahead of the clock, and a clock may be set.
const ID_AHEAD_MAX_MS: i64 = 120_000;

/// A sale as buyers see it.
#[derive(Debug, Clone)]
pub(crate) struct CatalogueSale {
    pub(crate) sale: Sale,
    /// Units left, a moment ago.
    pub(crate) stock_left: i64,
}

/// Where an order for a sale goes.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) mode: SaleMode,
    pub(crate) partition: Option<Partition>,
    /// Only a rehearsal's buyers are admitted.
    pub(crate) rehearsal: bool,
}

type Sales = BTreeMap<SaleId, CatalogueSale>;

/// The published sales, and Redis's clock. Shared by all threads; reading takes no lock. Two tasks
/// write to it, so every write is a change of what is there, with no wait between reading and writing.
#[derive(Default)]
pub(crate) struct Catalogue {
    sales: ArcSwap<Sales>,
    /// The latest change seen, by the database's clock; 0 at first.
    seen_ms: AtomicI64,
    clock: RedisClock,
}

/// Redis's clock, as last seen. It is carried on by this machine's monotonic clock, so that a step of
/// the wall clock changes nothing.
struct RedisClock {
    started: Instant,
    /// What it showed at `started`: milliseconds since the Unix epoch.
    at_start_ms: AtomicI64,
    /// Whether it was ever asked: until then the wall clock stands in.
    is_known: AtomicBool,
}

impl Default for RedisClock {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            at_start_ms: AtomicI64::new(clock::now_ms()),
            is_known: AtomicBool::new(false),
        }
    }
}

impl RedisClock {
    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    fn now_ms(&self) -> i64 {
        self.at_start_ms.load(Ordering::Relaxed) + self.elapsed_ms()
    }

    /// Takes over what Redis showed in the middle between `asked_ms` and now. An answer that took
    /// longer than the margin allows for is passed over: when it was given is anybody's guess.
    fn set(&self, redis_ms: i64, asked_ms: i64) {
        if self.elapsed_ms() - asked_ms > START_MARGIN_MS {
            return;
        }
        let middle = i64::midpoint(asked_ms, self.elapsed_ms());
        self.at_start_ms.store(redis_ms - middle, Ordering::Relaxed);
        self.is_known.store(true, Ordering::Relaxed);
    }
}

impl Catalogue {
    /// A published, paused or closed sale.
    pub(crate) fn find(&self, id: SaleId) -> Option<CatalogueSale> {
        self.sales.load().get(&id).cloned()
    }

    /// The same, if it is one for everybody: a rehearsal's sale is shown to nobody.
    pub(crate) fn find_public(&self, id: SaleId) -> Option<CatalogueSale> {
        self.find(id).filter(|entry| !entry.sale.rehearsal)
    }

    /// Where a sale lives and how it decides: all that placing an order needs.
    pub(crate) fn route(&self, id: SaleId) -> Option<Route> {
        self.sales.load().get(&id).map(|CatalogueSale { sale, .. }| Route {
            mode: sale.mode,
            partition: sale.partition,
            rehearsal: sale.rehearsal,
        })
    }

    /// Whether only a rehearsal's buyers are admitted.
    pub(crate) fn is_rehearsal(&self, id: SaleId) -> bool {
        self.sales.load().get(&id).is_some_and(|entry| entry.sale.rehearsal)
    }

    /// The sales that live in a partition and may have admitted an order whose id bears `ms`.
    pub(crate) fn homed_at(&self, partition: Partition, ms: u64) -> Vec<SaleId> {
        let sales = self.sales.load();
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        let may_have = |sale: &&Sale| {
            let (opens, closes) = (sale.window.opens_ms(), sale.window.closes_ms());
            sale.partition == Some(partition) && opens <= ms && ms < closes + ID_AHEAD_MAX_MS
        };
        sales.values().map(|entry| &entry.sale).filter(may_have).map(|sale| sale.id).collect()
    }

    /// Every sale that is not closed, newest first; none of a rehearsal.
    pub(crate) fn list(&self) -> Vec<CatalogueSale> {
        let sales = self.sales.load();
        let is_shown = |sale: &Sale| sale.state != SaleState::Closed && !sale.rehearsal;
        sales.values().rev().filter(|entry| is_shown(&entry.sale)).cloned().collect()
    }

    /// Takes over what changed in the database since the last look.
    pub(crate) async fn take_over_changes(&self, database: &Database) -> Result<(), SqlFault> {
        let since_ms = (self.seen_ms.load(Ordering::Relaxed) - OVERLAP_MS).max(0);
        let changed = database.list_sales_changed(since_ms).await?;
        let Some(seen_ms) = changed.iter().map(|change| change.changed_ms).max() else {
            return Ok(());
        };
        self.change(|sales| {
            for change in &changed {
                let sale = change.sale.clone();
                let stock_left =
                    sales.get(&sale.id).map_or(sale.stock_left, |entry| entry.stock_left);
                sales.insert(sale.id, CatalogueSale { sale, stock_left });
            }
        });
        self.seen_ms.fetch_max(seen_ms, Ordering::Relaxed);
        Ok(())
    }

    /// Takes over how many units are left.
    fn set_stock(&self, stock: &[(SaleId, i64)]) {
        self.change(|sales| {
            for (id, stock_left) in stock {
                if let Some(entry) = sales.get_mut(id) {
                    entry.stock_left = *stock_left;
                }
            }
        });
        let sales = self.sales.load();
        // A gauge stays for as long as the gateway runs, and a rehearsal leaves nothing behind that it
        // need not.
        let is_shown = |id| sales.get(id).is_some_and(|entry| !entry.sale.rehearsal);
        for (id, stock_left) in stock.iter().filter(|(id, _)| is_shown(id)) {
            metrics::gauge!("flashsale_stock_left", "sale" => id.to_string())
                .set(count(*stock_left));
        }
    }

    fn change(&self, change: impl Fn(&mut Sales)) {
        self.sales.rcu(|known| {
            let mut sales = Sales::clone(known);
            change(&mut sales);
            sales
        });
    }

    /// Redis's clock, as last seen: milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Whether a queued, published sale's window opens so much later that no error of the clock could matter.
    /// The edge itself is for the script to decide, and so is a sale that was paused or closed before.
    pub(crate) fn is_long_before_start(&self, id: SaleId) -> bool {
        self.clock.is_known.load(Ordering::Relaxed)
            && self.sales.load().get(&id).is_some_and(|entry| {
                entry.sale.state == SaleState::Published
                    && entry.sale.partition.is_some()
                    && self.now_ms() + START_MARGIN_MS < entry.sale.window.opens_ms()
            })
    }
}

/// Keeps the catalogue up to date.
pub(crate) struct CatalogueFollower {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) database: Database,
    pub(crate) redis: Redis,
    pub(crate) readiness: Readiness,
    pub(crate) refresh: Duration,
}

impl CatalogueFollower {
    /// Reads every sale once, before anybody may ask: a sale that is not known yet would be told to
    /// buyers as one that does not exist.
    pub(crate) async fn load(&self) -> Result<(), SqlFault> {
        self.follow().await
    }

    /// Follows what changes, until the shutdown is requested.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        // A look that hangs in a store that says nothing holds no shutdown up.
        tokio::select! {
            () = self.follow_for_good() => {}
            () = shutdown.requested() => {}
        }
    }

    async fn follow_for_good(&self) {
        let mut last_read = Instant::now();
        let mut failing = false;
        // What is known stays good while the database is away: queued sales go on, so a gateway that
        // has loaded once stays ready.
        self.readiness.set_ok(CHECK_CATALOGUE);
        loop {
            match self.follow().await {
                Ok(()) => {
                    if failing {
                        info!("the catalogue can be read again");
                    }
                    failing = false;
                    last_read = Instant::now();
                }
                Err(fault) => {
                    if !failing {
                        warn!(error = %fault, "the catalogue cannot be read; keeping what is known");
                    }
                    failing = true;
                }
            }
            pools::show(&self.redis, &self.database);
            metrics::gauge!("flashsale_catalogue_age_seconds")
                .set(last_read.elapsed().as_secs_f64());
            match self.follow_redis().await {
                Ok(()) => self.readiness.set_ok(CHECK_REDIS),
                Err(fault) => self.readiness.set_failed(CHECK_REDIS, fault.to_string()),
            }
            sleep(self.refresh).await;
        }
    }

    /// Takes over what changed in the database since the last look.
    async fn follow(&self) -> Result<(), SqlFault> {
        self.catalogue.take_over_changes(&self.database).await?;
        // A direct sale's stock is the database's.
        let known = self.catalogue.sales.load_full();
        let direct = known
            .values()
            .filter(|entry| {
                entry.sale.mode == SaleMode::Direct && entry.sale.state != SaleState::Closed
            })
            .map(|entry| entry.sale.id);
        let mut stock = Vec::new();
        for id in direct {
            if let Some(sale) = self.database.find_sale(id).await? {
                stock.push((id, sale.stock_left));
            }
        }
        self.catalogue.set_stock(&stock);
        Ok(())
    }

    /// Takes over Redis's clock and the stock of the queued sales.
    async fn follow_redis(&self) -> Result<(), RedisFault> {
        let asked_ms = self.catalogue.clock.elapsed_ms();
        let redis_ms = self.redis.time_ms().await?;
        self.catalogue.clock.set(redis_ms, asked_ms);

        let known = self.catalogue.sales.load_full();
        let mut by_home: HashMap<Partition, Vec<SaleId>> = HashMap::new();
        for entry in known.values().filter(|entry| entry.sale.state != SaleState::Closed) {
            if let Some(partition) = entry.sale.partition {
                by_home.entry(partition).or_default().push(entry.sale.id);
            }
        }
        let mut stock = Vec::new();
        for (partition, ids) in by_home {
            let left = self.redis.list_stock(partition, &ids).await?;
            stock.extend(ids.into_iter().zip(left).filter_map(|(id, left)| Some((id, left?))));
        }
        self.catalogue.set_stock(&stock);
        Ok(())
    }
}
