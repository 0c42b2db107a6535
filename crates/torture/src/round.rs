//! One round: a fresh sale, buyers, faults, rest, judgement.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flashsale_domain::Partition;
use flashsale_operations::{OperationError, Refused};
use flashsale_test_support::try_eventually;
use tokio::time::sleep;

use crate::check::{Found, home_of};
use crate::damage::Damage;
use crate::deployment::{Deployment, SOON};
use crate::load::Rush;
use crate::plan::Plan;

/// What a round came to.
#[derive(Debug)]
pub struct Outcome {
    /// Rows of its sale.
    pub orders: usize,
    /// Entries that it took from the stream.
    pub deleted: usize,
    /// Orders that buyers were told of and that it destroyed.
    pub lost: usize,
    /// Dead letters that are there now, of this deployment's rounds.
    pub dead: usize,
    /// Requests that buyers had to send again.
    pub retries: u64,
    /// How long it took.
    pub took: Duration,
    /// What is wrong; empty when all is well.
    pub failures: Vec<String>,
}

impl Deployment {
    /// Runs a round and judges it. What fails is in the outcome, and the logs of all programs are in
    /// `logs` then.
    pub async fn run_round(&mut self, plan: &Plan, logs: &Path) -> Outcome {
        let started = Instant::now();
        self.ended_logs.clear();
        let mut damage = Damage::default();
        let mut rush_log = String::new();
        let (found, failure) = match self.try_round(plan, &mut damage, &mut rush_log).await {
            Ok(found) => (found, None),
            Err(error) => (Found::default(), Some(format!("{error:#}"))),
        };
        let mut failures = damage.failures;
        failures.extend(failure);
        failures.extend(found.failures);
        if !failures.is_empty() {
            let mut texts = self.logs();
            texts.push(("rush".to_owned(), rush_log));
            texts.push(("plan".to_owned(), format!("{plan:#?}\n{:#?}\n", plan.steps())));
            texts.push(("failures".to_owned(), failures.join("\n") + "\n"));
            if let Err(error) = write_logs(logs, &texts) {
                failures.push(format!("and the logs could not be written: {error:#}"));
            }
        }
        Outcome {
            orders: found.orders,
            deleted: damage.deleted.len(),
            lost: found.lost,
            dead: found.dead,
            retries: found.retries,
            took: started.elapsed(),
            failures,
        }
    }

    async fn try_round(
        &mut self,
        plan: &Plan,
        damage: &mut Damage,
        rush_log: &mut String,
    ) -> anyhow::Result<Found> {
        let sale = self.open_sale(plan.load.stock).await?;
        let home = home_of(self, sale).await?;
        let rush = Rush::start(self, sale, &plan.load)?;
        for step in plan.steps() {
            let at = Duration::from_millis(step.at_ms);
            sleep(at.saturating_sub(rush.elapsed())).await;
            let fault = &plan.faults[step.fault];
            self.carry_out(plan, fault, step.phase, home, damage).await?;
        }
        let told = rush.end();
        *rush_log = rush.log();
        let told = told?;
        self.wait_for_rest().await?;
        if damage.may_have_lost() {
            // Redis still holds the units of what was taken from its stream, until it loads anew.
            self.rebuild(home).await?;
            self.wait_for_rest().await?;
        }
        self.check(plan, sale, &told, damage).await
    }

    /// Waits until everything that was admitted is where it belongs, and every program is ready.
    async fn wait_for_rest(&mut self) -> anyhow::Result<()> {
        self.wait_until_ready().await?;
        let rest =
            try_eventually(SOON, "the deployment is at rest", async || match self.unrest().await {
                Ok(None) => Ok(()),
                Ok(Some(why)) => Err(why),
                Err(error) => Err(format!("{error:#}")),
            });
        rest.await.map_err(anyhow::Error::msg)?;
        self.wait_until_ready().await
    }

    async fn rebuild(&self, home: Partition) -> anyhow::Result<()> {
        // Workers may be at it themselves.
        let rebuilt = try_eventually(SOON, "the partition is rebuilt", async || {
            match self.operations.rebuild_partition(home).await {
                Err(OperationError::Refused(refused @ Refused::RebuildRunning(_))) => Err(refused),
                other => Ok(other),
            }
        });
        rebuilt.await.map_err(anyhow::Error::msg)?.context("the drill's own rebuild")?;
        Ok(())
    }
}

fn write_logs(folder: &Path, texts: &[(String, String)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in texts {
        let path = folder.join(format!("{name}.log"));
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
