//! What must be true after a round: the receipts against the rows and dead letters, then the ledger
//! and the audit. Each failure is one line.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use flashsale_bootstrap::clock;
use flashsale_domain::{OrderId, OrderState, Partition, RejectReason, SaleId};
use flashsale_operations::Receipt;
use flashsale_storage_sql::StoredOrder;
use serde::Deserialize;

use crate::damage::Damage;
use crate::deployment::Deployment;
use crate::load::Told;
use crate::plan::Plan;

/// Of one kind of failure so many are named.
const NAMED_MAX: usize = 5;
/// No round takes longer than this.
const ROUND_MS: i64 = 10 * 60 * 1_000;
/// Between two readings of the same clock in one transaction, on a busy machine.
const CLOCK_READINGS_MS: i64 = 5_000;
/// So many lost orders are asked for over HTTP.
const ASKED_MAX: usize = 10;
/// More lines than the drills of one deployment write.
const AUDIT_LINES: u64 = 100_000;
/// What a worker writes when an entry that it should have had is gone.
const ENTRY_LOST: &str = "entry.lost";

/// What the checks saw.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Rows of the sale.
    pub(crate) orders: usize,
    /// Orders that the drill itself destroyed, and that were settled.
    pub(crate) lost: usize,
    /// Dead letters that this deployment's drills appended.
    pub(crate) dead: usize,
    /// Orders of which the second half of the round made something.
    pub(crate) ended: usize,
    /// Requests that buyers had to send again.
    pub(crate) retries: u64,
    /// What is wrong.
    pub(crate) failures: Vec<String>,
}

impl Found {
    /// Reports those that should not be there.
    pub(crate) fn complain(&mut self, what: &str, offenders: &[String]) {
        if offenders.is_empty() {
            return;
        }
        let named = offenders[..offenders.len().min(NAMED_MAX)].join(", ");
        self.failures.push(format!("{} {what}: {named}", offenders.len()));
    }
}

impl Deployment {
    /// Judges a sale at rest.
    pub(crate) async fn check(
        &self,
        plan: &Plan,
        sale: i64,
        told: &Told,
        damage: &Damage,
    ) -> anyhow::Result<Found> {
        let mut found = Found { retries: told.figures.retries, ..Found::default() };
        let id = SaleId::from_i64(sale).ok_or_else(|| anyhow::anyhow!("sale {sale}"))?;
        let rows = self.read_rows(id).await?;
        found.orders = rows.len();
        found.lost = damage.settled;
        check_receipts(&mut found, &rows, told);
        check_rows(&mut found, &rows, plan, told, damage);
        check_answers(&mut found, told, damage);
        self.check_times(&mut found, id, &rows).await?;
        self.check_dead_letters(&mut found, damage).await?;
        self.check_losses_are_named(&mut found, damage).await?;
        self.check_rejected_are_told(&mut found, &rows).await?;
        self.check_ledger_and_audit(&mut found, id, &told.receipts).await?;
        Ok(found)
    }

    pub(crate) async fn read_rows(
        &self,
        sale: SaleId,
    ) -> anyhow::Result<HashMap<OrderId, StoredOrder>> {
        let mut rows = HashMap::new();
        let mut after = None;
        loop {
            let page = self.database.list_sale_orders(sale, after, 5_000).await?;
            let Some(last) = page.last() else { return Ok(rows) };
            after = Some(last.order.id);
            rows.extend(page.into_iter().map(|row| (row.order.id, row)));
        }
    }

    /// Ids, commits and deadlines are of Redis's and the database's clock, which are the machine's,
    /// whatever the clocks of the programs say.
    async fn check_times(
        &self,
        found: &mut Found,
        sale: SaleId,
        rows: &HashMap<OrderId, StoredOrder>,
    ) -> anyhow::Result<()> {
        let window_ms = self.operations.get_sale(sale).await?.payment_window_s * 1_000;
        let now_ms = clock::now_ms();
        let is_recent = |ms: i64| (now_ms - ROUND_MS..=now_ms + CLOCK_READINGS_MS).contains(&ms);
        let mut wrong = Vec::new();
        for row in rows.values() {
            let order = &row.order;
            let id_ms = i64::try_from(order.id.entry().ms).unwrap_or(i64::MAX);
            let committed_ms = order.committed_ms.unwrap_or_default();
            let left_ms = order.pay_by_ms.map(|pay_by_ms| pay_by_ms - committed_ms - window_ms);
            if !is_recent(id_ms)
                || !is_recent(committed_ms)
                || left_ms.is_some_and(|left_ms| left_ms.abs() > CLOCK_READINGS_MS)
            {
                wrong.push(format!("{order:?}"));
            }
        }
        found.complain("rows have times of another clock", &wrong);
        Ok(())
    }

