//! The worker's write: a batch of queued orders becomes rows in one transaction.
//!
//! Rows first, in key order; then one guarded update for each sale, because the sale's row is what
//! every worker wants, and it should be held for as short as possible. Nothing here believes that
//! Redis was right: the guarded update, the CHECK and the unique index each refuse on their own.

use std::collections::{BTreeMap, HashMap, HashSet};

use flashsale_domain::{IdempotencyDigest, NewOrder, OrderId, OrderState, RejectReason, SaleId};
use sea_orm::sea_query::{Expr, ExprTrait as _, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, EntityTrait as _,
    QueryFilter as _, QuerySelect as _,
};

use crate::clock::now_ms;
use crate::entities::{order, sale};
use crate::events::insert_events;
use crate::new_rows::{Conflict, NewRow, SaleGuard, insert_rows};
use crate::outbox::{NewRelease, insert_release};
use crate::{Database, SqlFault};

/// What became of one order of a batch that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// A new row.
    Inserted,
    /// The row was there already, with the same content: the entry came again.
    Redelivered,
    /// A new row that says `rejected`.
    Rejected(RejectReason),
    /// No row: the database does not take it, now or later.
    Refused(CommitRefusal),
}

/// Why the database does not take an order that Redis admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitRefusal {
    /// There is no such sale.
    #[error("sale {0} is not in the database")]
    SaleMissing(SaleId),
    /// The database has no unit left.
    #[error("the database has no unit of sale {0} left")]
    StockGone(SaleId),
    /// The id belongs to a row with other content.
    #[error("order {0} is in the database with other content")]
    ContentConflict(OrderId),
    /// The entry is of a later epoch than the database knows: it was restored from an older state.
    #[error("epoch {entry} is above the database's {database}")]
    EpochAhead {
        /// The entry's.
        entry: i64,
        /// The sale's.
        database: i64,
    },
}

impl CommitRefusal {
    /// The reason of the order's dead letter.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::SaleMissing(_) => "sale-missing",
            Self::StockGone(_) => "stock-gone",
            Self::ContentConflict(_) => "content-conflict",
            Self::EpochAhead { .. } => "epoch-ahead",
        }
    }
}

/// A committed batch.
#[derive(Debug)]
pub struct CommittedBatch {
    /// One for each order that was passed in, in that order.
    pub outcomes: Vec<Commit>,
    /// The database's clock within the transaction: milliseconds since the Unix epoch.
    pub committed_ms: i64,
}

/// Why a batch was not committed. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum BatchFailure {
    /// Some order of the batch is refused; which one shows when the batch is halved.
    #[error("{0}")]
    Refused(CommitRefusal),
    /// Some order's data is refused; which one shows when the batch is halved.
    #[error("{0}")]
    Data(SqlFault),
    /// The database cannot be used now. No order is to blame.
    #[error("{0}")]
    Infrastructure(SqlFault),
    /// A sale was rebuilt, or a conflicting row went away, under the transaction: try again.
    #[error("the batch met a concurrent change")]
    Moved,
}

impl BatchFailure {
    /// The reason of the dead letter, for the order to blame; `None` when no order is.
    pub const fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Refused(refusal) => Some(refusal.as_str()),
            Self::Data(_) => Some("data-refused"),
            Self::Infrastructure(_) | Self::Moved => None,
        }
    }

    /// The database's code for refused data.
    pub fn code(&self) -> Option<String> {
        match self {
            Self::Data(fault) => fault.code(),
            Self::Refused(_) | Self::Infrastructure(_) | Self::Moved => None,
        }
    }
}

impl From<SqlFault> for BatchFailure {
    fn from(fault: SqlFault) -> Self {
        if fault.is_data() { Self::Data(fault) } else { Self::Infrastructure(fault) }
    }
}

impl From<sea_orm::DbErr> for BatchFailure {
    fn from(error: sea_orm::DbErr) -> Self {
        SqlFault::from(error).into()
    }
}

impl Database {
    /// Writes a batch of orders in one transaction.
    ///
    /// # Errors
    /// When nothing was written: see [`BatchFailure`].
    pub async fn commit_orders(&self, orders: &[NewOrder]) -> Result<CommittedBatch, BatchFailure> {
        let transaction = self.begin_write().await?;
        let written = self.write_batch(&transaction, orders, Conflict::Fails).await;
        match Self::end(transaction, written).await {
            Err(BatchFailure::Data(fault)) if fault.is_duplicate() => {}
            ended => return ended,
        }
        // Some order is there already, or its slot is taken: now each such order is told apart.
        let transaction = self.begin_write().await?;
        let written = self.write_batch(&transaction, orders, Conflict::Skips).await;
        Self::end(transaction, written).await
    }

