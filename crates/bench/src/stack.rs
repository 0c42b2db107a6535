//! What is measured: a private Redis with an append-only file, a private PostgreSQL with fsync, one
//! gateway, and beside it the limit and the designs to compare with.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flashsale_test_support::{PostgresServer, Program, RedisServer, RedisServerBuilder, free_port};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, Statement};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::cpu::Pids;
use crate::programs::{self, Settings};

/// Threads of the gateway, of the limit, and of each design: as many as this machine has cores, two
/// where it does not say.
pub(crate) fn server_workers() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

const READY_WITHIN: Duration = Duration::from_secs(30);

/// Everything of one round: a new one is as empty as the one before.
pub(crate) struct Stack {
    pub(crate) gateway: Program,
    pub(crate) gateway_url: String,
    pub(crate) redis: RedisServer,
    /// The shop's database, and a connection to it.
    pub(crate) database_url: String,
    pub(crate) database: DatabaseConnection,
    pub(crate) settings: Settings,
    pub(crate) http: reqwest::Client,
    postmaster: u32,
}

/// A program that listens on an address of its own.
pub(crate) struct Served {
    pub(crate) program: Program,
    pub(crate) url: String,
}

/// A sale to open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sale {
    pub(crate) stock: u32,
    pub(crate) opens: &'static str,
    pub(crate) closes: &'static str,
    pub(crate) mode: &'static str,
}

impl Sale {
    /// Open now, with so many units.
    pub(crate) fn of(stock: u32) -> Self {
        Self { stock, opens: "now", closes: "+1h", mode: "queued" }
    }
}

impl Stack {
    /// Starts everything but the worker, on a database of its own.
    pub(crate) async fn start(
        postgres: &PostgresServer,
        redis: RedisServerBuilder,
    ) -> anyhow::Result<Self> {
        let redis = spawn_blocking(|| redis.try_start()).await??;
        let database_url = postgres.create_database();
        let settings = vec![
            ("FLASHSALE__REDIS__URL", redis.url()),
            ("FLASHSALE__DATABASE__URL", database_url.clone()),
            ("FLASHSALE__AUTH__JWT_SECRET", format!("{:032x}", rand::random::<u128>())),
            ("FLASHSALE__HTTP__WORKERS", server_workers().to_string()),
        ];
        programs::output("salectl", &settings, &["migrate"]).await?;
        // A proxy of the environment has no business with 127.0.0.1.
        let http = reqwest::Client::builder().no_proxy().build()?;
        let (gateway, gateway_url) = start_gateway(&settings, &http).await?;
        Ok(Self {
            gateway,
            gateway_url,
            redis,
            database: Database::connect(&database_url).await?,
            database_url,
            settings,
            http,
            postmaster: postgres.pid(),
        })
    }

    /// Ends everything, the database included.
    pub(crate) async fn end(self, postgres: &PostgresServer) -> anyhow::Result<()> {
        let (_, name) = self.database_url.rsplit_once('/').context("a URL with a database")?;
        self.database.close().await?;
        drop(self.gateway);
        let server = Database::connect(postgres.url("postgres")).await?;
        server.execute_unprepared(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
        Ok(server.close().await?)
    }

    /// Starts one of the bench's own servers: the limit, or a design.
    pub(crate) async fn serve(&self, command: &str) -> anyhow::Result<Served> {
        let listen = format!("127.0.0.1:{}", free_port());
        let program = Program::builder(programs::path("bench")?)
            .envs(&self.settings)
            .args(&["serve", command, &listen, &server_workers().to_string()])
            .try_start()?;
        let url = format!("http://{listen}");
        // Whatever it answers, it is there.
        wait_until(&url, || async { self.http.get(&url).send().await.is_ok() }).await?;
        Ok(Served { program, url })
    }

    /// Starts a worker, and waits until it is ready.
    pub(crate) async fn worker(&self, more: &Settings) -> anyhow::Result<Program> {
        let admin = format!("127.0.0.1:{}", free_port());
        let worker = Program::builder(programs::path("order-worker")?)
            .envs(&self.settings)
            // It ends when its read ends, and every run waits for that.
            .env("FLASHSALE__WORKER__BLOCK", "100ms")
            .envs(more)
            .env("FLASHSALE__ADMIN__LISTEN", &admin)
            .try_start()?;
        ready(&self.http, &admin).await?;
        Ok(worker)
    }

    /// Opens a sale, and waits until the gateway knows it.
    pub(crate) async fn open(&self, sale: Sale) -> anyhow::Result<String> {
        let id = self.draft(sale, &self.settings).await?;
        self.salectl(&["sale", "publish", &id]).await?;
        let url = format!("{}/api/v1/sales/{id}", self.gateway_url);
        wait_until(&url, || self.is_ok(&url)).await?;
        Ok(id)
    }

    /// Describes a sale that nobody sees yet, in the database of these settings.
    pub(crate) async fn draft(&self, sale: Sale, settings: &Settings) -> anyhow::Result<String> {
        let stock = sale.stock.to_string();
        let create = ["sale", "create", "--title", "Bench", "--price", "9900", "--stock", &stock];
        let how = ["--opens", sale.opens, "--closes", sale.closes, "--mode", sale.mode];
        programs::output("salectl", settings, &[&create[..], &how].concat()).await
    }

    /// Runs an operator's command, which has to succeed.
    pub(crate) async fn salectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        programs::output("salectl", &self.settings, arguments).await
    }