    /// The dead letters are those that drills appended, byte for byte, and no others.
    pub(crate) async fn check_dead_letters(
        &self,
        found: &mut Found,
        damage: &Damage,
    ) -> anyhow::Result<()> {
        let mut there = BTreeSet::new();
        let (mut strange, mut changed) = (Vec::new(), Vec::new());
        for partition in self.partitions() {
            for letter in self.redis.list_dead_letters(partition).await? {
                let id = letter.entry.id;
                there.insert((partition, id));
                match self.poison.get(&(partition, id)) {
                    None => strange.push(format!("{id} ({}: {})", letter.reason, letter.detail)),
                    Some(poison) if poison.fields != letter.entry.fields => {
                        changed.push(id.to_string());
                    }
                    Some(_) => {}
                }
            }
        }
        found.dead = there.len();
        let missing: Vec<String> = self
            .poison
            .iter()
            .filter(|(key, poison)| poison.must_be_there && !there.contains(key))
            .filter(|((partition, id), _)| {
                let order = OrderId::from_entry(*partition, *id);
                order.is_err() || order.is_ok_and(|order| !damage.may_have_lost_order(order))
            })
            .map(|((_, id), _)| id.to_string())
            .collect();
        found.complain("dead letters that no drill appended", &strange);
        found.complain("dead letters with other bytes than were appended", &changed);
        found.complain("bad entries are no dead letters", &missing);
        Ok(())
    }

    /// What was taken while a worker held it, and never became a row, stands in the audit log; and
    /// nothing else does.
    async fn check_losses_are_named(
        &self,
        found: &mut Found,
        damage: &Damage,
    ) -> anyhow::Result<()> {
        let log = self.database.list_audit(AUDIT_LINES).await?;
        let named: BTreeSet<String> = log
            .into_iter()
            .filter(|entry| entry.action == ENTRY_LOST)
            .map(|entry| entry.subject)
            .collect();
        let deleted: BTreeSet<String> = self.deleted.iter().map(ToString::to_string).collect();
        let untrue: Vec<String> = named.difference(&deleted).cloned().collect();
        found.complain("entries are called lost that no drill deleted", &untrue);
        if damage.trace_is_gone {
            return Ok(());
        }
        let unnamed: Vec<String> = damage
            .deleted_while_pending
            .iter()
            .filter(|(id, _)| !named.contains(&id.to_string()))
            .filter(|(id, _)| !self.is_poison(**id))
            .map(|(id, consumer)| format!("{id} (held by {consumer})"))
            .collect();
        found.complain("lost orders were pending and are not in the audit log", &unnamed);
        Ok(())
    }

    fn is_poison(&self, id: OrderId) -> bool {
        self.poison.contains_key(&(id.partition(), id.entry()))
    }

    /// Whose order was lost and rejected is told so, and why.
    async fn check_rejected_are_told(
        &self,
        found: &mut Found,
        rows: &HashMap<OrderId, StoredOrder>,
    ) -> anyhow::Result<()> {
        #[derive(Debug, Deserialize)]
        struct Order {
            state: String,
            reason: Option<String>,
        }
        let mut wrong = Vec::new();
        let rejected = rows.values().filter(|row| row.order.state == OrderState::Rejected);
        for row in rejected.take(ASKED_MAX) {
            let url = format!("{}/api/v1/orders/{}", self.gateway.url(), row.order.id);
            let token = self.token(row.order.user_id.as_str())?;
            let answer = self.http.get(url).bearer_auth(token).send().await?;
            let (status, text) = (answer.status(), answer.text().await?);
            let told_so = serde_json::from_str::<Order>(&text).is_ok_and(|order| {
                order.state == OrderState::Rejected.as_str() && order.reason == row.order.reason
            });
            if !told_so {
                wrong.push(format!("{} ({status} {text})", row.order.id));
            }
        }
        found.complain("lost orders are not answered as they were settled", &wrong);
        Ok(())
    }

    pub(crate) async fn check_ledger_and_audit(
        &self,
        found: &mut Found,
        sale: SaleId,
        receipts: &[Receipt],
    ) -> anyhow::Result<()> {
        let ledger = self.operations.read_ledger(sale).await?;
        if !ledger.is_balanced() || ledger.queued != 0 || ledger.in_transit != 0 || ledger.dead != 0
        {
            found.failures.push(format!("the ledger of a sale at rest: {ledger:?}"));
        }
        let audit = self.operations.audit_sale(sale, receipts).await?;
        let findings: Vec<String> =
            audit.findings.iter().map(|f| format!("{} {}", f.invariant, f.what)).collect();
        found.complain("findings of the audit", &findings);
        Ok(())
    }

    /// Audits every sale of this deployment: what a later round did must not have harmed them.
    pub(crate) async fn check_all(&self) -> anyhow::Result<Vec<String>> {
        let all = self.operations.audit_all().await?;
        let unread = all.unread.iter().map(|it| format!("sale {}: {}", it.sale_id, it.why));
        let findings = all.audits.iter().flat_map(|audit| {
            let sale = audit.sale_id;
            audit.findings.iter().map(move |f| format!("sale {sale}: {} {}", f.invariant, f.what))
        });
        Ok(findings.chain(unread).collect())
    }
}

