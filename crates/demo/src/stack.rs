//! The servers and programs of the demo: started on free ports with their files in a temporary
//! folder, watched while they start, and stopped.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use flashsale_test_support::{PostgresServer, Program, RedisServer, TempDir, free_port, temp_dir};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::options::{DatabaseKind, Options};
use crate::programs::{Salectl, Settings, path};
use crate::report::complain_text;

const READY_WITHIN: Duration = Duration::from_secs(30);
/// Programs that have nothing in hand need a moment; more is taken from them.
const STOPPED_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
const LOG_LINES: usize = 25;

/// How soon the orders of a killed worker go to its peer, where the default is 30s ...
pub(crate) const RECLAIM_IDLE: &str = "3s";
/// ... which must be more than twice this, where the default is 10s.
pub(crate) const STATEMENT_TIMEOUT: &str = "1s";
/// How often the gateway looks at the stock, where the default is 300ms: by then the first half of
/// a thousand units is long gone.
pub(crate) const CATALOGUE_REFRESH: &str = "10ms";

/// What a unit costs, in minor units of CNY.
pub(crate) const PRICE: i64 = 9_900;
/// How long a buyer of the demo has to pay: long enough for a busy machine to get through the rush,
/// short enough to be waited for.
pub(crate) const PAYMENT_WINDOW: &str = "15s";

/// All that runs. What is declared first is stopped first.
pub(crate) struct Stack {
    pub(crate) gateway: Member,
    pub(crate) workers: [Member; 2],
    pub(crate) redis: RedisServer,
    _postgres: Option<PostgresServer>,
    directory: TempDir,
    /// What every program is told.
    pub(crate) settings: Settings,
    pub(crate) database_url: String,
    pub(crate) http: reqwest::Client,
    /// Signs the buyers' tokens.
    pub(crate) jwt_secret: String,
    /// Signs what a payment provider would tell.
    pub(crate) payment_secret: String,
}

/// One of our programs, and where it answers.
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    /// Buyers' URL; nobody answers there at an order-worker.
    pub(crate) url: String,
    /// Operators' URL.
    pub(crate) admin_url: String,
}

impl Stack {
    pub(crate) async fn start(options: &Options) -> anyhow::Result<Self> {
        let redis = spawn_blocking(|| RedisServer::builder().try_start()).await??;
        let directory = temp_dir("demo");
        let (postgres, database_url) = match options.database {
            DatabaseKind::Sqlite => {
                let file = directory.path().join("flashsale.db");
                (None, format!("sqlite://{}", file.display()))
            }
            DatabaseKind::Postgres => {
                // With fsync, or its times would mean nothing.
                let server =
                    spawn_blocking(|| PostgresServer::builder().fsync(true).try_start()).await??;
                let url = server.create_database();
                (Some(server), url)
            }
        };
        let (jwt_secret, payment_secret) = (random_secret(), random_secret());
        let mut settings = vec![
            ("FLASHSALE__REDIS__URL", redis.url()),
            ("FLASHSALE__DATABASE__URL", database_url.clone()),
            ("FLASHSALE__AUTH__JWT_SECRET", jwt_secret.clone()),
            ("FLASHSALE__PAYMENT__WEBHOOK_SECRET", payment_secret.clone()),
            ("FLASHSALE__LOG__FORMAT", "human".to_owned()),
        ];
        if options.kill_worker {
            settings.extend([
                ("FLASHSALE__WORKER__RECLAIM_IDLE", RECLAIM_IDLE.to_owned()),
                ("FLASHSALE__DATABASE__STATEMENT_TIMEOUT", STATEMENT_TIMEOUT.to_owned()),
                ("FLASHSALE__CATALOGUE__REFRESH", CATALOGUE_REFRESH.to_owned()),
            ]);
        }
        Salectl { settings: &settings }.migrate().await?;

        let stack = Self {
            gateway: Member::start("gateway", "gateway", &settings)?,
            workers: [
                Member::start("order-worker 1", "order-worker", &settings)?,
                Member::start("order-worker 2", "order-worker", &settings)?,
            ],
            redis,
            _postgres: postgres,
            directory,
            settings,
            database_url,
            // A proxy of the environment has no business with 127.0.0.1.
            http: reqwest::Client::builder().no_proxy().build()?,
            jwt_secret,
            payment_secret,
        };
        for member in stack.members() {
            member.wait_until_ready(&stack.http).await?;
        }
        Ok(stack)
    }

