//! One round: every kind takes its turn, each on sales of its own, and the sales are audited.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use flashsale_test_support::{PostgresServer, Program};
use sea_orm::ConnectionTrait as _;

use crate::designs::memory_queue;
use crate::drills;
use crate::figures::{Figures, Run};
use crate::kinds::Kind;
use crate::limits;
use crate::load::{Load, Told};
use crate::memory::used_memory;
use crate::programs;
use crate::sql_ceiling;
use crate::stack::{Sale, Served, Stack, number};
use crate::worker;

/// The share of what a closed loop reached in this run, at which an open loop sends.
const OPEN_LOOP_SHARE: f64 = 0.5;

const PROFILE_WRITTEN_WITHIN: Duration = Duration::from_secs(60);

/// What is measured, and how much of it.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) kinds: BTreeSet<Kind>,
    /// Requests of a run; kinds that are slower by far send a part of it.
    pub(crate) requests: u32,
    pub(crate) concurrency: u32,
    /// Where the gateway and Redis are sampled to while buyers are accepted.
    pub(crate) profile: Option<PathBuf>,
    /// The audits are to find something.
    pub(crate) lose_a_row: bool,
}

pub(crate) struct Round<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) stack: &'a mut Stack,
    pub(crate) postgres: &'a PostgresServer,
    pub(crate) figures: &'a mut Figures,
    /// What audits found against the invariants.
    pub(crate) findings: &'a mut Vec<String>,
    /// Orders on the stream that no worker has had yet.
    pub(crate) queued: u32,
}

