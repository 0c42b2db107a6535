//! Refusals from memory: what a sale was a moment ago, said without asking Redis, and never to a buyer
//! who has an order.
//!
//! *Sold out* is a lease. A script call that found the stock at 0 lets this gateway say so for a little
//! less than [`SOLD_OUT_LEASE`] from the *sending* of that call. While the stock is 0 no buyer can come
//! to the sale's records, so whoever is not among the buyers that were loaded for the same epoch and
//! the same count of returns has no order. Stock that rises from 0 is held back by the script for
//! [`SOLD_OUT_LEASE`]: by then no lease from before is left on any gateway.
//!
//! *Ended* is kept: the window of a published sale does not move back, and nobody comes to its records
//! any more. *Not started* needs no records: before the window opens there are none.
//!
//! The buyers are loaded without asking the gate, so what was loaded counts only if the sale is still
//! there afterwards, behind an open gate and in the epoch that was learned: memory that was lost, or
//! replaced, while it was being read shows fewer buyers than there are.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use flashsale_domain::{Partition, Refusal, SaleId, UserId};
use flashsale_storage_redis::{AdmissionBatch, Redis, RedisFault, SOLD_OUT_LEASE};
use tracing::warn;

/// Redis counts whole milliseconds, so stock may be held back for up to one less; and two clocks never
/// run quite alike.
const LEASE_MARGIN: Duration = Duration::from_millis(25);

/// The least pause between two loads of a sale's buyers; and a load is followed by a pause of so many
/// times its own length, so that a sale whose units come back all the time does not keep Redis busy.
const LOAD_PAUSE: Duration = Duration::from_millis(200);
const LOAD_PAUSE_FACTOR: u32 = 10;

/// What was learned of all sales. Shared by all threads; reading takes no lock.
pub(crate) struct Leases {
    redis: Redis,
    sales: ArcSwap<HashMap<SaleId, Arc<SaleLease>>>,
    hasher: RandomState,
}

/// What was learned of one sale.
#[derive(Default)]
struct SaleLease {
    lease: ArcSwapOption<Lease>,
    buyers: ArcSwapOption<Buyers>,
    loading: AtomicBool,
}

/// What may be said, and for how long.
struct Lease {
    refusal: Refusal,
    scope: Scope,
    /// `None` is for good.
    until: Option<Instant>,
}

/// While this is the same, nobody comes to the sale's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    SoldOut { epoch: i64, returns: i64 },
    Ended,
}

/// Fingerprints of everybody who had a record in the scope. Two buyers with one fingerprint do no harm:
/// both are asked for in Redis.
struct Buyers {
    scope: Scope,
    fingerprints: HashSet<u64>,
    load_again_at: Instant,
}

impl Leases {
    pub(crate) fn new(redis: Redis) -> Self {
        Self { redis, sales: ArcSwap::default(), hasher: RandomState::new() }
    }

    /// What can be said without asking Redis to whoever has no order.
    pub(crate) fn refusal(&self, sale: SaleId) -> Option<Refusal> {
        self.refuse_unless(sale, |_| false)
    }

    /// What can be said to a buyer without asking Redis.
    pub(crate) fn refuse(&self, sale: SaleId, user: &UserId) -> Option<Refusal> {
        let fingerprint = self.fingerprint(user.as_str());
        self.refuse_unless(sale, |buyers| buyers.fingerprints.contains(&fingerprint))
    }

    fn refuse_unless(
        &self,
        sale: SaleId,
        has_record: impl FnOnce(&Buyers) -> bool,
    ) -> Option<Refusal> {
        let sales = self.sales.load();
        let known = sales.get(&sale)?;
        let lease = known.lease.load();
        let lease = lease.as_deref()?;
        if lease.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let buyers = known.buyers.load();
        let buyers = buyers.as_deref().filter(|buyers| buyers.scope == lease.scope)?;
        (!has_record(buyers)).then_some(lease.refusal)
    }