    pub(crate) fn salectl(&self) -> Salectl<'_> {
        Salectl { settings: &self.settings }
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        std::iter::once(&self.gateway).chain(&self.workers)
    }

    /// A path for a file of this demo.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// How many units are left, by the buyers' API.
    pub(crate) async fn stock_left(&self, sale: &str) -> anyhow::Result<u64> {
        let url = format!("{}/api/v1/sales/{sale}", self.gateway.url);
        let answer = self.http.get(&url).send().await?.error_for_status()?;
        let sale: serde_json::Value = answer.json().await?;
        sale["stock_left"].as_u64().with_context(|| format!("{url} gives no stock_left: {sale}"))
    }

    /// Waits until the gateway shows a sale that was just published: the gateway follows the
    /// database, `catalogue.refresh` behind it.
    pub(crate) async fn wait_until_shown(&self, sale: &str) -> anyhow::Result<()> {
        let started = Instant::now();
        while let Err(error) = self.stock_left(sale).await {
            if started.elapsed() > READY_WITHIN {
                return Err(error.context(format!("sale {sale} is not shown")));
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// How many orders the living workers took over from dead ones; `None` when no metric says so.
    pub(crate) async fn reclaimed(&self) -> Option<u64> {
        let mut sum = None;
        for worker in &self.workers {
            let url = format!("{}/metrics", worker.admin_url);
            let Ok(answer) = self.http.get(url).send().await else { continue };
            let text = answer.text().await.unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with("flashsale_reclaimed_total")) {
                let value = line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
                sum = Some(sum.unwrap_or(0) + value.unwrap_or(0));
            }
        }
        sum
    }

    /// Shows the end of every program's log.
    pub(crate) fn show_logs(&self) {
        for member in self.members() {
            complain_text(&format!("---- the end of the log of {} ----", member.name));
            complain_text(&tail(&member.program.log()));
        }
    }

    /// Asks the programs to end, and gives them a moment; dropping kills what is left.
    pub(crate) async fn stop(self) {
        for member in self.members() {
            member.program.terminate();
        }
        let asked = Instant::now();
        while asked.elapsed() < STOPPED_WITHIN
            && self.members().any(|member| member.program.exit_status().is_none())
        {
            sleep(POLL).await;
        }
    }
}

impl Member {
    fn start(name: &'static str, program: &str, settings: &Settings) -> anyhow::Result<Self> {
        let (listen, admin_listen) =
            (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
        let program = Program::builder(path(program)?)
            .envs(settings)
            .env("FLASHSALE__HTTP__LISTEN", &listen)
            .env("FLASHSALE__ADMIN__LISTEN", &admin_listen)
            .try_start()?;
        Ok(Self {
            name,
            program,
            url: format!("http://{listen}"),
            admin_url: format!("http://{admin_listen}"),
        })
    }

    async fn wait_until_ready(&self, http: &reqwest::Client) -> anyhow::Result<()> {
        let url = format!("{}/readyz", self.admin_url);
        let started = Instant::now();
        let mut last = "it does not answer".to_owned();
        while started.elapsed() < READY_WITHIN {
            if self.ended().is_some() {
                bail!("{}", self.how_it_ended());
            }
            // It may not listen yet.
            if let Ok(answer) = http.get(&url).timeout(READY_WITHIN).send().await {
                if answer.status().is_success() {
                    return Ok(());
                }
                last = answer.text().await.unwrap_or_default();
            }
            sleep(POLL).await;
        }
        bail!(
            "{} was not ready within {READY_WITHIN:?}: {last}\nthe end of its log:\n{}",
            self.name,
            tail(&self.program.log())
        )
    }

    /// Whether it has ended, and how.
    pub(crate) fn ended(&self) -> Option<std::process::ExitStatus> {
        self.program.exit_status()
    }

    /// For a program that should not have ended.
    pub(crate) fn how_it_ended(&self) -> String {
        let status = self.ended().map_or_else(|| "it runs".to_owned(), |status| status.to_string());
        format!(
            "{} ended ({status}); the end of its log:\n{}",
            self.name,
            tail(&self.program.log())
        )
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// 256 bits, as many as the signature's hash has.
fn random_secret() -> String {
    format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>())
}