    pub(crate) async fn write_batch(
        &self,
        transaction: &DatabaseTransaction,
        orders: &[NewOrder],
        conflict: Conflict,
    ) -> Result<CommittedBatch, BatchFailure> {
        let (sales, now) = self.read_guards(transaction, orders).await?;

        let mut outcomes: Vec<Option<Commit>> = vec![None; orders.len()];
        let mut rows = Vec::with_capacity(orders.len());
        let mut first_of_id: HashMap<OrderId, usize> = HashMap::with_capacity(orders.len());
        for (i, order) in orders.iter().enumerate() {
            if first_of_id.contains_key(&order.id) {
                continue;
            }
            first_of_id.insert(order.id, i);
            match sales.get(&order.sale_id) {
                None => {
                    outcomes[i] = Some(Commit::Refused(CommitRefusal::SaleMissing(order.sale_id)));
                }
                Some(guard) if order.epoch > guard.epoch => {
                    outcomes[i] = Some(Commit::Refused(CommitRefusal::EpochAhead {
                        entry: order.epoch,
                        database: guard.epoch,
                    }));
                }
                Some(guard) => {
                    let lost = order.epoch < guard.epoch;
                    let rejected = lost.then_some(RejectReason::MemoryLost);
                    rows.push(NewRow { order, guard, rejected });
                }
            }
        }
        // Workers insert in the same order, so that two of them never wait for each other in turn.
        rows.sort_unstable_by_key(|NewRow { order, .. }| {
            (order.sale_id, order.epoch, &order.user_id, order.slot, order.id)
        });

        let mut taken: BTreeMap<(SaleId, i64), i64> = BTreeMap::new();
        let mut missing = Vec::new();
        let inserted = insert_rows(transaction, &rows, conflict, now).await?;
        for row in &rows {
            let i = first_of_id[&row.order.id];
            if !inserted.contains(row.order.id) {
                missing.push(i);
            } else if let Some(reason) = row.rejected {
                outcomes[i] = Some(Commit::Rejected(reason));
            } else {
                *taken.entry((row.order.sale_id, row.guard.epoch)).or_default() += 1;
                outcomes[i] = Some(Commit::Inserted);
            }
        }
        for (i, obstacle) in explain_missing(transaction, orders, &missing).await? {
            outcomes[i] = Some(match obstacle {
                Obstacle::ItselfAlready => Commit::Redelivered,
                Obstacle::OtherContent => {
                    Commit::Refused(CommitRefusal::ContentConflict(orders[i].id))
                }
                Obstacle::HolderOfSlot(holder) => {
                    let reason = RejectReason::SlotTaken;
                    let guard = &sales[&orders[i].sale_id];
                    write_rejected(transaction, &orders[i], guard, now, reason, Some(holder))
                        .await?;
                    Commit::Rejected(reason)
                }
            });
        }
        self.announce(transaction, orders, &outcomes, &sales, now).await?;
        for ((sale, epoch), units) in taken {
            take_units(transaction, sale, epoch, units).await?;
        }

        // An id that came twice in the batch shares its first one's fate, if it is the same order.
        let outcome_of = |(i, order): (usize, &NewOrder)| {
            let first = first_of_id[&order.id];
            if !same_order(&orders[first], order) {
                return Commit::Refused(CommitRefusal::ContentConflict(order.id));
            }
            match outcomes[first].clone().expect("the first of an id has an outcome") {
                Commit::Inserted if first != i => Commit::Redelivered,
                outcome => outcome,
            }
        };
        let outcomes = orders.iter().enumerate().map(outcome_of).collect();
        Ok(CommittedBatch { outcomes, committed_ms: now })
    }

    /// Tells the shop of the new rows, if it wants to know.
    async fn announce(
        &self,
        transaction: &DatabaseTransaction,
        orders: &[NewOrder],
        outcomes: &[Option<Commit>],
        sales: &HashMap<SaleId, SaleGuard>,
        now: i64,
    ) -> Result<(), SqlFault> {
        if !self.writes_events {
            return Ok(());
        }
        let mut rows = Vec::new();
        for (order, outcome) in orders.iter().zip(outcomes) {
            let rejected = match outcome {
                Some(Commit::Inserted) => None,
                Some(Commit::Rejected(reason)) => Some(*reason),
                Some(Commit::Redelivered | Commit::Refused(_)) | None => continue,
            };
            let Some(guard) = sales.get(&order.sale_id) else { continue };
            rows.push(NewRow { order, guard, rejected }.stored(now)?);
        }
        insert_events(self, transaction, &rows, now).await
    }