/// Every receipt is one row under its buyer, whatever was destroyed: that was settled.
fn check_receipts(found: &mut Found, rows: &HashMap<OrderId, StoredOrder>, told: &Told) {
    let (mut missing, mut others) = (Vec::new(), Vec::new());
    for receipt in &told.receipts {
        match rows.get(&receipt.order_id) {
            Some(row) if row.order.user_id == receipt.user_id => {}
            Some(row) => others.push(format!("{} of {}", row.order.id, row.order.user_id)),
            None => missing.push(format!("{} of {}", receipt.order_id, receipt.user_id)),
        }
    }
    found.complain("orders that buyers were told of are no rows", &missing);
    found.complain("orders that buyers were told of are another's", &others);
}

/// No row without a buyer of this round, none twice, none rejected, and not more than were asked for.
fn check_rows(
    found: &mut Found,
    rows: &HashMap<OrderId, StoredOrder>,
    plan: &Plan,
    told: &Told,
    damage: &Damage,
) {
    let (mut strange, mut rejected) = (Vec::new(), Vec::new());
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows.values() {
        let (id, user) = (row.order.id, row.order.user_id.as_str());
        let number = user.strip_prefix(&told.prefix).and_then(|number| number.parse::<u32>().ok());
        if number.is_none_or(|number| number >= plan.load.buyers) {
            strange.push(format!("{id} of {user}"));
        }
        if row.order.state.is_open() {
            *open.entry(user).or_default() += 1;
        }
        // What was lost may be rejected, and says why.
        let reason = row.order.reason.as_deref();
        let lost = [RejectReason::MemoryLost, RejectReason::EntryLost];
        let forgotten =
            damage.may_have_lost_order(id) && lost.iter().any(|lost| reason == Some(lost.as_str()));
        if row.order.state != OrderState::AwaitingPayment && !forgotten {
            rejected.push(format!("{id} is {} ({:?})", row.order.state, row.order.reason));
        }
    }
    let twice: Vec<String> =
        open.iter().filter(|(_, rows)| **rows > 1).map(|(user, _)| (*user).to_owned()).collect();
    found.complain("rows of nobody who pressed", &strange);
    found.complain("rows do not wait for payment", &rejected);
    found.complain("buyers have several open rows", &twice);
    if open.len() > usize::try_from(plan.load.stock).unwrap_or(usize::MAX) {
        found.failures.push(format!("{} open rows of {} units", open.len(), plan.load.stock));
    }

    // A buyer without an answer may have a row all the same, and nobody else.
    let receipts: BTreeSet<OrderId> = told.receipts.iter().map(|r| r.order_id).collect();
    let untold = rows.keys().filter(|id| !receipts.contains(id)).count();
    let figures = &told.figures;
    let unanswered =
        figures.unavailable + figures.transport_errors + (figures.planned - figures.requests);
    if u64::try_from(untold).unwrap_or(u64::MAX) > unanswered {
        found
            .failures
            .push(format!("{untold} rows without a receipt, {unanswered} requests unanswered"));
    }
}

/// What buyers were told is free of contradictions, but for those whose orders were destroyed.
fn check_answers(found: &mut Found, told: &Told, damage: &Damage) {
    let figures = &told.figures;
    if figures.contradictions > 0 && !damage.redis_lost() {
        let examples = figures.contradiction_examples.join("; ");
        found.failures.push(format!("{} contradictions: {examples}", figures.contradictions));
    }
    // The sale was open before the first of them came, and is for an hour.
    if figures.not_started + figures.ended > 0 {
        let (early, late) = (figures.not_started, figures.ended);
        found.failures.push(format!("{early} buyers were told not-started, and {late} ended"));
    }
    if figures.server_errors > 0 {
        found.failures.push(format!("server errors: {:?}", figures.server_errors_by_status));
    }
    if figures.client_errors > 0 {
        found.failures.push(format!("{} client errors", figures.client_errors));
    }
    if figures.transport_errors > 0 {
        let example = figures.transport_error_example.as_deref().unwrap_or("?");
        found.failures.push(format!("{} transport errors: {example}", figures.transport_errors));
    }
}

/// Where a sale with this id lives: sales take turns over the partitions.
pub(crate) async fn home_of(deployment: &Deployment, sale: i64) -> anyhow::Result<Partition> {
    let id = SaleId::from_i64(sale).ok_or_else(|| anyhow::anyhow!("sale {sale}"))?;
    let sale = deployment.operations.get_sale(id).await?;
    sale.partition.ok_or_else(|| anyhow::anyhow!("the sale has no home"))
}
