//! The audit: checks the invariants I1 to I7 of a sale across Redis and the database, and names who
//! breaks them. A finding counts only when it persists over two readings, because a sale that is
//! running moves between one store's reading and the other's.

use std::collections::{BTreeMap, HashMap, HashSet};

use flashsale_domain::{OrderId, Partition, Sale, SaleId, UserId};
use flashsale_storage_redis::{Record, RedisFault, decode};
use flashsale_storage_sql::StoredOrder;
use serde::Serialize;
use tokio::time::sleep;

use crate::settle::RECHECK_AFTER;
use crate::{Ledger, OperationError, Operations, Refused};

/// An entry that waits longer than this for a worker breaks I5.
const UNAPPLIED_MAX_MS: u64 = 60_000;
/// How many offenders are named for each invariant.
const NAMED_MAX: usize = 10;

/// A sale's audit.
#[derive(Debug, Serialize)]
pub struct Audit {
    /// The sale.
    pub sale_id: SaleId,
    /// How many rows, records and receipts were looked at.
    pub rows_checked: usize,
    /// Buyers' records.
    pub records_checked: usize,
    /// Receipts.
    pub receipts_checked: usize,
    /// How much is broken; 0 when the sale is clean.
    pub findings_total: usize,
    /// What is broken: of each invariant the first ten.
    pub findings: Vec<Finding>,
    /// The sale's ledger.
    pub ledger: Ledger,
}

impl Audit {
    /// Whether nothing is broken.
    pub const fn is_clean(&self) -> bool {
        self.findings_total == 0
    }
}

/// The audits of all sales.
#[derive(Debug, Default, Serialize)]
pub struct AllAudits {
    /// One a sale.
    pub audits: Vec<Audit>,
    /// Sales that could not be audited.
    pub unread: Vec<Unread>,
}

/// A sale that cannot be audited, as when a key of it holds something else.
#[derive(Debug, Serialize)]
pub struct Unread {
    /// The sale.
    pub sale_id: SaleId,
    /// What went wrong.
    pub why: String,
}

/// One offender.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Finding {
    /// The invariant, `I1` to `I7`.
    pub invariant: &'static str,
    /// Who or what breaks it.
    pub what: String,
}

/// What a buyer was told: this order is yours.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// The order.
    pub order_id: OrderId,
    /// The buyer.
    pub user_id: UserId,
}

/// What one reading of both stores saw.
struct Reading {
    sale: Sale,
    ledger: Ledger,
    rows: HashMap<OrderId, StoredOrder>,
    records: HashMap<String, Record>,
    /// Orders of which the two stores may differ for the moment.
    in_transit: HashSet<OrderId>,
    /// By invariant and subject: what is the same finding in another reading, whatever its figures
    /// say by then. In order, so that the first ones are the same ones each time.
    findings: BTreeMap<(&'static str, String), String>,
}

impl Reading {
    fn find(&mut self, invariant: &'static str, subject: impl Into<String>, what: String) {
        self.findings.insert((invariant, subject.into()), what);
    }

    /// The first findings of each invariant.
    fn named_findings(&self) -> Vec<Finding> {
        let mut named: Vec<Finding> = Vec::new();
        for ((invariant, _), what) in &self.findings {
            if named.iter().filter(|finding| finding.invariant == *invariant).count() < NAMED_MAX {
                named.push(Finding { invariant, what: what.clone() });
            }
        }
        named
    }
}

impl Operations {
    /// Audits a sale. `receipts` are orders that buyers were told of: each must be a row, or on its
    /// way to be one, under its buyer.
    ///
    /// # Errors
    /// When there is no such sale, or a store fails.
    pub async fn audit_sale(
        &self,
        id: SaleId,
        receipts: &[Receipt],
    ) -> Result<Audit, OperationError> {
        let mut reading = self.read_both(id, receipts).await?;
        if !reading.findings.is_empty() {
            sleep(RECHECK_AFTER).await;
            let before = reading.findings;
            reading = self.read_both(id, receipts).await?;
            reading.findings.retain(|finding, _| before.contains_key(finding));
        }
        Ok(Audit {
            sale_id: id,
            rows_checked: reading.rows.len(),
            records_checked: reading.records.len(),
            receipts_checked: receipts.len(),
            findings_total: reading.findings.len(),
            findings: reading.named_findings(),
            ledger: reading.ledger,
        })
    }

