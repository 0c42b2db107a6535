//! A long outage of PostgreSQL under load: only on request, because it takes minutes.
//!
//! The orders wait on the stream. Afterwards all of them are rows, none is a dead letter, and none was
//! counted as having crashed its worker; meanwhile the workers neither spin nor fill their logs.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flashsale_domain::LatePayment;
use flashsale_test_support::Program;
use tokio::time::sleep;

use crate::Deployment;
use crate::check::home_of;
use crate::damage::Damage;
use crate::deployment::{Build, SOON};
use crate::load::Rush;
use crate::plan::{Load, Plan};
use crate::round::write_logs;

/// Orders a second.
const RATE: u32 = 100;
/// The load goes on for so long before the outage, and after it.
const MARGIN: Duration = Duration::from_secs(3);
/// Of each worker while the database is away, at most.
const LINES_PER_SECOND_MAX: f64 = 2.0;
const CPU_PERCENT_MAX: f64 = 5.0;
/// What Linux counts a process's time in, whatever its own clock does (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// What an outage came to.
#[derive(Debug, Default)]
pub struct LongOutage {
    /// Rows in the end.
    pub orders: usize,
    /// Entries that waited when the database came back.
    pub waited: u64,
    /// From the database's return until everything was at rest.
    pub caught_up_in: Duration,
    /// Of each worker while the database was away.
    pub workers: Vec<WorkerInOutage>,
    /// What is wrong; empty when all is well.
    pub failures: Vec<String>,
}

/// A worker while the database was away.
#[derive(Debug)]
pub struct WorkerInOutage {
    /// Which.
    pub name: String,
    /// Lines that it logged, a second.
    pub lines_per_second: f64,
    /// Of one core.
    pub cpu_percent: f64,
}

impl LongOutage {
    /// Stops PostgreSQL for so long, under load, on a deployment of its own.
    ///
    /// # Errors
    /// When no deployment can be started.
    pub async fn run(lasts: Duration, seed: u32, logs: &Path) -> anyhow::Result<Self> {
        let mut deployment =
            Deployment::start(Build::Plain).await.context("the deployment does not start")?;
        let mut outage = Self::default();
        if let Err(error) = outage.try_run(&mut deployment, lasts, seed).await {
            outage.failures.push(format!("{error:#}"));
        }
        if !outage.failures.is_empty()
            && let Err(error) = write_logs(logs, &deployment.logs())
        {
            outage.failures.push(format!("and the logs could not be written: {error:#}"));
        }
        Ok(outage)
    }

    async fn try_run(
        &mut self,
        deployment: &mut Deployment,
        lasts: Duration,
        seed: u32,
    ) -> anyhow::Result<()> {
        let seconds = u32::try_from((lasts + 2 * MARGIN).as_secs()).context("too long")?;
        let buyers = RATE * seconds;
        let load = Load { buyers, repeat: 1, stock: buyers, rate: RATE, seed };
        let plan = Plan { seed: seed.into(), load, faults: Vec::new(), after: None };
        let sale = deployment.open_sale(plan.load.stock, LatePayment::Reacquire).await?;
        let home = home_of(deployment, sale).await?;
        let rush = Rush::start(deployment, sale, &plan.load)?;
        sleep(MARGIN).await;

        deployment.stop_postgres();
        let begun = Instant::now();
        let before: Vec<(usize, f64)> = used(deployment)?;
        sleep(lasts).await;
        let after = used(deployment)?;
        let took = begun.elapsed().as_secs_f64();
        for (worker, ((lines, cpu), (lines_then, cpu_then))) in
            deployment.workers.iter().zip(before.into_iter().zip(after))
        {
            let lines = f64::from(u32::try_from(lines_then - lines).unwrap_or(u32::MAX));
            let worker = WorkerInOutage {
                name: worker.name(),
                lines_per_second: lines / took,
                cpu_percent: 100.0 * (cpu_then - cpu) / took,
            };
            if worker.lines_per_second >= LINES_PER_SECOND_MAX
                || worker.cpu_percent >= CPU_PERCENT_MAX
            {
                self.failures.push(format!("too busy or too loud: {worker:?}"));
            }
            self.workers.push(worker);
        }
        self.waited = deployment
            .redis
            .backlog(home)
            .await?
            .and_then(flashsale_storage_redis::Backlog::total)
            .unwrap_or_default();
        let attempts = deployment.raw.list_attempts(home).await?;

        deployment.start_postgres();
        let back = Instant::now();
        let told = rush.end(SOON)?;
        deployment.wait_for_rest().await?;
        self.caught_up_in = back.elapsed();
        let attempts_then = deployment.raw.list_attempts(home).await?;
        for (when, attempts) in [("in the outage", attempts), ("after it", attempts_then)] {
            if !attempts.is_empty() {
                self.failures.push(format!("attempts were counted {when}: {attempts:?}"));
            }
        }
        let found = deployment.check(&plan, sale, &told, &Damage::default()).await?;
        self.orders = found.orders;
        if u32::try_from(found.orders) != Ok(buyers) {
            self.failures.push(format!("{} rows of {buyers} buyers", found.orders));
        }
        self.failures.extend(found.failures);
        Ok(())
    }
}

/// Lines logged and seconds of CPU used by each worker so far.
fn used(deployment: &Deployment) -> anyhow::Result<Vec<(usize, f64)>> {
    let of_one =
        |program: &Program| Ok((program.log().lines().count(), cpu_seconds(program.pid())?));
    deployment.workers.iter().map(|worker| of_one(&worker.member.program)).collect()
}

fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // After the name, which may hold anything: the state is the first, user and system time the 12th
    // and 13th.
    let fields = text.rsplit_once(')').context("a process has a name")?.1;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |place: usize| -> anyhow::Result<f64> {
        Ok(fields.get(place).context("too few fields")?.parse()?)
    };
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}
