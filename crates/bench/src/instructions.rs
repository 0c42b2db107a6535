//! `make bench-instructions`: how many instructions an order takes in each program, counted by valgrind's
//! callgrind. They are the same on a busy machine and on a quiet one, so a change that makes the way of an
//! order longer is seen where times would show noise.
//!
//! Each count is the difference of two runs, one with more orders: what starting and stopping takes is in
//! both. The counts that are allowed stand in `instructions.json`.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use flashsale_domain::SaleId;
use flashsale_test_support::{Program, RedisServer, TempDir, free_port, temp_dir};
use sea_orm::Database;

use crate::load::{Load, Told};
use crate::programs::{self, Settings};
use crate::stack::{number, wait_until_within};
use crate::{fill, report};

#[derive(Debug, Args)]
pub(crate) struct What {
    /// Write what was counted into this file, as what is allowed from now on
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// What is allowed; the release profile's, because nobody runs another one.
const ALLOWED: &str = include_str!("../instructions.json");

/// A count that is higher by so much fails: other compilers count otherwise, and batches differ.
const MARGIN: f64 = 0.30;

/// Operations of the shorter and of the longer run.
const FEW: u32 = 1_000;
const MANY: u32 = 5_000;

/// Under callgrind everything takes fifty times as long.
const PATIENCE: Duration = Duration::from_secs(180);

/// Counts, says it, and whether nothing takes more than is allowed.
pub(crate) async fn measure(what: &What) -> anyhow::Result<bool> {
    let mut counted = BTreeMap::new();
    for (name, of) in [
        ("gateway_accept", Of::Accepted),
        ("gateway_sold_out", Of::SoldOut),
        ("redis_admit", Of::Script),
        ("worker_row", Of::Rows),
    ] {
        let (few, many) = (of.count(FEW).await?, of.count(MANY).await?);
        let each =
            many.checked_sub(few).context("the longer run took less")? / u64::from(MANY - FEW);
        counted.insert(name, each);
    }
    if let Some(path) = &what.write {
        let json = serde_json::to_string_pretty(&counted)?;
        std::fs::write(path, json + "\n").with_context(|| path.display().to_string())?;
    }
    let allowed: BTreeMap<String, u64> = serde_json::from_str(ALLOWED)?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| instructions an operation | counted | expected | change |\n|---|---:|---:|---:|"
    )?;
    let mut holds = true;
    for (name, count) in &counted {
        let expected = *allowed.get(*name).with_context(|| format!("{name} is not in the file"))?;
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
        let change = *count as f64 / expected as f64 - 1.0;
        holds &= change <= MARGIN;
        writeln!(out, "| {name} | {count} | {expected} | {:+.0} % |", change * 100.0)?;
    }
    if !holds {
        writeln!(
            out,
            "\nMORE THAN {:.0} % ABOVE WHAT IS EXPECTED. If it is worth it: `bench instructions --write \
             crates/bench/instructions.json`, and say why.",
            MARGIN * 100.0
        )?;
    }
    let path = report::default_path()?;
    report::write(&path, "instructions", &BTreeMap::new(), &serde_json::json!(counted))?;
    Ok(holds)
}

/// Whose instructions, and what for.
#[derive(Debug, Clone, Copy)]
enum Of {
    Accepted,
    SoldOut,
    Script,
    Rows,
}

impl Of {
    async fn count(self, operations: u32) -> anyhow::Result<u64> {
        let stand = Stand::new()?;
        match self {
            Self::Accepted => stand.gateway(operations, operations, Told::Accepted).await,
            Self::SoldOut => stand.gateway(1, operations, Told::SoldOut).await,
            Self::Script => stand.script(operations).await,
            Self::Rows => stand.worker(operations).await,
        }
    }
}

/// Private servers, and one program under callgrind.
struct Stand {
    _redis: RedisServer,
    settings: Settings,
    directory: TempDir,
}

impl Stand {
    fn new() -> anyhow::Result<Self> {
        let directory = temp_dir("instructions");
        let redis = RedisServer::builder().try_start()?;
        let database = directory.path().join("shop.db");
        let settings = vec![
            ("FLASHSALE__REDIS__URL", redis.url()),
            ("FLASHSALE__DATABASE__URL", format!("sqlite://{}", database.display())),
            ("FLASHSALE__AUTH__JWT_SECRET", format!("{:032x}", rand::random::<u128>())),
            ("FLASHSALE__HTTP__WORKERS", "1".to_owned()),
        ];
        Ok(Self { _redis: redis, settings, directory })
    }