    async fn read_both(&self, id: SaleId, receipts: &[Receipt]) -> Result<Reading, OperationError> {
        let sale = self.get_sale(id).await?;
        // Records first: an order admitted after this reading is a row without a record only to a
        // reader who looked the other way round.
        let (records, unreadable) = match sale.partition {
            Some(partition) => self.read_records(partition, id).await?,
            None => (HashMap::new(), Vec::new()),
        };
        let rows = self.read_rows(id).await?;
        let in_transit = self.database.orders_in_transit(id).await?;
        let in_transit = in_transit.releases.into_iter().chain(in_transit.late_payments).collect();
        let ledger = self.read_ledger(id).await?;
        let findings = BTreeMap::new();
        let mut reading = Reading { sale, ledger, rows, records, in_transit, findings };
        for user in unreadable {
            let what = format!("the record of buyer {user:?} cannot be read");
            reading.find("I3", user, what);
        }

        check_no_oversell(&mut reading);
        for violation in self.database.find_slot_violations(id, reading.sale.per_buyer).await? {
            let what = format!("buyer {:?} has {} open rows", violation.user_id, violation.open);
            reading.find("I2", violation.user_id, what);
        }
        check_one_per_buyer(&mut reading);
        if let Some(partition) = reading.sale.partition {
            self.check_nothing_lost(&mut reading, partition).await?;
            self.check_receipts_end(&mut reading, partition).await?;
        }
        self.check_receipts(&mut reading, receipts).await?;
        check_units_came_back(&mut reading);
        if !reading.ledger.is_balanced() {
            for problem in reading.ledger.problems.clone() {
                reading.find("I7", problem.account, problem.to_string());
            }
        }
        Ok(reading)
    }

    pub(crate) async fn read_rows(
        &self,
        id: SaleId,
    ) -> Result<HashMap<OrderId, StoredOrder>, OperationError> {
        let mut rows = HashMap::new();
        let mut after = None;
        loop {
            let page = self.database.list_sale_orders(id, after, 5000).await?;
            let Some(last) = page.last() else { return Ok(rows) };
            after = Some(last.order.id);
            rows.extend(page.into_iter().map(|row| (row.order.id, row)));
        }
    }

    pub(crate) async fn read_records(
        &self,
        partition: Partition,
        id: SaleId,
    ) -> Result<(HashMap<String, Record>, Vec<String>), OperationError> {
        let (mut records, mut unreadable) = (HashMap::new(), Vec::new());
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let page = self.redis.list_records(partition, id, from).await?;
            for (user, record) in page.records {
                match record {
                    Ok(record) => {
                        records.insert(user, record);
                    }
                    Err(_) => unreadable.push(user),
                }
            }
            cursor = page.next;
        }
        Ok((records, unreadable))
    }

    /// I3: an open order of a record is a row, an entry, or a dead letter; an open row has a record.
    async fn check_nothing_lost(
        &self,
        reading: &mut Reading,
        partition: Partition,
    ) -> Result<(), OperationError> {
        let mut recorded = HashSet::new();
        let mut missing = Vec::new();
        for (user, record) in &reading.records {
            for item in record.items.iter().filter(|item| item.open) {
                let Ok(id) = OrderId::from_entry(partition, item.entry) else {
                    let what = format!(
                        "order {} of buyer {user:?} is neither row, entry nor dead letter",
                        item.entry
                    );
                    missing.push((item.entry.to_string(), what));
                    continue;
                };
                recorded.insert(id);
                if reading.rows.get(&id).is_some_and(|row| row.order.user_id.as_str() != user) {
                    let what = format!("order {id} of buyer {user:?} is another buyer's row");
                    missing.push((id.to_string(), what));
                }
            }
        }
        let sale = reading.sale.id;
        for lost in self.find_lost(partition, &reading.records, &reading.rows).await? {
            let what = format!(
                "order {} of buyer {:?} is neither row, entry nor dead letter: \
                 run `salectl settle {sale}`",
                lost.id, lost.user
            );
            missing.push((lost.id.to_string(), what));
        }
        for (order, what) in missing {
            reading.find("I3", order, what);
        }
        let unrecorded: Vec<OrderId> = reading
            .rows
            .values()
            .filter(|row| row.order.state.is_open() && !recorded.contains(&row.order.id))
            .map(|row| row.order.id)
            .collect();
        for id in unrecorded {
            let Some(row) = reading.rows.get(&id) else { continue };
            // The record may have been written since the records were read.
            let user = row.order.user_id.clone();
            let held = match self.redis.find_record(partition, reading.sale.id, &user).await {
                Ok(record) => record.is_some_and(|record| record.holds(id.entry())),
                // It cannot be read, which is a finding already.
                Err(RedisFault::Reply { .. }) => true,
                Err(fault) => return Err(fault.into()),
            };
            if !held {
                let what = format!("row {id} of buyer {user} has no open record in Redis");
                reading.find("I3", id.to_string(), what);
            }
        }
        Ok(())
    }

