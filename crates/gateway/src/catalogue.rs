//! The catalogue: the published sales, in memory, followed from the database.
//!
//! The placing path reads only this. What it decides here is that a sale exists, where it lives and
//! how it decides; whether a buyer gets a unit is Redis's word, or the database's, alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use flashsale_bootstrap::{Readiness, Shutdown, clock};
use flashsale_domain::{Partition, Sale, SaleId, SaleMode, SaleState};
use flashsale_storage_redis::{Redis, RedisFault};
use flashsale_storage_sql::{Database, SqlFault};
use tokio::time::sleep;
use tracing::{info, warn};

pub(crate) const CHECK_CATALOGUE: &str = "catalogue";
pub(crate) const CHECK_REDIS: &str = "redis";

/// How far back each look at the database goes: a change is stamped before it is committed, and may
/// become visible after a later stamp was already seen.
const OVERLAP_MS: i64 = 30_000;

/// A sale as buyers see it.
#[derive(Debug, Clone)]
pub(crate) struct CatalogueSale {
    pub(crate) sale: Sale,
    /// Units left, a moment ago.
    pub(crate) stock_left: i64,
}

type Sales = BTreeMap<SaleId, CatalogueSale>;

/// The published sales, and Redis's clock. Shared by all threads; reading takes no lock.
#[derive(Default)]
pub(crate) struct Catalogue {
    sales: ArcSwap<Sales>,
    /// Redis's clock minus this machine's, in milliseconds.
    clock_offset_ms: AtomicI64,
}

impl Catalogue {
    /// A published, paused or closed sale.
    pub(crate) fn find(&self, id: SaleId) -> Option<CatalogueSale> {
        self.sales.load().get(&id).cloned()
    }

    /// Where a sale lives and how it decides: all that placing an order needs.
    pub(crate) fn route(&self, id: SaleId) -> Option<(SaleMode, Option<Partition>)> {
        self.sales.load().get(&id).map(|entry| (entry.sale.mode, entry.sale.partition))
    }

    /// Every sale that is not closed, newest first.
    pub(crate) fn list(&self) -> Vec<CatalogueSale> {
        let sales = self.sales.load();
        let open = sales.values().filter(|entry| entry.sale.state != SaleState::Closed);
        open.rev().cloned().collect()
    }

    /// Redis's clock, as last seen: milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> i64 {
        clock::now_ms() + self.clock_offset_ms.load(Ordering::Relaxed)
    }
}

/// Keeps the catalogue up to date.
pub(crate) struct CatalogueFollower {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) database: Database,
    pub(crate) redis: Redis,
    pub(crate) readiness: Readiness,
    pub(crate) refresh: Duration,
    /// The latest change seen, by the database's clock; 0 at first.
    pub(crate) seen_ms: i64,
}

impl CatalogueFollower {
    /// Reads every sale once, before anybody may ask: a sale that is not known yet would be told to
    /// buyers as one that does not exist.
    pub(crate) async fn load(&mut self) -> Result<(), SqlFault> {
        self.follow().await
    }

    /// Follows what changes, until the shutdown is requested.
    pub(crate) async fn run(mut self, shutdown: Shutdown) {
        let mut last_read = Instant::now();
        let mut failing = false;
        // What is known stays good while the database is away: queued sales go on, so a gateway that
        // has loaded once stays ready.
        self.readiness.set_ok(CHECK_CATALOGUE);
        while !shutdown.is_requested() {
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
            metrics::gauge!("flashsale_catalogue_age_seconds")
                .set(last_read.elapsed().as_secs_f64());
            match self.follow_redis().await {
                Ok(()) => self.readiness.set_ok(CHECK_REDIS),
                Err(fault) => self.readiness.set_failed(CHECK_REDIS, fault.to_string()),
            }
            tokio::select! {
                () = sleep(self.refresh) => {}
                () = shutdown.requested() => {}
            }
        }
    }

    /// Takes over what changed in the database since the last look.
    async fn follow(&mut self) -> Result<(), SqlFault> {
        let since_ms = (self.seen_ms - OVERLAP_MS).max(0);
        let changed = self.database.list_sales_changed(since_ms).await?;
        let known = self.catalogue.sales.load();
        let mut sales = Sales::clone(&known);
        for change in changed {
            self.seen_ms = change.changed_ms.max(self.seen_ms);
            let id = change.sale.id;
            let stock_left =
                sales.get(&id).map_or(change.sale.stock_left, |entry| entry.stock_left);
            sales.insert(id, CatalogueSale { sale: change.sale, stock_left });
        }
        // A direct sale's stock is the database's.
        let direct: Vec<SaleId> = sales
            .values()
            .filter(|entry| {
                entry.sale.mode == SaleMode::Direct && entry.sale.state != SaleState::Closed
            })
            .map(|entry| entry.sale.id)
            .collect();
        for id in direct {
            if let (Some(sale), Some(entry)) =
                (self.database.find_sale(id).await?, sales.get_mut(&id))
            {
                entry.stock_left = sale.stock_left;
            }
        }
        self.catalogue.sales.store(Arc::new(sales));
        Ok(())
    }

    /// Takes over Redis's clock and the stock of the queued sales.
    async fn follow_redis(&self) -> Result<(), RedisFault> {
        let before = clock::now_ms();
        let redis_ms = self.redis.time_ms().await?;
        let middle = i64::midpoint(before, clock::now_ms());
        self.catalogue.clock_offset_ms.store(redis_ms - middle, Ordering::Relaxed);

        let known = self.catalogue.sales.load();
        let mut by_home: HashMap<Partition, Vec<SaleId>> = HashMap::new();
        for entry in known.values().filter(|entry| entry.sale.state != SaleState::Closed) {
            if let Some(partition) = entry.sale.partition {
                by_home.entry(partition).or_default().push(entry.sale.id);
            }
        }
        let mut sales = Sales::clone(&known);
        for (partition, ids) in by_home {
            let stock = self.redis.list_stock(partition, &ids).await?;
            for (id, stock) in ids.iter().zip(stock) {
                if let (Some(stock), Some(entry)) = (stock, sales.get_mut(id)) {
                    entry.stock_left = stock;
                }
            }
        }
        self.catalogue.sales.store(Arc::new(sales));
        Ok(())
    }
}
