//! Who follows an order on this gateway, and how they are told.
//!
//! However many follow, there is one connection that listens for changed orders, and one look at the
//! database for all of them at once. A message that is lost costs its followers a moment: everything
//! that is followed is looked at again every second.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::telemetry::count;
use flashsale_domain::{Order, OrderId};
use flashsale_storage_redis::{ChangedOrders, Redis};
use flashsale_storage_sql::Database;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

/// How often everything that is followed is looked at, message or not.
const RECHECK: Duration = Duration::from_secs(1);
/// The pause before a subscription that broke off is made again.
const RESUBSCRIBE: Duration = Duration::from_millis(100);
/// A subscription that was silent for so long may hang on a connection that is gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How many orders that are no rows are looked for one by one, at each look; the next look goes on
/// from there, so that everybody has his turn, however many wait.
const SINGLE_LOOKS_MAX: usize = 64;

/// What is known of a followed order.
#[derive(Debug, Clone, Default)]
struct Word {
    /// The row; `None` before there is one.
    order: Option<Arc<Order>>,
    /// Counts the times at which a follower should look for himself.
    looks: u64,
}

/// The followed orders. Shared by all threads.
#[derive(Default)]
pub(crate) struct Followers {
    followed: Mutex<HashMap<OrderId, watch::Sender<Word>>>,
}

/// One who follows an order, until this is dropped.
pub(crate) struct Following {
    followers: Arc<Followers>,
    id: OrderId,
    word: Option<watch::Receiver<Word>>,
}

/// What a follower hears.
pub(crate) enum News {
    /// The order's row is this now.
    Row(Arc<Order>),
    /// It is no row; what it is must be looked for.
    Look,
}

impl Followers {
    /// Follows an order. Look at it after this, not before: what changes in between is heard.
    pub(crate) fn follow(self: &Arc<Self>, id: OrderId) -> Following {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let word = followed.entry(id).or_default().subscribe();
        Following { followers: Arc::clone(self), id, word: Some(word) }
    }

    fn ids(&self) -> Vec<OrderId> {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.keys().copied().collect()
    }

    fn among(&self, ids: &[OrderId]) -> Vec<OrderId> {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().copied().filter(|id| followed.contains_key(id)).collect()
    }

    fn tell(&self, order: Order) {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = followed.get(&order.id) {
            sender.send_if_modified(|word| {
                let is_news = word.order.as_deref() != Some(&order);
                if is_news {
                    word.order = Some(Arc::new(order));
                }
                is_news
            });
        }
    }

    fn ask_to_look(&self, ids: &[OrderId]) {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            if let Some(sender) = followed.get(id) {
                sender.send_modify(|word| word.looks += 1);
            }
        }
    }
}

impl Following {
    /// Waits for news. Safe to drop at any moment.
    pub(crate) async fn news(&mut self) -> News {
        let word = self.word.as_mut().expect("it is taken only when this is dropped");
        if word.changed().await.is_err() {
            // The sender lives in the map for as long as somebody follows.
            std::future::pending::<()>().await;
        }
        match &word.borrow_and_update().order {
            Some(order) => News::Row(Arc::clone(order)),
            None => News::Look,
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut followed = self.followers.followed.lock().unwrap_or_else(PoisonError::into_inner);
        self.word.take();
        if followed.get(&self.id).is_some_and(|sender| sender.receiver_count() == 0) {
            followed.remove(&self.id);
        }
    }
}

/// Keeps followers informed.
pub(crate) struct FollowersFeed {
    followers: Arc<Followers>,
    redis: Redis,
    database: Database,
    /// The last order that was looked for one by one.
    looked_up_to: Option<OrderId>,
}

impl FollowersFeed {
    pub(crate) fn new(followers: Arc<Followers>, redis: Redis, database: Database) -> Self {
        Self { followers, redis, database, looked_up_to: None }
    }

    /// Informs, until the shutdown is requested.
    pub(crate) async fn run(mut self, shutdown: Shutdown) {
        tokio::select! {
            () = self.inform() => {}
            () = shutdown.requested() => {}
        }
    }

    async fn inform(&mut self) {
        let mut failing = false;
        loop {
            match self.redis.changed_orders().await {
                Ok(changes) => {
                    if failing {
                        info!("changed orders are heard of again");
                    }
                    failing = false;
                    self.listen(changes).await;
                    sleep(RESUBSCRIBE).await;
                }
                Err(fault) => {
                    if !failing {
                        warn!(error = %fault, "changed orders are not heard of; looking instead");
                    }
                    failing = true;
                    self.look_at_all().await;
                    sleep(RECHECK).await;
                }
            }
        }
    }

    /// Until the subscription ends, or has been silent for so long that it may be dead.
    async fn listen(&mut self, mut changes: ChangedOrders) {
        let mut recheck = interval(RECHECK);
        recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                ids = changes.next() => {
                    let Some(ids) = ids else { return };
                    heard = Instant::now();
                    self.look_at(self.followers.among(&ids)).await;
                }
                _ = recheck.tick() => {
                    if heard.elapsed() > SILENCE_MAX {
                        return;
                    }
                    self.look_at_all().await;
                }
            }
        }
    }

    async fn look_at_all(&mut self) {
        let ids = self.followers.ids();
        metrics::gauge!("flashsale_followed_orders").set(count(ids.len()));
        self.look_at(ids).await;
    }

    async fn look_at(&mut self, mut ids: Vec<OrderId>) {
        if ids.is_empty() {
            return;
        }
        // While the database is away nobody is told anything; the next look is a second away.
        let Ok(rows) = self.database.find_orders(&ids).await else { return };
        let found: HashSet<OrderId> = rows.iter().map(|row| row.order.id).collect();
        for row in rows {
            self.followers.tell(row.order);
        }
        ids.retain(|id| !found.contains(id));
        // Those without a row are on the stream, dead or lost.
        ids.sort_unstable();
        let turn = ids.partition_point(|id| Some(*id) <= self.looked_up_to);
        ids.rotate_left(turn);
        ids.truncate(SINGLE_LOOKS_MAX);
        if let Some(last) = ids.last() {
            self.looked_up_to = Some(*last);
        }
        self.followers.ask_to_look(&ids);
    }
}