    async fn gateway(&self, stock: u32, operations: u32, told: Told) -> anyhow::Result<u64> {
        let sale = open_sale(&self.settings, stock).await?.to_string();
        let counted = self.counted("gateway").await?;
        let url = format!("http://{}", counted.listen);
        let press = |buyers, prefix, told| Load {
            url: &url,
            sale: &sale,
            buyers,
            prefix,
            keys: true,
            rate: None,
            concurrency: 32,
            told,
        };
        if told == Told::SoldOut {
            press(stock, "first-", Told::Accepted).rush(&self.settings).await?;
        }
        press(operations, "b-", told).rush(&self.settings).await?;
        counted.end()
    }

    /// The script alone, in batches, with Redis itself under callgrind.
    async fn script(&self, operations: u32) -> anyhow::Result<u64> {
        let port = free_port().to_string();
        let server = match std::env::var_os("REDIS_SERVER_BIN") {
            Some(path) => PathBuf::from(path),
            None => programs::on_path("redis-server")?,
        };
        let arguments = ["--port", &port, "--save", "", "--bind", "127.0.0.1"];
        let out = self.directory.path().join("redis.callgrind");
        let redis = callgrind(&out, &server, &arguments, &Settings::new())?;
        let url = format!("redis://127.0.0.1:{port}");
        let mut settings = self.settings.clone();
        settings.retain(|(key, _)| *key != "FLASHSALE__REDIS__URL");
        settings.push(("FLASHSALE__REDIS__URL", url.clone()));
        let client = redis::Client::open(url.as_str())?;
        wait_until_within(PATIENCE, "Redis under callgrind", || async {
            client.get_multiplexed_async_connection().await.is_ok()
        })
        .await?;
        let sale = open_sale(&settings, operations).await?;
        fill::fill(&fill::redis(&settings)?, sale, operations).await?;
        end(&redis, &out)
    }

    async fn worker(&self, operations: u32) -> anyhow::Result<u64> {
        let sale = open_sale(&self.settings, operations).await?;
        let redis = fill::redis(&self.settings)?;
        redis.ensure_group(fill::partition()?).await?;
        fill::fill(&redis, sale, operations).await?;
        let counted = self.counted("order-worker").await?;
        let (_, url) = &self.settings[1];
        let database = Database::connect(url.as_str()).await?;
        wait_until_within(PATIENCE, "all rows", || async {
            let rows = number(&database, "SELECT count(*) FROM orders").await;
            rows.is_ok_and(|rows| rows == i64::from(operations))
        })
        .await?;
        counted.end()
    }

    async fn counted(&self, name: &str) -> anyhow::Result<Counted> {
        let [listen, admin] = [0; 2].map(|_| format!("127.0.0.1:{}", free_port()));
        let mut settings = self.settings.clone();
        settings.push(("FLASHSALE__HTTP__LISTEN", listen.clone()));
        settings.push(("FLASHSALE__ADMIN__LISTEN", admin.clone()));
        let out = self.directory.path().join("program.callgrind");
        let program = callgrind(&out, &programs::path(name)?, &[], &settings)?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        let url = format!("http://{admin}/readyz");
        wait_until_within(PATIENCE, &url, || async {
            http.get(&url).send().await.is_ok_and(|answer| answer.status() == 200)
        })
        .await?;
        Ok(Counted { program, listen, out })
    }
}

async fn open_sale(settings: &Settings, stock: u32) -> anyhow::Result<SaleId> {
    programs::output("salectl", settings, &["migrate"]).await?;
    let stock = stock.to_string();
    let create = ["sale", "create", "--title", "Bench", "--price", "9900", "--stock", &stock];
    let create = [&create[..], &["--opens", "now", "--closes", "+1h"]].concat();
    let id = programs::output("salectl", settings, &create).await?;
    programs::output("salectl", settings, &["sale", "publish", &id]).await?;
    Ok(id.parse()?)
}

/// A program under callgrind that serves.
struct Counted {
    program: Program,
    listen: String,
    out: PathBuf,
}

impl Counted {
    fn end(self) -> anyhow::Result<u64> {
        end(&self.program, &self.out)
    }
}

fn callgrind(
    out: &Path,
    program: &Path,
    arguments: &[&str],
    settings: &Settings,
) -> anyhow::Result<Program> {
    let out = format!("--callgrind-out-file={}", out.display());
    Program::builder(programs::on_path("valgrind")?)
        .args(&["--tool=callgrind", &out])
        .arg(program.display().to_string())
        .args(arguments)
        .envs(settings)
        .try_start()
}

/// Ends a program in order, and reads how many instructions it has executed in all.
fn end(program: &Program, out: &Path) -> anyhow::Result<u64> {
    program.terminate();
    ensure!(program.wait_exit(PATIENCE).is_some(), "it does not end: {}", program.log());
    let text = std::fs::read_to_string(out).with_context(|| out.display().to_string())?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("summary:").or_else(|| line.strip_prefix("totals:")));
    Ok(total.context("callgrind says no total")?.trim().parse()?)
}
