//! The deployment under torture: private servers, our release programs, and access to both stores.
//!
//! It is kept over many rounds, as a real one would be. What ends here without having been told to is
//! noticed: only a worker that was started while PostgreSQL was away may give up, and is started
//! again, as an orchestrator would do it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flashsale_bootstrap::{Settings, clock};
use flashsale_domain::{EntryId, LatePayment, OrderId, Partition};
use flashsale_operations::{Operations, connect};
use flashsale_storage_redis::{GateStatus, Keys, Redis};
use flashsale_storage_sql::Database;
use flashsale_test_support::{
    PostgresServer, Program, RedisServer, SentinelGroup, TempDir, binary, free_port, temp_dir,
    try_eventually,
};
use flashsale_webhooks::Secrets;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use tokio::task::block_in_place;

use crate::Kind;
use crate::clocks::{Clock, Clocks};
use crate::damage::Poison;
use crate::plan::Plan;
use crate::raw_redis::RawRedis;
use crate::raw_sql::RawSql;

/// How many order-workers.
pub(crate) const WORKERS: usize = 3;

/// Partitions; a sale lives in one, and a killed Redis takes both.
const PARTITIONS: &str = "2";

/// What a worker that is gone held goes to others after this.
const RECLAIM_IDLE: Duration = Duration::from_millis(1_200);
/// `worker.reclaim_idle` must be more than twice this.
const STATEMENT_TIMEOUT: &str = "500ms";
/// How long what a leaving worker has in hand may take ...
const DRAIN_DEADLINE: &str = "3s";
/// ... and when it must have ended at the latest.
pub(crate) const LEAVES_WITHIN: Duration = Duration::from_secs(10);

/// For whatever should happen soon: only a broken program takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A worker that never left cleanly stays in the group as a consumer until it was not seen for four
/// reclaim periods; the margin is for the housekeeping that finds it.
const CONSUMER_GONE_AFTER: Duration = Duration::from_secs(15);

/// What `salectl` says while somebody else rebuilds a partition.
const REBUILD_RUNNING: &str = "is being rebuilt by somebody else";

const PREFIX: &str = "torture";
const SECRET: &str = "a-secret-of-the-fault-drills-0123456789";
/// What the payment provider signs with.
const PAYMENT_SECRET: &str = "a-payment-secret-of-the-fault-drills";
/// What a unit costs, in fen.
pub(crate) const PRICE: i64 = 1_990;

/// The name under which sentinels know the primary.
const SERVICE: &str = "drills";

/// How a deployment is built; a kind of fault may need another one than most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// One Redis.
    Plain,
    /// Redis with a replica, behind three sentinels.
    Sentinels,
    /// One Redis; the programs' clocks can be set.
    Clocks,
}

impl Build {
    /// What a round needs.
    pub(crate) fn of(plan: &Plan) -> Self {
        if plan.has(Kind::SentinelFailover) {
            Self::Sentinels
        } else if plan.has(Kind::ClockStep) {
            Self::Clocks
        } else {
            Self::Plain
        }
    }
}

/// Who takes over from the primary, and who decides it.
pub(crate) struct Standby {
    pub(crate) sentinels: SentinelGroup,
    pub(crate) replica: RedisServer,
}

/// Servers, programs and access. What is declared first is stopped first.
pub struct Deployment {
    pub(crate) gateway: Member,
    pub(crate) workers: Vec<Worker>,
    clocks: Option<Clocks>,
    standby: Option<Standby>,
    pub(crate) redis_server: RedisServer,
    pub(crate) postgres: PostgresServer,
    pub(crate) raw: RawRedis,
    pub(crate) sql: RawSql,
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) operations: Operations,
    pub(crate) http: reqwest::Client,
    pub(crate) payment_secrets: Secrets,
    /// Whether PostgreSQL is away by our hand.
    pub(crate) postgres_is_down: bool,
    /// How many orders the database had soon after its copy was kept.
    pub(crate) rows_at_copy: i64,
    /// Every bad entry that a drill appended here.
    pub(crate) poison: BTreeMap<(Partition, EntryId), Poison>,
    /// Every entry that a drill took from a stream here.
    pub(crate) deleted: BTreeSet<OrderId>,
    /// The logs of programs that ended in this round.
    pub(crate) ended_logs: Vec<(String, String)>,
    /// When a worker ended without leaving the group.
    consumers_left_behind: Vec<Instant>,
    settings: Vec<(&'static str, String)>,
    directory: TempDir,
}

