//! Many rounds, one after the other, on deployments that live for a while.

use std::path::PathBuf;

use anyhow::Context as _;
use flashsale_test_support::binary;

use crate::{Deployment, Kind, Outcome, Plan};

/// A rebuild loads every sale that a partition ever had, so a deployment that lived for ever would
/// become slower with each round.
const ROUNDS_OF_A_DEPLOYMENT: usize = 25;

/// Runs rounds, and keeps a deployment for them.
#[derive(Default)]
pub struct Torture {
    deployment: Option<Deployment>,
    rounds: usize,
}

/// Where the logs of a failed round go: `torture/<its seed>` in Cargo's target folder.
pub fn logs_of(seed: u64) -> PathBuf {
    let programs = binary("gateway");
    let target = programs.parent().and_then(std::path::Path::parent);
    target.unwrap_or(&programs).join("torture").join(seed.to_string())
}

impl Torture {
    /// The present deployment; a new one when there is none.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn deployment(&mut self) -> anyhow::Result<&mut Deployment> {
        if self.deployment.is_none() {
            let started = Deployment::start().await.context("the deployment does not start")?;
            self.deployment = Some(started);
            self.rounds = 0;
        }
        Ok(self.deployment.as_mut().expect("it was just put there"))
    }

    /// Runs a round. After a failure, or many rounds, the deployment goes; all its sales are audited
    /// before that.
    ///
    /// # Errors
    /// When no deployment can be started.
    pub async fn run(&mut self, plan: &Plan) -> anyhow::Result<Outcome> {
        let logs = logs_of(plan.seed);
        let mut outcome = self.deployment().await?.run_round(plan, &logs).await;
        self.rounds += 1;
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
            Some(deployment) => deployment.check_all().await,
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