    /// Writes one order as rejected, with what it gives back: `Rejected` with the reason that the row
    /// says, or `Redelivered` when the order is a row already, which stays as it is. An order of an
    /// older epoch is rejected as memory lost, whatever the reason was to be: Redis has forgotten it,
    /// and its key with it.
    ///
    /// # Errors
    /// When nothing was written: see [`BatchFailure`].
    pub async fn reject_order(
        &self,
        order: &NewOrder,
        reason: RejectReason,
    ) -> Result<Commit, BatchFailure> {
        let transaction = self.begin_write().await?;
        let written = self.write_rejection(&transaction, order, reason).await;
        Self::end(transaction, written).await
    }

    pub(crate) async fn write_rejection(
        &self,
        transaction: &DatabaseTransaction,
        order: &NewOrder,
        reason: RejectReason,
    ) -> Result<Commit, BatchFailure> {
        let orders = std::slice::from_ref(order);
        let (sales, now) = self.read_guards(transaction, orders).await?;
        let guard = sales
            .get(&order.sale_id)
            .ok_or(BatchFailure::Refused(CommitRefusal::SaleMissing(order.sale_id)))?;
        let is_lost = order.epoch < guard.epoch;
        let reason = if is_lost { RejectReason::MemoryLost } else { reason };
        if !write_rejected(transaction, order, guard, now, reason, None).await? {
            return Ok(Commit::Redelivered);
        }
        let rejected = Commit::Rejected(reason);
        self.announce(transaction, orders, &[Some(rejected.clone())], &sales, now).await?;
        Ok(rejected)
    }

    async fn read_guards(
        &self,
        transaction: &DatabaseTransaction,
        orders: &[NewOrder],
    ) -> Result<(HashMap<SaleId, SaleGuard>, i64), BatchFailure> {
        let ids: HashSet<i64> = orders.iter().map(|order| order.sale_id.as_i64()).collect();
        let statement = Query::select()
            .columns([
                sale::Column::Id,
                sale::Column::Epoch,
                sale::Column::PriceAmount,
                sale::Column::PriceCurrency,
                sale::Column::PaymentWindowS,
            ])
            .expr_as(now_ms(self.backend()), "now_ms")
            .from(sale::Entity)
            .and_where(Expr::col(sale::Column::Id).is_in(ids))
            .to_owned();
        let mut sales = HashMap::new();
        let mut now = 0;
        for row in transaction.query_all(&statement).await? {
            let id: i64 = row.try_get("", "id")?;
            now = row.try_get("", "now_ms")?;
            let guard = SaleGuard {
                epoch: row.try_get("", "epoch")?,
                price_amount: row.try_get("", "price_amount")?,
                price_currency: row.try_get("", "price_currency")?,
                payment_window_ms: row.try_get::<i64>("", "payment_window_s")? * 1000,
            };
            sales.extend(SaleId::from_i64(id).map(|id| (id, guard)));
        }
        if sales.is_empty() {
            now = self.read_now(transaction).await?;
        }
        Ok((sales, now))
    }
}

/// What stood in a row's way.
enum Obstacle {
    /// The same order, committed before.
    ItselfAlready,
    /// A row of the same id that says something else.
    OtherContent,
    /// An open order of the buyer in the same slot.
    HolderOfSlot(OrderId),
}