/// A program that listens.
pub(crate) struct Member {
    pub(crate) program: Program,
    /// Where clocks can be set.
    pub(crate) clock: Option<Clock>,
    http: u16,
    admin: u16,
}

/// An order-worker's place.
pub(crate) struct Worker {
    pub(crate) member: Member,
    /// By SIGSTOP.
    pub(crate) is_frozen: bool,
    /// PostgreSQL was away at some time while it started.
    started_in_an_outage: bool,
    number: u32,
}

impl Deployment {
    /// Starts everything, and waits until it is ready.
    ///
    /// # Errors
    /// When something does not start.
    pub(crate) async fn start(build: Build) -> anyhow::Result<Self> {
        let (redis_server, standby, postgres) = block_in_place(|| {
            // No background fsync: while one runs, everysec may answer before it has written, and
            // kill -9 would lose what buyers were told. What is written survives the process.
            let options = RedisServer::builder().append_only(true).option("appendfsync", "no");
            let redis = options.clone().try_start()?;
            let standby = match build {
                Build::Plain | Build::Clocks => None,
                Build::Sentinels => {
                    let replica = redis.start_replica(options);
                    let sentinels = SentinelGroup::try_start(SERVICE, &redis, 1)?;
                    Some(Standby { sentinels, replica })
                }
            };
            anyhow::Ok((redis, standby, PostgresServer::builder().try_start()?))
        })?;
        let redis_url =
            standby.as_ref().map_or_else(|| redis_server.url(), |standby| standby.sentinels.url());
        let database_url = postgres.create_database();
        let settings: Vec<(&'static str, String)> = vec![
            ("FLASHSALE__REDIS__URL", redis_url),
            ("FLASHSALE__REDIS__PREFIX", PREFIX.into()),
            ("FLASHSALE__REDIS__PARTITIONS", PARTITIONS.into()),
            ("FLASHSALE__REDIS__RESPONSE_TIMEOUT", "1s".into()),
            ("FLASHSALE__DATABASE__URL", database_url.clone()),
            ("FLASHSALE__DATABASE__STATEMENT_TIMEOUT", STATEMENT_TIMEOUT.into()),
            ("FLASHSALE__DATABASE__CONNECT_TIMEOUT", "2s".into()),
            ("FLASHSALE__AUTH__JWT_SECRET", SECRET.into()),
            ("FLASHSALE__PAYMENT__WEBHOOK_SECRET", PAYMENT_SECRET.into()),
            ("FLASHSALE__CATALOGUE__REFRESH", "20ms".into()),
            ("FLASHSALE__WORKER__REBUILD", "auto".into()),
            ("FLASHSALE__WORKER__BATCH", "40".into()),
            ("FLASHSALE__WORKER__BLOCK", "300ms".into()),
            ("FLASHSALE__WORKER__TRIM_INTERVAL", "200ms".into()),
            ("FLASHSALE__WORKER__RETRY_MIN", "20ms".into()),
            ("FLASHSALE__WORKER__RETRY_MAX", "200ms".into()),
            ("FLASHSALE__WORKER__RECLAIM_IDLE", format!("{}ms", RECLAIM_IDLE.as_millis())),
            ("FLASHSALE__WORKER__DRAIN_DEADLINE", DRAIN_DEADLINE.into()),
            ("FLASHSALE__LOG__FORMAT", "human".into()),
        ];
        let ours = settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        let parsed = Settings::from_sources(None, ours).context("the drills' settings")?;
        let redis = connect::redis(&parsed)?;
        let database = connect::database(&parsed).await?;
        database.migrate().await?;

        let clocks = (build == Build::Clocks).then(Clocks::find).transpose()?;
        let gateway = Member::start("gateway", &settings, clocks.as_ref())?;
        let workers = (1..)
            .take(WORKERS)
            .map(|number| Worker::start(number, &settings, clocks.as_ref(), false))
            .collect::<anyhow::Result<_>>()?;
        let mut deployment = Self {
            gateway,
            workers,
            clocks,
            raw: RawRedis::new(&redis_server.url(), Keys::new(PREFIX))?,
            sql: RawSql::connect(&database_url).await?,
            standby,
            redis_server,
            postgres,
            operations: Operations::new(redis.clone(), database.clone()),
            redis,
            database,
            http: reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?,
            payment_secrets: Secrets::parse(PAYMENT_SECRET)?,
            postgres_is_down: false,
            rows_at_copy: 0,
            poison: BTreeMap::new(),
            deleted: BTreeSet::new(),
            ended_logs: Vec::new(),
            consumers_left_behind: Vec::new(),
            settings,
            directory: temp_dir("torture"),
        };
        deployment.wait_until_ready().await?;
        Ok(deployment)
    }

