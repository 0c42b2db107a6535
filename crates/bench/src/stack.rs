//! What is measured: a private Redis with an append-only file, a private PostgreSQL with fsync, one
//! gateway, and the limit beside it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flashsale_test_support::{PostgresServer, Program, RedisServer, TempDir, free_port, temp_dir};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::figures::Run;
use crate::programs::{self, Settings};

/// Threads of the gateway, and of the limit.
const SERVER_WORKERS: usize = 2;
const READY_WITHIN: Duration = Duration::from_secs(30);

pub(crate) struct Stack {
    gateway: Program,
    gateway_url: String,
    echo: Program,
    echo_url: String,
    pub(crate) redis: RedisServer,
    pub(crate) database_url: String,
    pub(crate) http: reqwest::Client,
    pub(crate) settings: Settings,
    concurrency: String,
    _postgres: PostgresServer,
    _directory: TempDir,
}

/// What `rush --json` reports, as far as we look at it.
#[derive(Deserialize)]
struct Rushed {
    requests: u32,
    requests_per_s: f64,
    latency_us: Latency,
    server_errors: u64,
    transport_errors: u64,
}

#[derive(Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

impl Stack {
    pub(crate) async fn start(concurrency: u32) -> anyhow::Result<Self> {
        let redis =
            spawn_blocking(|| RedisServer::builder().append_only(true).try_start()).await??;
        let postgres =
            spawn_blocking(|| PostgresServer::builder().fsync(true).try_start()).await??;
        let database_url = postgres.create_database();
        let settings = vec![
            ("FLASHSALE__REDIS__URL", redis.url()),
            ("FLASHSALE__DATABASE__URL", database_url.clone()),
            ("FLASHSALE__AUTH__JWT_SECRET", format!("{:032x}", rand::random::<u128>())),
            ("FLASHSALE__HTTP__WORKERS", SERVER_WORKERS.to_string()),
        ];
        programs::output("salectl", &settings, &["migrate"]).await?;

        let [http, admin, echo] = [0; 3].map(|_| format!("127.0.0.1:{}", free_port()));
        let gateway = Program::builder(programs::path("gateway")?)
            .envs(&settings)
            .env("FLASHSALE__HTTP__LISTEN", &http)
            .env("FLASHSALE__ADMIN__LISTEN", &admin)
            .try_start()?;
        let limit = Program::builder(programs::path("bench")?)
            .args(&["echo", &echo, &SERVER_WORKERS.to_string()])
            .try_start()?;
        let stack = Self {
            gateway,
            gateway_url: format!("http://{http}"),
            echo: limit,
            echo_url: format!("http://{echo}"),
            redis,
            database_url,
            // A proxy of the environment has no business with 127.0.0.1.
            http: reqwest::Client::builder().no_proxy().build()?,
            settings,
            concurrency: concurrency.to_string(),
            _postgres: postgres,
            _directory: temp_dir("bench"),
        };
        stack.wait_for(&format!("http://{admin}/readyz")).await?;
        Ok(stack)
    }

    /// Waits until `url` is answered with 200.
    pub(crate) async fn wait_for(&self, url: &str) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            if self.http.get(url).send().await.is_ok_and(|answer| answer.status() == 200) {
                return Ok(());
            }
            ensure!(started.elapsed() < READY_WITHIN, "{url} is not answered with 200");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// A sale of so many units that is open now, and that the gateway knows.
    pub(crate) async fn open_sale(&self, units: i64) -> anyhow::Result<String> {
        let stock = units.to_string();
        let create = ["sale", "create", "--title", "Bench", "--stock", &stock];
        let window = ["--opens", "now", "--closes", "+1h", "--price", "9900"];
        let id =
            programs::output("salectl", &self.settings, &[&create[..], &window].concat()).await?;
        programs::output("salectl", &self.settings, &["sale", "publish", &id]).await?;
        self.wait_for(&format!("{}/api/v1/sales/{id}", self.gateway_url)).await?;
        Ok(id)
    }

    /// Buyers press the gateway; with their keys, or without.
    pub(crate) async fn press(
        &self,
        sale: &str,
        buyers: u32,
        prefix: &str,
        keys: bool,
    ) -> anyhow::Result<Run> {
        self.rush(&self.gateway_url, self.gateway.pid(), sale, buyers, prefix, keys).await
    }

    /// The same buyers press the limit.
    pub(crate) async fn press_echo(&self, buyers: u32, prefix: &str) -> anyhow::Result<Run> {
        self.rush(&self.echo_url, self.echo.pid(), "1", buyers, prefix, true).await
    }

    async fn rush(
        &self,
        url: &str,
        server: u32,
        sale: &str,
        buyers: u32,
        prefix: &str,
        keys: bool,
    ) -> anyhow::Result<Run> {
        let buyers = buyers.to_string();
        let mut arguments = vec!["--json", "--url", url, "--sale", sale, "--buyers", &buyers];
        arguments.extend(["--buyer-prefix", prefix, "--concurrency", &self.concurrency]);
        if !keys {
            arguments.push("--no-key");
        }
        let cpu = || anyhow::Ok([programs::cpu_us(server)?, programs::cpu_us(self.redis.pid())?]);
        let before = cpu()?;
        let text = programs::output("rush", &self.settings, &arguments).await?;
        let after = cpu()?;
        let rushed: Rushed = serde_json::from_str(&text).context("the report of rush")?;
        ensure!(
            rushed.server_errors == 0 && rushed.transport_errors == 0,
            "{} server errors and {} broken connections are no measurement",
            rushed.server_errors,
            rushed.transport_errors
        );
        let requests = f64::from(rushed.requests);
        Ok(Run {
            per_s: rushed.requests_per_s,
            p50_us: rushed.latency_us.p50,
            p99_us: rushed.latency_us.p99,
            server_cpu_us: (after[0] - before[0]) / requests,
            redis_cpu_us: (after[1] - before[1]) / requests,
        })
    }
}
