//! Many rounds, one after the other, on deployments that live for a while.

use std::path::PathBuf;

use anyhow::Context as _;
use flashsale_test_support::binary;

use crate::deployment::Build;
use crate::{Deployment, Kind, Outcome, Plan};

/// A rebuild loads every sale that a partition ever had, so a deployment that lived for ever would
/// become slower with each round.
const ROUNDS_OF_A_DEPLOYMENT: usize = 25;

/// Runs rounds, and keeps a deployment for them.
#[derive(Default)]
pub struct Torture {
    deployment: Option<(Build, Deployment)>,
    rounds: usize,
    /// What was found when a deployment went that was no more use.
    found: Vec<String>,
}

/// Where the logs of a failed round go: `torture/<its seed>` in Cargo's target folder.
pub fn logs_of(seed: u64) -> PathBuf {
    let programs = binary("gateway");
    let target = programs.parent().and_then(std::path::Path::parent);
    target.unwrap_or(&programs).join("torture").join(seed.to_string())
}

impl Torture {
    /// The present deployment, if it is one for this round; else a new one, and the present one goes.
    ///
    /// # Errors
    /// When it does not start, or a store of the old one fails.
    pub async fn deployment(&mut self, plan: &Plan) -> anyhow::Result<&mut Deployment> {
        let build = Build::of(plan);
        // After a failover the roles have changed.
        let fits =
            |deployed: Build| deployed == build && (build != Build::Sentinels || self.rounds == 0);
        if !self.deployment.as_ref().is_some_and(|(deployed, _)| fits(*deployed)) {
            let found = self.finish().await?;
            self.found.extend(found);
            let started = Deployment::start(build).await;
            self.deployment = Some((build, started.context("the deployment does not start")?));
            self.rounds = 0;
        }
        Ok(&mut self.deployment.as_mut().expect("it was just put there").1)
    }

    /// The deployment of the last round, unless it failed.
    pub fn present(&self) -> Option<&Deployment> {
        self.deployment.as_ref().map(|(_, deployment)| deployment)
    }

    /// Runs a round. After a failure, or many rounds, the deployment goes; all its sales are audited
    /// before that.
    ///
    /// # Errors
    /// When no deployment can be started.
    pub async fn run(&mut self, plan: &Plan) -> anyhow::Result<Outcome> {
        let logs = logs_of(plan.seed);
        let mut outcome = self.deployment(plan).await?.run_round(plan, &logs).await;
        self.rounds += 1;
        outcome.failures.append(&mut self.found);
        if !outcome.failures.is_empty() {
            self.deployment = None;
        } else if self.rounds >= ROUNDS_OF_A_DEPLOYMENT {
            outcome.failures.extend(self.finish().await?);
        }
        Ok(outcome)
    }

    /// Ends the deployment; what the audit of all its sales finds.
    ///
    /// # Errors
    /// When a store fails.
    pub async fn finish(&mut self) -> anyhow::Result<Vec<String>> {
        match self.deployment.take() {
            None => Ok(Vec::new()),
            Some((_, deployment)) => deployment.check_all().await,
        }
    }
}

/// The command that runs a round again.
pub fn replay_command(seed: u64, kinds: &[Kind]) -> String {
    let mut command = format!("target/release/torture --replay {seed}");
    for kind in kinds {
        command.push_str(&format!(" --kind {kind}"));
    }
    command
}