impl Round<'_> {
    /// All that is wanted.
    pub(crate) async fn run(mut self) -> anyhow::Result<()> {
        let echo = match self.wants_any(&[Kind::Echo, Kind::EchoOpen]) {
            true => Some(self.stack.serve("echo").await?),
            false => None,
        };
        self.closed_loops(echo.as_ref()).await?;
        self.scripts().await?;
        self.workers().await?;
        self.durable().await?;
        self.open_loops(echo.as_ref()).await?;
        if self.plan.lose_a_row {
            let lose = "DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)";
            self.stack.database.execute_unprepared(lose).await?;
        }
        self.findings.extend(self.stack.audit().await?);
        Ok(())
    }

    fn wants(&self, kind: Kind) -> bool {
        self.plan.kinds.contains(&kind)
    }

    fn wants_any(&self, kinds: &[Kind]) -> bool {
        kinds.iter().any(|kind| self.wants(*kind))
    }

    /// A part of the requests, and not too few to be measured.
    pub(crate) fn part(&self, divisor: u32) -> u32 {
        (self.plan.requests / divisor).max(100)
    }

    pub(crate) fn load<'a>(&self, url: &'a str, sale: &'a str, told: Told) -> Load<'a> {
        Load {
            url,
            sale,
            buyers: self.plan.requests,
            prefix: "b-",
            keys: true,
            rate: None,
            concurrency: self.plan.concurrency,
            told,
        }
    }

    /// Presses the gateway for orders, and looks what they take in Redis.
    async fn accept(&mut self, load: Load<'_>) -> anyhow::Result<()> {
        let client = redis::Client::open(self.stack.redis.url())?;
        let mut redis = client.get_multiplexed_async_connection().await?;
        let before = used_memory(&mut redis).await?;
        let mut run = self.press(Kind::Accept, &load).await?;
        let bytes = used_memory(&mut redis).await? - before;
        run.more.insert("redis_bytes_an_order", bytes / f64::from(load.buyers));
        self.figures.add(Kind::Accept, run);
        Ok(())
    }

    /// Presses the gateway, and keeps the figures.
    async fn measure(&mut self, kind: Kind, load: Load<'_>) -> anyhow::Result<()> {
        let run = self.press(kind, &load).await?;
        self.figures.add(kind, run);
        Ok(())
    }

    /// Presses the gateway.
    async fn press(&mut self, kind: Kind, load: &Load<'_>) -> anyhow::Result<Run> {
        let pids = self.stack.pids(Some(&self.stack.gateway), None);
        let profile = self.plan.profile.as_ref().filter(|_| kind == Kind::Accept);
        let sampling = profile.map(|file| self.sample(file)).transpose()?;
        let run = load.press(&self.stack.settings, pids).await?;
        if let Some(perf) = sampling {
            perf.interrupt();
            perf.wait_exit(PROFILE_WRITTEN_WITHIN).context("perf does not end")?;
        }
        if load.told == Told::Accepted {
            self.queued += load.buyers;
        }
        Ok(run)
    }

    fn sample(&self, file: &Path) -> anyhow::Result<Program> {
        let pids = format!("{},{}", self.stack.gateway.pid(), self.stack.redis.pid());
        let file = file.display().to_string();
        Program::builder(programs::on_path("perf")?)
            .args(&["record", "-q", "-F", "999", "-p", &pids, "-o", &file])
            .try_start()
    }

    async fn press_echo(
        &mut self,
        kind: Kind,
        echo: &Served,
        rate: Option<u64>,
    ) -> anyhow::Result<()> {
        let load = Load { rate, ..self.load(&echo.url, "1", Told::Accepted) };
        let pids = self.stack.pids(Some(&echo.program), None);
        self.figures.add(kind, load.press(&self.stack.settings, pids).await?);
        Ok(())
    }

    async fn closed_loops(&mut self, echo: Option<&Served>) -> anyhow::Result<()> {
        if let Some(echo) = echo.filter(|_| self.wants(Kind::Echo)) {
            self.press_echo(Kind::Echo, echo, None).await?;
        }
        let url = self.stack.gateway_url.clone();
        let on_sold_out = [Kind::SoldOut, Kind::SoldOutNoKey, Kind::SoldOutOpen];
        let after = [Kind::Replay, Kind::AlreadyOrdered, Kind::Worker, Kind::Copy];
        if self.wants_any(&[&[Kind::Accept, Kind::AcceptOpen], &on_sold_out[..], &after].concat()) {
            let sale = self.stack.open(Sale::of(self.plan.requests)).await?;
            self.accept(self.load(&url, &sale, Told::Accepted)).await?;
            self.pool().await?;
            let late = Load { prefix: "late-", ..self.load(&url, &sale, Told::SoldOut) };
            let again = self.load(&url, &sale, Told::Replayed);
            let known = Load { keys: false, ..self.load(&url, &sale, Told::AlreadyOrdered) };
            for (kind, load) in [
                (Kind::SoldOut, late.clone()),
                (Kind::SoldOutNoKey, Load { keys: false, ..late }),
                (Kind::Replay, again),
                (Kind::AlreadyOrdered, known),
            ] {
                if self.wants(kind) {
                    self.measure(kind, load).await?;
                }
            }
        } else {
            self.pool().await?;
        }
        if self.wants(Kind::NotStarted) {
            let tomorrow = Sale { opens: "+24h", closes: "+25h", ..Sale::of(1) };
            let sale = self.stack.open(tomorrow).await?;
            self.measure(Kind::NotStarted, self.load(&url, &sale, Told::NotStarted)).await?;
        }
        if self.wants(Kind::Ended) {
            let sale = self.stack.open(Sale::of(1)).await?;
            self.stack.salectl(&["sale", "close", &sale]).await?;
            self.measure(Kind::Ended, self.load(&url, &sale, Told::Ended)).await?;
        }
        Ok(())
    }

    async fn pool(&mut self) -> anyhow::Result<()> {
        if !self.wants(Kind::Pool) {
            return Ok(());
        }
        let pool = self.stack.serve("pool").await?;
        let buyers = self.part(4);
        let sale = self.stack.open(Sale::of(buyers)).await?;
        let load = Load { buyers, ..self.load(&pool.url, &sale, Told::Accepted) };
        let pids = self.stack.pids(Some(&pool.program), None);
        self.figures.add(Kind::Pool, load.press(&self.stack.settings, pids).await?);
        self.queued += buyers;
        Ok(())
    }

    async fn scripts(&mut self) -> anyhow::Result<()> {
        for (kind, pipeline) in [(Kind::Script, 1), (Kind::ScriptPipelined, 16)] {
            if !self.wants(kind) {
                continue;
            }
            // The gateway loads the script with the first buyer.
            if self.queued == 0 {
                let sale = self.stack.open(Sale::of(100)).await?;
                let url = self.stack.gateway_url.clone();
                let load = Load { buyers: 100, ..self.load(&url, &sale, Told::Accepted) };
                load.rush(&self.stack.settings).await?;
                self.queued += 100;
            }
            let calls = self.part(2);
            let sale = self.stack.open(Sale::of(calls)).await?;
            let run = limits::script(self.stack, &sale, calls, pipeline).await?;
            self.figures.add(kind, run);
            self.queued += self.sold(&sale).await?;
        }
        Ok(())
    }

    /// Units that Redis has given away.
    async fn sold(&self, sale: &str) -> anyhow::Result<u32> {
        let ledger = self.stack.salectl(&["--json", "ledger", sale]).await?;
        let ledger: serde_json::Value = serde_json::from_str(&ledger)?;
        let held = ledger["redis"]["held"].as_u64().with_context(|| ledger.to_string())?;
        Ok(u32::try_from(held)?)
    }

    async fn workers(&mut self) -> anyhow::Result<()> {
        if self.queued > 0 && self.wants_any(&[Kind::Worker, Kind::Copy, Kind::RowByRow]) {
            let run = worker::drain(self.stack, self.queued.into()).await?;
            self.figures.add(Kind::Worker, run);
            self.queued = 0;
        }
        if self.wants(Kind::Copy) {
            let run = limits::copy(&self.stack.database).await?;
            self.figures.add(Kind::Copy, run);
        }
        if self.wants(Kind::RowByRow) {
            let buyers = self.part(20);
            let sale = self.stack.open(Sale::of(buyers)).await?;
            let url = self.stack.gateway_url.clone();
            let load = Load { buyers, ..self.load(&url, &sale, Told::Accepted) };
            load.rush(&self.stack.settings).await?;
            let run = worker::drain_row_by_row(self.stack, buyers.into()).await?;
            self.figures.add(Kind::RowByRow, run);
        }
        if self.wants(Kind::SqlCeiling) {
            let run = self.sql_ceiling().await?;
            self.figures.add(Kind::SqlCeiling, run);
        }
        if self.wants(Kind::Fsync) {
            let run = limits::fsync(&self.stack.database).await?;
            self.figures.add(Kind::Fsync, run);
        }
        Ok(())
    }

    /// In a database of its own: the shop's audit would miss Redis's side of these orders.
    async fn sql_ceiling(&self) -> anyhow::Result<Run> {
        let url = self.postgres.create_database();
        let mut settings = self.stack.settings.clone();
        settings.retain(|(key, _)| *key != "FLASHSALE__DATABASE__URL");
        settings.push(("FLASHSALE__DATABASE__URL", url.clone()));
        programs::output("salectl", &settings, &["migrate"]).await?;
        let mut run = Run::default();
        for in_flight in sql_ceiling::IN_FLIGHT {
            let sale = self.stack.draft(Sale::of(self.plan.requests), &settings).await?;
            let count = self.plan.requests;
            let per_s = sql_ceiling::measure(&url, sale.parse()?, count, in_flight).await?;
            run.per_s = run.per_s.max(per_s);
            run.more.insert(
                if in_flight == 1 { "one_in_flight_per_s" } else { "two_in_flight_per_s" },
                per_s,
            );
        }
        Ok(run)
    }

    async fn durable(&mut self) -> anyhow::Result<()> {
        let url = self.stack.gateway_url.clone();
        if self.wants(Kind::Chain) {
            let buyers = self.plan.requests * 2;
            let sale = self.stack.open(Sale::of(buyers)).await?;
            let load = Load { buyers, ..self.load(&url, &sale, Told::Accepted) };
            let run = worker::chain(self.stack, &load).await?;
            self.figures.add(Kind::Chain, run);
            self.queued = 0;
        }
        if self.wants(Kind::Direct) {
            let buyers = self.part(40);
            let sale = self.stack.open(Sale { mode: "direct", ..Sale::of(buyers) }).await?;
            let load = Load { buyers, ..self.load(&url, &sale, Told::Accepted) };
            let pids = self.stack.pids(Some(&self.stack.gateway), None);
            self.figures.add(Kind::Direct, load.press(&self.stack.settings, pids).await?);
        }
        if self.wants(Kind::MemoryQueue) {
            let run = self.memory_queue().await?;
            self.figures.add(Kind::MemoryQueue, run);
        }
        if self.wants(Kind::Killed) {
            let run = drills::killed(self).await?;
            self.figures.add(Kind::Killed, run);
        }
        Ok(())
    }

    /// Presses the tutorial's design, and kills it when the last buyer has his answer.
    async fn memory_queue(&self) -> anyhow::Result<Run> {
        let buyers = self.part(4);
        self.stack.database.execute_unprepared(memory_queue::TABLES).await?;
        let row = format!("INSERT INTO queue_sales (id, stock) VALUES (1, {buyers})");
        self.stack.database.execute_unprepared(&row).await?;
        let client = redis::Client::open(self.stack.redis.url())?;
        let mut redis = client.get_multiplexed_async_connection().await?;
        let stock = memory_queue::stock_key(1);
        redis::cmd("SET").arg(stock).arg(buyers).exec_async(&mut redis).await?;

        let server = self.stack.serve("memory-queue").await?;
        let load = Load { buyers, ..self.load(&server.url, "1", Told::Accepted) };
        let pids = self.stack.pids(Some(&server.program), None);
        let before = pids.used()?;
        let rushed = load.rush(&self.stack.settings).await?;
        let used = pids.used()? - before;
        server.program.kill_9();
        let rows = number(&self.stack.database, "SELECT count(*) FROM queue_orders").await? as f64;
        let mut run = rushed.run(used);
        run.more.insert("accepted_per_s", run.per_s);
        run.more.insert("accepted", buyers.into());
        run.more.insert("lost_at_kill_9", f64::from(buyers) - rows);
        run.per_s = rows / rushed.duration_s;
        Ok(run)
    }

    async fn open_loops(&mut self, echo: Option<&Served>) -> anyhow::Result<()> {
        if let Some(echo) = echo.filter(|_| self.wants(Kind::EchoOpen)) {
            let rate = self.rate_below(Kind::Echo);
            self.press_echo(Kind::EchoOpen, echo, rate).await?;
        }
        let url = self.stack.gateway_url.clone();
        if self.wants_any(&[Kind::AcceptOpen, Kind::SoldOutOpen]) {
            let sale = self.stack.open(Sale::of(self.plan.requests)).await?;
            let rate = self.rate_below(Kind::Accept);
            let load = Load { rate, ..self.load(&url, &sale, Told::Accepted) };
            self.measure(Kind::AcceptOpen, load).await?;
            if self.wants(Kind::SoldOutOpen) {
                let rate = self.rate_below(Kind::SoldOut);
                let load = self.load(&url, &sale, Told::SoldOut);
                self.measure(Kind::SoldOutOpen, Load { rate, prefix: "late-", ..load }).await?;
            }
        }
        Ok(())
    }

    /// A rate that the kind's closed loop reached easily; a closed loop where that was not measured.
    fn rate_below(&self, kind: Kind) -> Option<u64> {
        let rate = self.figures.per_s(kind)? * OPEN_LOOP_SHARE;
        format!("{rate:.0}").parse().ok()
    }
}
