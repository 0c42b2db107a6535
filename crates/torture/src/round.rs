//! One round: a fresh sale, buyers, faults, rest, judgement.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use flashsale_domain::{LatePayment, OrderState, Partition, SaleId};
use flashsale_operations::{SettleAs, Settling};
use flashsale_storage_sql::StoredOrder;
use flashsale_test_support::try_eventually;
use tokio::time::sleep;

use crate::Kind;
use crate::check::{Found, home_of};
use crate::damage::Damage;
use crate::deployment::{Deployment, SOON};
use crate::load::{PATIENCE, Rush, Told};
use crate::plan::{After, Plan};

/// What a round came to.
#[derive(Debug)]
pub struct Outcome {
    /// Rows of its sale.
    pub orders: usize,
    /// Entries that it took from the stream.
    pub deleted: usize,
    /// Orders that it destroyed, and that were settled afterwards.
    pub lost: usize,
    /// Orders that were paid for, given up or left in its second half.
    pub ended: usize,
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
            ended: found.ended,
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
        let policy = plan.after.as_ref().map_or(LatePayment::Reacquire, |after| after.late_payment);
        let sale = self.open_sale(plan.load.stock, policy).await?;
        let home = home_of(self, sale).await?;
        let rush = Rush::start(self, sale, &plan.load)?;
        for step in plan.steps() {
            let at = Duration::from_millis(step.at_ms);
            sleep(at.saturating_sub(rush.elapsed())).await;
            let fault = &plan.faults[step.fault];
            self.carry_out(plan, fault, step.phase, home, damage).await?;
        }
        let told = rush.end(PATIENCE);
        *rush_log = rush.log();
        let told = told?;
        self.wait_for_rest().await?;
        if damage.may_have_lost() {
            self.settle(plan, sale, &told, damage).await?;
            self.wait_for_rest().await?;
        }
        let mut found = self.check(plan, sale, &told, damage).await?;
        if let Some(after) = plan.after.as_ref().filter(|_| found.failures.is_empty()) {
            let lived = self.second_half(plan, after, sale, home, &told, &mut found).await;
            // What was found before counts all the same.
            if let Err(error) = lived {
                found.failures.push(format!("after the orders: {error:#}"));
            }
        }
        Ok(found)
    }

    /// What becomes of the orders, and whether that is right.
    async fn second_half(
        &mut self,
        plan: &Plan,
        after: &After,
        sale: i64,
        home: Partition,
        told: &Told,
        found: &mut Found,
    ) -> anyhow::Result<()> {
        let id = SaleId::from_i64(sale).with_context(|| format!("sale {sale}"))?;
        let awaiting = |row: &StoredOrder| row.order.state == OrderState::AwaitingPayment;
        let open: Vec<StoredOrder> =
            self.read_rows(id).await?.into_values().filter(awaiting).collect();
        let mut damage = Damage::default();
        let lived = self.live_on(plan, after, home, open, &mut damage).await;
        found.failures.append(&mut damage.failures);
        let ended = lived?;
        self.wait_for_rest().await?;
        let nobody_waits = try_eventually(SOON, "no order waits for payment", async || {
            let rows = self.read_rows(id).await.map_err(|error| format!("{error:#}"))?;
            let waiting = rows.values().filter(|row| awaiting(row)).count();
            if waiting == 0 { Ok(()) } else { Err(format!("{waiting} orders wait")) }
        });
        found.failures.extend(nobody_waits.await.err());
        // The last ones have just let their units go.
        self.wait_for_rest().await?;
        let rows = self.read_rows(id).await?;
        self.check_ended(found, after, sale, &rows, &ended).await?;

        let again = self.buy_again(found, sale, &rows, &ended).await?;
        self.wait_for_rest().await?;
        Self::check_bought_again(found, &self.read_rows(id).await?, &again);
        self.check_units(found, sale).await?;
        self.check_dead_letters(found, &damage).await?;
        let receipts = [told.receipts.as_slice(), &again].concat();
        self.check_ledger_and_audit(found, id, &receipts).await
    }

    /// Waits until everything that was admitted is where it belongs, and every program is ready.
    pub(crate) async fn wait_for_rest(&mut self) -> anyhow::Result<()> {
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

    /// Settles what the round has destroyed, as an operator would: the audit names it, one command
    /// settles it.
    async fn settle(
        &self,
        plan: &Plan,
        sale: i64,
        told: &Told,
        damage: &mut Damage,
    ) -> anyhow::Result<()> {
        let id = SaleId::from_i64(sale).with_context(|| format!("sale {sale}"))?;
        // What a living worker had in memory has become a row, and is no loss.
        let rows = self.read_rows(id).await?;
        damage.deleted_while_pending.retain(|order, _| !rows.contains_key(order));
        let audit = self.operations.audit_sale(id, &told.receipts).await?;
        // Both ways are drilled.
        let settle_as =
            if plan.has(Kind::StreamTrim) { SettleAs::Rejected } else { SettleAs::Order };
        let receipts = told.receipts.clone();
        let settling = Settling { orders: Vec::new(), settle_as, receipts };
        let outcomes = self.operations.settle_lost(id, &settling, "torture", false).await?;
        damage.settled = outcomes.len();
        if audit.findings_total < outcomes.len() || (outcomes.is_empty() && !audit.is_clean()) {
            let settled = outcomes.len();
            let named: Vec<_> = audit.findings.iter().map(|finding| &finding.what).collect();
            damage.failures.push(format!("{settled} lost orders, but the audit named {named:?}"));
        }
        let refused = outcomes.iter().filter(|outcome| !outcome.settled);
        damage.failures.extend(refused.map(|outcome| format!("is not settled: {outcome:?}")));
        Ok(())
    }
}

pub(crate) fn write_logs(folder: &Path, texts: &[(String, String)]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in texts {
        let path = folder.join(format!("{name}.log"));
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