    /// I5: no entry waits for long.
    async fn check_receipts_end(
        &self,
        reading: &mut Reading,
        partition: Partition,
    ) -> Result<(), OperationError> {
        if let Some(age_ms) = self.redis.oldest_unapplied_age(partition).await?
            && age_ms > UNAPPLIED_MAX_MS
        {
            let what = format!("an entry of partition {partition} has waited too long");
            reading.find("I5", partition.to_string(), what);
        }
        Ok(())
    }

    /// I4: what a buyer was told is his, under the id that he was told.
    async fn check_receipts(
        &self,
        reading: &mut Reading,
        receipts: &[Receipt],
    ) -> Result<(), OperationError> {
        for receipt in receipts {
            let (id, user) = (receipt.order_id, &receipt.user_id);
            match reading.rows.get(&id) {
                Some(row) if row.order.user_id == *user => {}
                Some(_) => {
                    let what = format!("order {id} was answered to {user} and is another's");
                    reading.find("I4", id.to_string(), what);
                }
                None => {
                    let queued = self.redis.find_entry(id.partition(), id.entry()).await?;
                    let dead = self.redis.find_dead_letter(id.partition(), id.entry()).await?;
                    let told = format!("order {id} was answered to {user}");
                    match queued.or(dead.map(|letter| letter.entry)) {
                        None => {
                            let sale = reading.sale.id;
                            let what = format!(
                                "{told} and is no row: run `salectl settle {sale} --receipts FILE`"
                            );
                            reading.find("I4", id.to_string(), what);
                        }
                        Some(entry) => {
                            if decode(id.partition(), &entry)
                                .is_ok_and(|order| order.user_id != *user)
                            {
                                reading.find(
                                    "I4",
                                    id.to_string(),
                                    format!("{told} and is another's"),
                                );
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Audits every sale, drafts too. One that cannot be read keeps no other from its audit.
    ///
    /// # Errors
    /// When a store fails, and not for one sale only.
    pub async fn audit_all(&self) -> Result<AllAudits, OperationError> {
        let mut all = AllAudits::default();
        for sale in self.list_sales().await? {
            match self.audit_sale(sale.id, &[]).await {
                Ok(audit) => all.audits.push(audit),
                Err(OperationError::Refused(Refused::SaleNotFound(_))) => {}
                Err(error) if error.is_of_one() => {
                    all.unread.push(Unread { sale_id: sale.id, why: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

/// I1: open orders never exceed the stock, on either side.
fn check_no_oversell(reading: &mut Reading) {
    let open = reading.ledger.awaiting_payment + reading.ledger.paid;
    if open > reading.ledger.total || reading.ledger.stock_left < 0 {
        let (total, left) = (reading.ledger.total, reading.ledger.stock_left);
        reading.find("I1", "database", format!("database: {open} open of {total}, {left} left"));
    }
    if let Some(account) = reading.ledger.redis.clone()
        && (account.held > account.total || account.available < 0)
    {
        let (held, total, left) = (account.held, account.total, account.available);
        reading.find("I1", "redis", format!("redis: {held} held of {total}, {left} left"));
    }
}

/// I2: no record holds more than the limit, or a slot twice.
fn check_one_per_buyer(reading: &mut Reading) {
    let limit = usize::from(reading.sale.per_buyer);
    let mut offenders = Vec::new();
    for (user, record) in &reading.records {
        let open: Vec<u16> =
            record.items.iter().filter(|item| item.open).map(|item| item.slot).collect();
        let slots: HashSet<u16> = open.iter().copied().collect();
        if open.len() > limit || slots.len() != open.len() {
            let what = format!("buyer {user:?} holds slots {open:?} in Redis, of {limit}");
            offenders.push((user.clone(), what));
        }
    }
    for (user, what) in offenders {
        reading.find("I2", user, what);
    }
}

/// I6: an order that is closed in the database no longer holds its unit in Redis.
fn check_units_came_back(reading: &mut Reading) {
    let Some(partition) = reading.sale.partition else { return };
    let mut offenders = Vec::new();
    for (user, record) in &reading.records {
        for item in record.items.iter().filter(|item| item.open) {
            let Ok(id) = OrderId::from_entry(partition, item.entry) else { continue };
            if let Some(row) = reading.rows.get(&id)
                && !row.order.state.is_open()
                && !reading.in_transit.contains(&id)
            {
                let state = row.order.state;
                let what = format!("order {id} of {user:?} is {state} but holds its unit");
                offenders.push((id.to_string(), what));
            }
        }
    }
    for (order, what) in offenders {
        reading.find("I6", order, what);
    }
}