    /// The replica and its sentinels.
    pub(crate) fn standby(&self) -> anyhow::Result<&Standby> {
        self.standby.as_ref().context("this deployment has no sentinels")
    }

    /// The drills' own access to the Redis on this port.
    pub(crate) fn raw_of(&self, port: u16) -> anyhow::Result<RawRedis> {
        RawRedis::new(&format!("redis://127.0.0.1:{port}"), Keys::new(PREFIX))
    }

    /// Every partition.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        self.redis.partitions()
    }

    /// A path for a file of a round.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates and publishes a sale, as an operator does, and waits until the gateway shows it.
    pub(crate) async fn open_sale(
        &self,
        stock: u32,
        late_payment: LatePayment,
    ) -> anyhow::Result<i64> {
        let (stock, price) = (stock.to_string(), PRICE.to_string());
        let create = ["sale", "create", "--title", "Drill", "--stock", &stock, "--price", &price];
        let more = ["--opens", "now", "--closes", "+1h", "--late-payment", late_payment.as_str()];
        let id = self.salectl(&[&create[..], &more].concat())?;
        // A worker may be loading the partition just now; whoever is told so tries again.
        let published = try_eventually(SOON, "the sale is published", async || {
            match self.salectl(&["sale", "publish", &id]) {
                Err(error) if error.to_string().contains(REBUILD_RUNNING) => Err(error),
                other => Ok(other),
            }
        });
        published.await.map_err(anyhow::Error::msg)??;
        let url = format!("{}/api/v1/sales/{id}", self.gateway.url());
        let shown = try_eventually(SOON, "the gateway shows the sale", async || {
            self.http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success())
        });
        shown.await.map_err(anyhow::Error::msg)?;
        id.parse().context("salectl did not print an id")
    }

    /// A buyer's token.
    pub(crate) fn token(&self, buyer: &str) -> anyhow::Result<String> {
        Self::token_for(buyer, 3_600)
    }

    /// One that ends in so many seconds, or ended so long ago.
    fn token_for(buyer: &str, seconds: i64) -> anyhow::Result<String> {
        let claims = json!({ "sub": buyer, "exp": clock::now_ms() / 1_000 + seconds });
        Ok(encode(&Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes())?)?)
    }

    /// Whether the gateway, by its clock, takes a token that ends in so many seconds.
    pub(crate) async fn takes_token(&self, seconds: i64) -> anyhow::Result<bool> {
        let url = format!("{}/api/v1/orders", self.gateway.url());
        let token = Self::token_for("who-asks-for-the-time", seconds)?;
        Ok(self.http.get(url).bearer_auth(token).send().await?.status().is_success())
    }

    fn salectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        block_in_place(|| {
            let program = self.run("salectl", arguments)?;
            let status = program.wait_exit(SOON).context("salectl does not end")?;
            let printed = program.log().trim_end().to_owned();
            ensure!(status.success(), "salectl {}: {printed}", arguments.join(" "));
            Ok(printed)
        })
    }

    /// Starts a program of ours with the settings of this deployment.
    pub(crate) fn run(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Program> {
        Program::builder(binary(name)).envs(&self.settings).args(arguments).try_start()
    }

    /// Puts a new worker in the place of one that has ended.
    pub(crate) fn replace_worker(
        &mut self,
        place: usize,
        left_cleanly: bool,
    ) -> anyhow::Result<()> {
        let number = self.workers.iter().map(|worker| worker.number).max().unwrap_or(0) + 1;
        let clocks = self.clocks.as_ref();
        let worker = Worker::start(number, &self.settings, clocks, self.postgres_is_down)?;
        let old = std::mem::replace(&mut self.workers[place], worker);
        if !left_cleanly {
            self.consumers_left_behind.push(Instant::now());
        }
        self.ended_logs.push((old.name(), old.member.program.log()));
        Ok(())
    }

    /// Starts PostgreSQL again after a stop.
    pub(crate) fn start_postgres(&mut self) {
        block_in_place(|| self.postgres.start_again());
        self.postgres_is_down = false;
    }

    /// Stops PostgreSQL.
    pub(crate) fn stop_postgres(&mut self) {
        self.postgres_is_down = true;
        for worker in &mut self.workers {
            // One that is still connecting may give up, and may be started again.
            worker.started_in_an_outage |= !worker.member.has_logged("order-worker is running");
        }
        block_in_place(|| self.postgres.stop());
    }

    /// Waits until every program answers that it is ready. A worker that gave up because PostgreSQL
    /// was away when it started is started again; any other end is an error.
    pub(crate) async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let ends = Instant::now() + SOON;
        loop {
            ensure!(self.gateway.program.exit_status().is_none(), "the gateway ended by itself");
            for place in 0..self.workers.len() {
                let worker = &self.workers[place];
                if let Some(status) = worker.member.program.exit_status() {
                    ensure!(
                        worker.started_in_an_outage,
                        "{} ended by itself ({status}): {}",
                        worker.name(),
                        worker.member.program.log()
                    );
                    self.replace_worker(place, true)?;
                }
            }
            let mut unready = Vec::new();
            let workers = self.workers.iter().map(|worker| (worker.name(), &worker.member));
            for (name, member) in workers.chain([("gateway".to_owned(), &self.gateway)]) {
                if let Err(reason) = member.ready(&self.http).await {
                    unready.push(format!("{name}: {reason}"));
                }
            }
            if unready.is_empty() {
                if let Some(clocks) = &self.clocks {
                    clocks.clean_up();
                }
                return Ok(());
            }
            ensure!(Instant::now() < ends, "not ready within {SOON:?}: {}", unready.join("; "));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Why the stores are not at rest, if they are not: every gate open, nothing undelivered, pending
    /// or in transit, and no more consumers than there can be.
    pub(crate) async fn unrest(&mut self) -> anyhow::Result<Option<String>> {
        self.consumers_left_behind.retain(|since| since.elapsed() < CONSUMER_GONE_AFTER);
        for partition in self.partitions() {
            let gate = self.redis.gate_status(partition).await?;
            // A partition without a sale was never opened.
            let homed = self.database.list_sales_of(partition).await?;
            if gate != GateStatus::Open && !homed.is_empty() {
                return Ok(Some(format!("the gate of partition {partition} is {gate:?}")));
            }
            let backlog = self.redis.backlog(partition).await?;
            if let Some(backlog) = backlog
                && backlog.total() != Some(0)
            {
                return Ok(Some(format!("partition {partition} has a backlog: {backlog:?}")));
            }
            for sale in homed {
                let way = self.database.orders_in_transit(sale.id).await?;
                if !way.releases.is_empty() || !way.late_payments.is_empty() {
                    return Ok(Some(format!("units of sale {} are in transit: {way:?}", sale.id)));
                }
            }
            let consumers = self.raw.count_consumers(partition).await?;
            let most = WORKERS + self.consumers_left_behind.len();
            if consumers > most {
                return Ok(Some(format!(
                    "partition {partition} has {consumers} consumers, and should have {most} at most"
                )));
            }
        }
        Ok(None)
    }

    /// A metric of each worker, by the worker's name: one that was killed took its count with it.
    pub async fn metric(&self, name: &str) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::new();
        for worker in &self.workers {
            values.insert(worker.name(), worker.member.metric(&self.http, name).await);
        }
        values
    }

    /// The log of every program of this round, with a name for each.
    pub(crate) fn logs(&self) -> Vec<(String, String)> {
        let mut logs = self.ended_logs.clone();
        logs.push(("gateway".to_owned(), self.gateway.program.log()));
        logs.extend(self.workers.iter().map(|w| (w.name(), w.member.program.log())));
        logs.push(("redis".to_owned(), self.redis_server.log()));
        if let Some(standby) = &self.standby {
            logs.push(("redis-replica".to_owned(), standby.replica.log()));
            let sentinels = standby.sentinels.logs().into_iter().enumerate();
            logs.extend(sentinels.map(|(number, log)| (format!("sentinel-{number}"), log)));
        }
        logs.push(("postgres".to_owned(), self.postgres.log()));
        logs
    }
}