    /// Learns from a script call that was sent at `sent`.
    pub(crate) fn learn(
        self: &Arc<Self>,
        partition: Partition,
        sale: SaleId,
        sent: Instant,
        batch: &AdmissionBatch,
    ) {
        // Stock that is there and held back is no reason for a lease: it ends with the holding back.
        let sold_out = batch.stock == 0 && batch.outcomes.contains(&Err(Refusal::SoldOut));
        let lease = if batch.outcomes.contains(&Err(Refusal::Ended)) {
            Lease { refusal: Refusal::Ended, scope: Scope::Ended, until: None }
        } else if sold_out {
            let scope = Scope::SoldOut { epoch: batch.epoch, returns: batch.returns };
            Lease {
                refusal: Refusal::SoldOut,
                scope,
                until: Some(sent + SOLD_OUT_LEASE - LEASE_MARGIN),
            }
        } else {
            return;
        };
        let known = self.known(sale);
        let scope = lease.scope;
        known.keep(lease);
        let epoch = batch.epoch;
        let now = Instant::now();
        let buyers = known.buyers.load();
        let loaded = buyers
            .as_deref()
            .is_some_and(|buyers| buyers.scope == scope || now < buyers.load_again_at);
        if !loaded && !known.loading.swap(true, Ordering::AcqRel) {
            let leases = Arc::clone(self);
            actix_web::rt::spawn(async move {
                if let Err(fault) = leases.load_buyers(partition, sale, epoch, scope, &known).await
                {
                    warn!(sale.id = %sale, error = %fault,
                        "the buyers of sale {sale} could not be loaded; Redis goes on being asked");
                }
                known.loading.store(false, Ordering::Release);
            });
        }
    }

    fn known(&self, sale: SaleId) -> Arc<SaleLease> {
        if let Some(known) = self.sales.load().get(&sale) {
            return Arc::clone(known);
        }
        let fresh = Arc::new(SaleLease::default());
        self.sales.rcu(|sales| {
            let mut sales = HashMap::clone(sales);
            sales.entry(sale).or_insert_with(|| Arc::clone(&fresh));
            sales
        });
        self.sales.load().get(&sale).map_or(fresh, Arc::clone)
    }

    /// Everybody who has a record. The scope was learned before this begins, and nobody comes to the
    /// records for as long as it lasts.
    async fn load_buyers(
        &self,
        partition: Partition,
        sale: SaleId,
        epoch: i64,
        scope: Scope,
        known: &SaleLease,
    ) -> Result<(), RedisFault> {
        let started = Instant::now();
        let mut fingerprints = HashSet::new();
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let page = self.redis.list_buyers(partition, sale, from).await?;
            fingerprints.extend(page.users.iter().map(|user| self.fingerprint(user)));
            cursor = page.next;
        }
        let account = self.redis.read_sale(partition, sale).await?;
        if !account.gate_open || account.sale.is_none_or(|sale| sale.epoch != epoch) {
            return Ok(());
        }
        let pause = (started.elapsed() * LOAD_PAUSE_FACTOR).max(LOAD_PAUSE);
        let load_again_at = Instant::now() + pause;
        known.buyers.store(Some(Arc::new(Buyers { scope, fingerprints, load_again_at })));
        Ok(())
    }

    fn fingerprint(&self, user: &str) -> u64 {
        self.hasher.hash_one(user)
    }
}

impl SaleLease {
    /// Threads learn side by side: what lasts longer stays, and what is for good stays for good.
    fn keep(&self, lease: Lease) {
        let lease = Arc::new(lease);
        self.lease.rcu(|now| match now.as_deref() {
            Some(Lease { until: None, .. }) => now.clone(),
            Some(Lease { until: Some(until), .. }) if lease.until.is_some_and(|u| u <= *until) => {
                now.clone()
            }
            _ => Some(Arc::clone(&lease)),
        });
    }
}