/// Looks at what stood in the way of the rows that were not inserted.
async fn explain_missing(
    transaction: &DatabaseTransaction,
    orders: &[NewOrder],
    missing: &[usize],
) -> Result<Vec<(usize, Obstacle)>, BatchFailure> {
    let mut rows = HashMap::new();
    for chunk in missing.chunks(1000) {
        let found = order::Entity::find()
            .filter(order::Column::Id.is_in(chunk.iter().map(|i| orders[*i].id.as_i64())))
            .all(transaction)
            .await?;
        rows.extend(found.into_iter().map(|row| (row.id, row)));
    }
    let mut obstacles = Vec::with_capacity(missing.len());
    for i in missing {
        let wanted = &orders[*i];
        let obstacle = match rows.get(&wanted.id.as_i64()) {
            Some(row) if same_content(row, wanted) || is_its_loss(row, wanted) => {
                Obstacle::ItselfAlready
            }
            Some(_) => Obstacle::OtherContent,
            None => {
                let holder: Option<i64> = order::Entity::find()
                    .select_only()
                    .column(order::Column::Id)
                    .filter(order::Column::SaleId.eq(wanted.sale_id.as_i64()))
                    .filter(order::Column::UserId.eq(wanted.user_id.as_str()))
                    .filter(order::Column::Slot.eq(i32::from(wanted.slot)))
                    .filter(order::Column::State.is_in(open_states()))
                    .into_tuple()
                    .one(transaction)
                    .await?;
                // Gone meanwhile: the slot is free, and the order can be inserted after all.
                let holder = holder.and_then(OrderId::from_i64).ok_or(BatchFailure::Moved)?;
                Obstacle::HolderOfSlot(holder)
            }
        };
        obstacles.push((*i, obstacle));
    }
    Ok(obstacles)
}

/// Writes an order as rejected, and what it gives back into the outbox. False when there is a row
/// already, which stays as it is.
async fn write_rejected(
    transaction: &DatabaseTransaction,
    order: &NewOrder,
    guard: &SaleGuard,
    now: i64,
    reason: RejectReason,
    instead: Option<OrderId>,
) -> Result<bool, BatchFailure> {
    let rejected = NewRow { order, guard, rejected: Some(reason) };
    let inserted = insert_rows(transaction, &[rejected], Conflict::Skips, now).await?;
    let is_new = inserted.contains(order.id);
    // An order of an older epoch holds nothing in Redis any more: the rebuild did not load it.
    if is_new && order.epoch == guard.epoch {
        let release = NewRelease {
            sale_id: order.sale_id,
            order_id: order.id,
            user_id: &order.user_id,
            generation: 1,
            cause: reason.as_str(),
            returns_unit: reason != RejectReason::StockGone,
            instead,
            now_ms: now,
        };
        insert_release(transaction, &release).await?;
    }
    Ok(is_new)
}

/// The states in which a row holds a unit and a slot; the unique index names the same.
pub(crate) fn open_states() -> impl Iterator<Item = &'static str> {
    // `queued` is open too, but never a row.
    OrderState::ALL
        .into_iter()
        .filter(|state| state.is_open() && *state != OrderState::Queued)
        .map(OrderState::as_str)
}

/// As [`same_content`], of two orders with one id.
fn same_order(a: &NewOrder, b: &NewOrder) -> bool {
    a.sale_id == b.sale_id && a.user_id == b.user_id && a.slot == b.slot && a.digest == b.digest
}

fn same_content(row: &order::Model, order: &NewOrder) -> bool {
    row.sale_id == order.sale_id.as_i64()
        && row.user_id == order.user_id.as_str()
        && row.slot == i32::from(order.slot)
        && row.digest.as_deref() == order.digest.as_ref().map(IdempotencyDigest::as_str)
}

/// Whether the row says that this very order was lost with Redis's memory. Such a row may come from a
/// buyer's receipt, which knows neither slot nor key.
fn is_its_loss(row: &order::Model, order: &NewOrder) -> bool {
    row.sale_id == order.sale_id.as_i64()
        && row.user_id == order.user_id.as_str()
        && row.state == OrderState::Rejected.as_str()
        && row.reason.as_deref() == Some(RejectReason::MemoryLost.as_str())
}

/// The guarded update: takes `units`, unless that would oversell or the sale was rebuilt meanwhile.
async fn take_units(
    transaction: &DatabaseTransaction,
    id: SaleId,
    epoch: i64,
    units: i64,
) -> Result<(), BatchFailure> {
    let statement = Query::update()
        .table(sale::Entity)
        .value(sale::Column::StockLeft, Expr::col(sale::Column::StockLeft).sub(units))
        .and_where(Expr::col(sale::Column::Id).eq(id.as_i64()))
        .and_where(Expr::col(sale::Column::Epoch).eq(epoch))
        .and_where(Expr::col(sale::Column::StockLeft).gte(units))
        .to_owned();
    if transaction.execute(&statement).await?.rows_affected() == 1 {
        return Ok(());
    }
    let now: Option<i64> = sale::Entity::find_by_id(id.as_i64())
        .select_only()
        .column(sale::Column::Epoch)
        .into_tuple()
        .one(transaction)
        .await?;
    Err(match now {
        Some(now) if now == epoch => BatchFailure::Refused(CommitRefusal::StockGone(id)),
        _ => BatchFailure::Moved,
    })
}