impl Worker {
    fn start(
        number: u32,
        settings: &[(&'static str, String)],
        clocks: Option<&Clocks>,
        started_in_an_outage: bool,
    ) -> anyhow::Result<Self> {
        let member = Member::start("order-worker", settings, clocks)?;
        Ok(Self { member, is_frozen: false, started_in_an_outage, number })
    }

    pub(crate) fn name(&self) -> String {
        format!("order-worker-{}", self.number)
    }

    /// What the names of its consumers contain: `host-pid-random`.
    pub(crate) fn consumer_part(&self) -> String {
        format!("-{}-", self.member.program.pid())
    }

    pub(crate) fn freeze(&mut self) {
        self.member.program.pause();
        self.is_frozen = true;
    }

    pub(crate) fn wake(&mut self) {
        self.member.program.resume();
        self.is_frozen = false;
    }
}

impl Member {
    fn start(
        name: &str,
        settings: &[(&'static str, String)],
        clocks: Option<&Clocks>,
    ) -> anyhow::Result<Self> {
        let (http, admin) = (free_port(), free_port());
        let mut builder = Program::builder(binary(name))
            .envs(settings)
            .env("FLASHSALE__HTTP__LISTEN", format!("127.0.0.1:{http}"))
            .env("FLASHSALE__ADMIN__LISTEN", format!("127.0.0.1:{admin}"));
        let mut clock = None;
        if let Some(clocks) = clocks {
            let (its_clock, environment) = clocks.clock(&admin.to_string())?;
            builder = builder.envs(&environment);
            clock = Some(its_clock);
        }
        let program = builder.try_start()?;
        if let Some(clocks) = clocks {
            clocks.note(program.pid());
        }
        Ok(Self { program, clock, http, admin })
    }

    /// Sets its clock off by so much.
    pub(crate) fn set_clock(&self, offset: &str) -> anyhow::Result<()> {
        self.clock.as_ref().context("the clock of this program cannot be set")?.set(offset)
    }

    /// The buyers' URL.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    fn has_logged(&self, text: &str) -> bool {
        self.program.log().contains(text)
    }

    async fn ready(&self, http: &reqwest::Client) -> Result<(), String> {
        let url = format!("http://127.0.0.1:{}/readyz", self.admin);
        let answer = http.get(url).send().await.map_err(|error| error.to_string())?;
        if answer.status().is_success() {
            return Ok(());
        }
        Err(answer.text().await.unwrap_or_default())
    }

    async fn metric(&self, http: &reqwest::Client, name: &str) -> f64 {
        let url = format!("http://127.0.0.1:{}/metrics", self.admin);
        let Ok(answer) = http.get(url).send().await else { return 0.0 };
        let text = answer.text().await.unwrap_or_default();
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            (series.split('{').next() == Some(name)).then(|| value.parse::<f64>().ok())?
        });
        values.sum()
    }
}
