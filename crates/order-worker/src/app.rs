//! The program: what it builds, how it runs, how it leaves.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use flashsale_bootstrap::settings::{Settings, WorkerSettings};
use flashsale_bootstrap::telemetry::PrometheusHandle;
use flashsale_bootstrap::{AdminServer, Quiet, Readiness, Shutdown, telemetry};
use flashsale_domain::Partition;
use flashsale_operations::start::StartCheck;
use flashsale_operations::{Operations, connect, pools};
use flashsale_storage_redis::Redis;
use flashsale_storage_sql::Database;
use rand::RngExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::announce::Announcer;
use crate::expire::Expiry;
use crate::hands::{Hands, Heartbeat};
use crate::help::HELP;
use crate::housekeeping::{CHECKS, Housekeeping, Progress};
use crate::in_flight::{Busy, process_all};
use crate::ledger_watch::LedgerWatch;
use crate::process::Processor;
use crate::reader::{LastPoll, Reader};
use crate::reclaim::Reclaimer;
use crate::recovery::Recovery;
use crate::relay::Relay;
use crate::shop::Shop;

/// How long closing the connections may take; nothing is in flight on them by then.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// An order-worker, ready to run.
pub struct OrderWorker {
    redis: Redis,
    database: Database,
    settings: WorkerSettings,
    consumer: String,
    readiness: Readiness,
    admin: AdminServer,
    announcer: Option<Announcer>,
    start: StartCheck,
}

impl OrderWorker {
    /// Connects to the database, prepares Redis and binds the admin port.
    ///
    /// # Errors
    /// When the database cannot be reached or is not migrated, the port cannot be bound, or in
    /// production something is unsafe. A Redis that is away is waited for later.
    pub async fn build(settings: &Settings, metrics: PrometheusHandle) -> anyhow::Result<Self> {
        telemetry::describe(HELP);
        pools::describe_them();
        let redis = connect::redis(settings)?;
        let database = connect::migrated_database(settings).await?;
        let readiness = Readiness::new();
        for check in CHECKS {
            readiness.register(check);
        }
        let start = StartCheck::begin(settings, &redis, &database, &readiness).await?;
        let admin = AdminServer::bind(settings.admin.listen, readiness.clone(), metrics, |_| ())?;
        let shop = Shop::of(&settings.webhooks)?;
        let connections = database.concurrent_writers(settings.database.max_connections);
        let (webhooks, mut settings) = (settings.webhooks.clone(), settings.worker.clone());
        settings.in_flight = settings.in_flight.min(connections);
        let announcer =
            shop.map(|shop| Announcer::new(database.clone(), shop, webhooks, settings.clone()));
        let consumer = consumer_name();
        Ok(Self { redis, database, settings, consumer, readiness, admin, announcer, start })
    }

    /// Where the admin port listens.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    /// Works until the shutdown is requested; then finishes what is in hand and leaves the group.
    ///
    /// # Errors
    /// When the admin listener fails, in production a Redis that was away at the start turns out to be
    /// unsafe, or work is still in hand at the drain deadline: it stays pending, and another worker
    /// takes it over.
    pub async fn run(self, shutdown: Shutdown) -> anyhow::Result<()> {
        let after_drain = Shutdown::new();
        let admin = tokio::spawn(self.admin.run(after_drain.clone()));
        let start = tokio::spawn(self.start.finish(shutdown.clone()));
        let give_up = CancellationToken::new();
        let progress = Progress::default();
        let mut pipelines = JoinSet::new();
        let mut readers = Vec::new();
        for partition in self.redis.partitions() {
            let last_poll = LastPoll::new();
            readers.push((partition, last_poll.clone()));
            let pipeline = Pipeline {
                redis: self.redis.clone(),
                database: self.database.clone(),
                partition,
                consumer: self.consumer.clone(),
                settings: self.settings.clone(),
                hands: Hands::default(),
                progress: progress.clone(),
            };
            pipelines.spawn(pipeline.run(last_poll, shutdown.clone(), give_up.clone()));
        }
        let operations = Operations::new(self.redis.clone(), self.database.clone());
        let relay = Relay {
            redis: self.redis.clone(),
            database: self.database.clone(),
            operations: operations.clone(),
            settings: self.settings.clone(),
        };
        let recovery = Recovery {
            redis: self.redis.clone(),
            database: self.database.clone(),
            settings: self.settings.clone(),
        };
        let expiry = Expiry { operations, settings: self.settings.clone() };
        let relay = tokio::spawn(relay.run(shutdown.clone()));
        let expiry = tokio::spawn(expiry.run(shutdown.clone()));
        let recovery = tokio::spawn(recovery.run(shutdown.clone()));
        let announcer =
            self.announcer.map(|announcer| tokio::spawn(announcer.run(shutdown.clone())));
        let housekeeping = Housekeeping {
            redis: self.redis.clone(),
            database: self.database.clone(),
            readers,
            settings: self.settings.clone(),
            readiness: self.readiness,
            progress: progress.clone(),
        };
        let housekeeping = tokio::spawn(housekeeping.run(after_drain.clone()));
        let ledgers = LedgerWatch {
            redis: self.redis.clone(),
            database: self.database.clone(),
            interval: self.settings.ledger_interval,
        };
        let ledgers = tokio::spawn(ledgers.run(shutdown.clone()));
        info!(consumer = %self.consumer, partitions = pipelines.len(), "order-worker is running");

        let mut left = 0;
        tokio::select! {
            biased;
            () = shutdown.requested() => {}
            // None of them ends before it is asked to. A process that serves only some of its
            // partitions looks alive and is not: it ends, and is started anew.
            ended = pipelines.join_next() => {
                error!(ended = ?ended.map(|ended| ended.is_ok()), "a partition's work broke off");
                left += 1;
                shutdown.request();
            }
        }
        info!("stopping: finishing what is in hand");
        let mut drain = async || {
            while let Some(ended) = pipelines.join_next().await {
                // One that panicked has not finished its work.
                left += ended.unwrap_or(1);
            }
        };
        if tokio::time::timeout(self.settings.drain_deadline, drain()).await.is_err() {
            give_up.cancel();
            drain().await;
        }

        for partition in self.redis.partitions() {
            if let Err(fault) = self.redis.leave_group(partition, &self.consumer).await {
                warn!(%partition, error = %fault, "the group could not be left");
            }
        }
        relay.await.context("the relay ended badly")?;
        expiry.await.context("the sweep of overdue orders ended badly")?;
        recovery.await.context("recovery ended badly")?;
        ledgers.await.context("the watch over the ledgers ended badly")?;
        if let Some(announcer) = announcer {
            announcer.await.context("the announcer ended badly")?;
        }
        after_drain.request();
        housekeeping.await.context("housekeeping ended badly")?;
        admin.await.context("the admin listener ended badly")??;
        match tokio::time::timeout(CLOSE_WITHIN, self.database.close()).await {
            Ok(closed) => closed?,
            Err(_) => warn!("the database does not answer; leaving its connections open"),
        }
        anyhow::ensure!(
            left == 0,
            "work was still in hand at the drain deadline ({left}); it stays pending"
        );
        start.await.context("the look at Redis ended badly")??;
        info!(committed = progress.committed(), redelivered = progress.redelivered(), "stopped");
        Ok(())
    }
}