    /// What `salectl audit` finds against the sales; nothing is how it should be.
    pub(crate) async fn audit(&self) -> anyhow::Result<Option<String>> {
        let audit = programs::run("salectl", &self.settings, &["audit"]).await?;
        Ok((!audit.status.success()).then(|| {
            let said = [audit.stdout, audit.stderr].concat();
            String::from_utf8_lossy(&said).trim_end().to_owned()
        }))
    }

    /// The processes to count, with `server` as the one that answers.
    pub(crate) fn pids(&self, server: Option<&Program>, worker: Option<&Program>) -> Pids {
        Pids {
            server: server.map(Program::pid),
            redis: Some(self.redis.pid()),
            worker: worker.map(Program::pid),
            postgres: Some(self.postmaster),
        }
    }

    /// Units that are sold by the database's own count, in all sales: it costs one look at a few rows.
    pub(crate) async fn rows(&self) -> anyhow::Result<i64> {
        number(&self.database, "SELECT sum(stock_total - stock_left)::bigint FROM sales").await
    }

    async fn is_ok(&self, url: &str) -> bool {
        self.http.get(url).send().await.is_ok_and(|answer| answer.status() == 200)
    }

    /// Kills the gateway and starts another one on the same settings.
    pub(crate) async fn replace_gateway(&mut self) -> anyhow::Result<()> {
        self.gateway.kill_9();
        (self.gateway, self.gateway_url) = start_gateway(&self.settings, &self.http).await?;
        Ok(())
    }
}

async fn start_gateway(
    settings: &Settings,
    http: &reqwest::Client,
) -> anyhow::Result<(Program, String)> {
    let [listen, admin] = [0; 2].map(|_| format!("127.0.0.1:{}", free_port()));
    let gateway = Program::builder(programs::path("gateway")?)
        .envs(settings)
        .env("FLASHSALE__HTTP__LISTEN", &listen)
        .env("FLASHSALE__ADMIN__LISTEN", &admin)
        .try_start()?;
    ready(http, &admin).await?;
    Ok((gateway, format!("http://{listen}")))
}

async fn ready(http: &reqwest::Client, admin: &str) -> anyhow::Result<()> {
    let url = format!("http://{admin}/readyz");
    wait_until(&url, || async {
        http.get(&url).send().await.is_ok_and(|answer| answer.status() == 200)
    })
    .await
}

/// Waits until `is_so`, which is asked again and again.
pub(crate) async fn wait_until<F: Future<Output = bool>>(
    what: &str,
    is_so: impl Fn() -> F,
) -> anyhow::Result<()> {
    wait_until_within(READY_WITHIN, what, is_so).await
}

/// As [`wait_until`], for so long.
pub(crate) async fn wait_until_within<F: Future<Output = bool>>(
    limit: Duration,
    what: &str,
    is_so: impl Fn() -> F,
) -> anyhow::Result<()> {
    let started = Instant::now();
    while !is_so().await {
        ensure!(started.elapsed() < limit, "waited too long for {what}");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The one number that `sql` gives; 0 where it gives NULL.
pub(crate) async fn number(database: &DatabaseConnection, sql: &str) -> anyhow::Result<i64> {
    let statement = Statement::from_string(database.get_database_backend(), sql);
    let row = database.query_one_raw(statement).await?.context("no row")?;
    Ok(row.try_get_by_index::<Option<i64>>(0)?.unwrap_or(0))
}