/// One partition's way from stream to rows.
struct Pipeline {
    redis: Redis,
    database: Database,
    partition: Partition,
    consumer: String,
    settings: WorkerSettings,
    hands: Hands,
    progress: Progress,
}

impl Pipeline {
    /// Ends when reader and reclaimer have ended and the last batch is processed; what is still in
    /// hand then is handed back, so that a peer gets it at once. Returns how many entries that were.
    async fn run(
        self,
        last_poll: LastPoll,
        shutdown: Shutdown,
        give_up: CancellationToken,
    ) -> usize {
        // Room for one: it is there when a transaction ends, and the rest stays where every worker can
        // get it.
        let (batches, received) = mpsc::channel(1);
        let busy = Busy::new();
        let reader = Reader {
            redis: self.redis.clone(),
            partition: self.partition,
            consumer: self.consumer.clone(),
            settings: self.settings.clone(),
            batches: batches.clone(),
            hands: self.hands.clone(),
            busy: busy.clone(),
            last_poll,
        };
        let reclaimer = Reclaimer {
            redis: self.redis.clone(),
            partition: self.partition,
            consumer: self.consumer.clone(),
            settings: self.settings.clone(),
            database: self.database.clone(),
            hands: self.hands.clone(),
            busy: busy.clone(),
            batches,
            unwritten_log: Quiet::every_ten_seconds(),
        };
        let drained = Shutdown::new();
        let heartbeat = Heartbeat {
            redis: self.redis.clone(),
            partition: self.partition,
            consumer: self.consumer.clone(),
            settings: self.settings.clone(),
            hands: self.hands.clone(),
        };
        let processor = Processor::new(
            self.redis.clone(),
            self.database,
            self.partition,
            self.consumer.clone(),
            &self.settings,
            give_up,
        )
        .with_hands(self.hands.clone(), self.progress);
        let process = async {
            process_all(processor, received, self.settings.in_flight, busy).await;
            drained.request();
        };
        tokio::join!(
            reader.run(shutdown.clone()),
            reclaimer.run(shutdown),
            heartbeat.run(drained.clone()),
            process,
        );
        let in_hand = self.hands.all();
        if !in_hand.is_empty() {
            let handed_back =
                self.redis.hand_back_entries(self.partition, &self.consumer, &in_hand).await;
            match handed_back {
                Ok(()) => info!(partition = %self.partition, count = in_hand.len(),
                    "handed back what is not done"),
                Err(fault) => warn!(partition = %self.partition, error = %fault,
                    "what is not done could not be handed back; it waits for its idle time"),
            }
        }
        in_hand.len()
    }
}

/// Unique for each process, and telling where it ran: `host-pid-random`.
fn consumer_name() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    format!("{host}-{}-{:08x}", std::process::id(), rand::rng().random::<u32>())
}
