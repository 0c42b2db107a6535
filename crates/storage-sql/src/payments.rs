//! Payments: what becomes of an order and of the money when the payment provider reports.
//!
//! Every report that names a known order ends as one row of `payments`, and is answered the same
//! again. Money is never dropped: what buys nothing is `refund_due`, for an operator to give back.

use flashsale_domain::{
    DIRECT_PARTITION, LatePayment, NewPayment, OrderId, OrderState, PaymentOutcome, Price, SaleId,
    SaleState,
};
use sea_orm::sea_query::{Expr, ExprTrait as _, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, EntityTrait as _,
    QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use crate::closing::{insert_releases_of, lock_order};
use crate::commit::open_states;
use crate::entities::{order, payment, sale};
use crate::events::{NewEvent, insert_events, insert_new_events};
use crate::{Database, SqlFault, StoredOrder};

/// What the payment provider is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PaymentAnswer {
    /// There is no such row: perhaps not yet.
    OrderNotFound,
    /// It is decided.
    Settled {
        /// What became of it.
        outcome: PaymentOutcome,
        /// The same message was decided before.
        repeated: bool,
    },
    /// The message's id was used before, for another order or another amount.
    IdReused,
    /// A unit has to be taken in Redis first; then [`Database::finish_reacquiring`].
    Reacquire(Box<Reacquiring>),
}

/// An expired order that was paid for, and is to take a unit again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reacquiring {
    /// The payment's row.
    pub payment_id: i64,
    /// The order, as it expired.
    pub stored: StoredOrder,
    /// The generation of the new hold.
    pub generation: u32,
}

/// A unit that Redis has given to an expired order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenUnit {
    /// The sale's epoch in which it was taken.
    pub epoch: i64,
}

/// Money that an operator has to give back, or has given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPayment {
    /// Its row.
    pub id: i64,
    /// The id of the provider's message.
    pub webhook_id: String,
    /// The order that it was for.
    pub order_id: OrderId,
    /// How much was paid.
    pub price: Price,
    /// What became of it.
    pub outcome: PaymentOutcome,
    /// When it was reported: milliseconds since the Unix epoch, by the database's clock.
    pub received_ms: i64,
}

impl Database {
    /// Decides about a payment, in one transaction.
    ///
    /// # Errors
    /// When the database cannot be asked: the provider's retry finds out.
    pub async fn receive_payment(&self, new: &NewPayment) -> Result<PaymentAnswer, SqlFault> {
        let transaction = self.begin_write().await?;
        let decided = self.decide_payment(&transaction, new).await;
        Self::end(transaction, decided).await
    }

    async fn decide_payment(
        &self,
        transaction: &DatabaseTransaction,
        new: &NewPayment,
    ) -> Result<PaymentAnswer, SqlFault> {
        // The order's lock makes reports about one order wait for each other.
        let Some(row) = lock_order(transaction, new.order_id).await? else {
            return Ok(PaymentAnswer::OrderNotFound);
        };
        let stored = StoredOrder::try_from(row.clone())?;
        let known = payment::Entity::find()
            .filter(payment::Column::WebhookId.eq(new.webhook_id.as_str()))
            .one(transaction)
            .await?;
        if let Some(known) = known {
            let outcome = known
                .outcome
                .parse()
                .map_err(|_| SqlFault::row("payments", known.id, "outcome"))?;
            if order_id_of(&known)? != new.order_id || price_of(&known)? != new.price {
                return Ok(PaymentAnswer::IdReused);
            }
            if outcome != PaymentOutcome::Reacquiring {
                return Ok(PaymentAnswer::Settled { outcome, repeated: true });
            }
            return Ok(reacquire(known.id, stored));
        }

        let now = self.read_now(transaction).await?;
        let sale = sale::Entity::find_by_id(stored.order.sale_id.as_i64()).one(transaction).await?;
        let sale = sale.ok_or_else(|| SqlFault::row("orders", row.id, "sale_id"))?;
        let sale = flashsale_domain::Sale::try_from(sale)?;
        let overdue = stored.order.pay_by_ms.is_some_and(|pay_by| now >= pay_by);

        if stored.order.price != Some(new.price) {
            return self.settle(transaction, new, &stored, PaymentOutcome::Mismatch, now).await;
        }
        match (stored.order.state, sale.late_payment) {
            // Overdue and not yet swept: it still holds its unit, and nobody else has had it.
            (OrderState::AwaitingPayment, LatePayment::Reacquire) => {
                self.pay(transaction, new, &stored, now).await
            }
            (OrderState::AwaitingPayment, LatePayment::Refund) if !overdue => {
                self.pay(transaction, new, &stored, now).await
            }
            (OrderState::AwaitingPayment, LatePayment::Refund) => {
                let expired =
                    self.end_orders(transaction, vec![row], OrderState::Expired, now).await?;
                self.refund_order(transaction, new, &expired[0], now).await
            }
            // Paid twice, and late both times: one of the two buys the unit, and decides about the
            // order.
            (OrderState::Expired, _) if is_being_reacquired(transaction, row.id).await? => {
                self.settle(transaction, new, &stored, PaymentOutcome::RefundDue, now).await
            }
            (OrderState::Expired, LatePayment::Reacquire) if sale.state != SaleState::Closed => {
                let outcome = PaymentOutcome::Reacquiring;
                let id = insert_payment(transaction, new, outcome, now).await?;
                Ok(reacquire(id, stored))
            }
            (OrderState::Expired, _) => self.refund_order(transaction, new, &stored, now).await,
            // Paid already, given up or rejected: the order stays as it is.
            (
                OrderState::Queued
                | OrderState::Paid
                | OrderState::Cancelled
                | OrderState::RefundDue
                | OrderState::Rejected
                | OrderState::Dead,
                _,
            ) => self.settle(transaction, new, &stored, PaymentOutcome::RefundDue, now).await,
        }
    }

    /// An order that waits for payment is paid.
    async fn pay(
        &self,
        transaction: &DatabaseTransaction,
        new: &NewPayment,
        stored: &StoredOrder,
        now: i64,
    ) -> Result<PaymentAnswer, SqlFault> {
        let paid =
            move_order(transaction, stored, OrderState::Paid, stored.generation, now).await?;
        insert_events(self, transaction, &[paid], now).await?;
        insert_payment(transaction, new, PaymentOutcome::Paid, now).await?;
        Ok(PaymentAnswer::Settled { outcome: PaymentOutcome::Paid, repeated: false })
    }

    /// An expired order's money is due back.
    async fn refund_order(
        &self,
        transaction: &DatabaseTransaction,
        new: &NewPayment,
        stored: &StoredOrder,
        now: i64,
    ) -> Result<PaymentAnswer, SqlFault> {
        let due =
            move_order(transaction, stored, OrderState::RefundDue, stored.generation, now).await?;
        insert_events(self, transaction, std::slice::from_ref(&due), now).await?;
        self.settle(transaction, new, &due, PaymentOutcome::RefundDue, now).await
    }

    /// Writes down a payment that does not pay its order, and announces it.
    async fn settle(
        &self,
        transaction: &DatabaseTransaction,
        new: &NewPayment,
        stored: &StoredOrder,
        outcome: PaymentOutcome,
        now: i64,
    ) -> Result<PaymentAnswer, SqlFault> {
        insert_payment(transaction, new, outcome, now).await?;
        self.announce_payment(transaction, stored, outcome, new.price, now).await?;
        Ok(PaymentAnswer::Settled { outcome, repeated: false })
    }

    /// Tells the shop of money that bought nothing.
    async fn announce_payment(
        &self,
        transaction: &DatabaseTransaction,
        stored: &StoredOrder,
        outcome: PaymentOutcome,
        price: Price,
        now: i64,
    ) -> Result<(), SqlFault> {
        let kind = format!("payment.{outcome}");
        insert_new_events(self, transaction, vec![NewEvent { kind, stored, price }], now).await
    }

    /// Expired orders that were paid for and have yet to take a unit, oldest first.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_reacquiring(&self, limit: u64) -> Result<Vec<Reacquiring>, SqlFault> {
        let payments = payment::Entity::find()
            .filter(payment::Column::Outcome.eq(PaymentOutcome::Reacquiring.as_str()))
            .order_by_asc(payment::Column::Id)
            .limit(limit)
            .all(&self.connection)
            .await?;
        let mut reacquiring = Vec::with_capacity(payments.len());
        for row in payments {
            let order_id = order_id_of(&row)?;
            // One that is no longer expired was finished by somebody else since the payments were read:
            // the generation above that of its new hold is nobody's, and would be taken back again.
            let stored = self.find_order(order_id).await?;
            if let Some(stored) = stored.filter(|it| it.order.state == OrderState::Expired) {
                let generation = stored.generation + 1;
                reacquiring.push(Reacquiring { payment_id: row.id, stored, generation });
            }
        }
        Ok(reacquiring)
    }

    /// Finishes what [`PaymentAnswer::Reacquire`] began. `taken` is the unit that Redis (or, of a
    /// direct sale, nobody yet) has given; `None` when there was none to be had. `None` is returned
    /// when the sale was rebuilt meanwhile, and Redis has to be asked again.
    ///
    /// # Errors
    /// When the database cannot be asked: the worker finishes it.
    pub async fn finish_reacquiring(
        &self,
        reacquiring: &Reacquiring,
        taken: Option<TakenUnit>,
    ) -> Result<Option<PaymentOutcome>, SqlFault> {
        match self.try_finish(reacquiring, taken, false).await {
            // Another order of the buyer took the slot under us: the unit goes back.
            Err(fault) if fault.is_data() => self.try_finish(reacquiring, taken, true).await,
            result => result,
        }
    }

    async fn try_finish(
        &self,
        reacquiring: &Reacquiring,
        taken: Option<TakenUnit>,
        refused: bool,
    ) -> Result<Option<PaymentOutcome>, SqlFault> {
        let transaction = self.begin_write().await?;
        let finished = self.finish(&transaction, reacquiring, taken, refused).await;
        Self::end(transaction, finished).await
    }

    async fn finish(
        &self,
        transaction: &DatabaseTransaction,
        reacquiring: &Reacquiring,
        taken: Option<TakenUnit>,
        refused: bool,
    ) -> Result<Option<PaymentOutcome>, SqlFault> {
        let id = reacquiring.stored.order.id;
        let missing = || SqlFault::row("payments", reacquiring.payment_id, "order_id");
        let row = lock_order(transaction, id).await?.ok_or_else(missing)?;
        let payment = payment::Entity::find_by_id(reacquiring.payment_id).one(transaction).await?;
        let payment = payment.ok_or_else(missing)?;
        let outcome: PaymentOutcome = payment
            .outcome
            .parse()
            .map_err(|_| SqlFault::row("payments", payment.id, "outcome"))?;
        let stored = StoredOrder::try_from(row)?;
        let now = self.read_now(transaction).await?;
        let held = StoredOrder { generation: reacquiring.generation, ..stored.clone() };
        if outcome != PaymentOutcome::Reacquiring {
            // Somebody else was faster, and Redis may have given a unit after he was refused one.
            let has_it = stored.order.state == OrderState::Paid
                && stored.generation == reacquiring.generation;
            if taken.is_some() && !has_it {
                insert_releases_of(transaction, &[held], "late-payment", now).await?;
            }
            return Ok(Some(outcome));
        }
        let direct = id.partition() == DIRECT_PARTITION;

        let epoch = taken.map(|taken| taken.epoch);
        let wanted = (direct || taken.is_some()) && !refused;
        let got = wanted
            && slot_is_free(transaction, &stored).await?
            && take_unit(transaction, stored.order.sale_id, epoch).await?;
        let outcome = if got {
            let generation = reacquiring.generation;
            let paid = move_order(transaction, &stored, OrderState::Paid, generation, now).await?;
            insert_events(self, transaction, &[paid], now).await?;
            PaymentOutcome::Paid
        } else {
            if let Some(epoch) = epoch {
                if !is_epoch(transaction, stored.order.sale_id, epoch).await? {
                    return Ok(None);
                }
                // What Redis gave in vain goes back.
                insert_releases_of(transaction, &[held], "late-payment", now).await?;
            }
            let generation = stored.generation;
            let due =
                move_order(transaction, &stored, OrderState::RefundDue, generation, now).await?;
            insert_events(self, transaction, std::slice::from_ref(&due), now).await?;
            let price = StoredPayment::try_from(payment.clone())?.price;
            self.announce_payment(transaction, &due, PaymentOutcome::RefundDue, price, now).await?;
            PaymentOutcome::RefundDue
        };
        let update = Query::update()
            .table(payment::Entity)
            .value(payment::Column::Outcome, outcome.as_str())
            .value(payment::Column::SettledMs, now)
            .and_where(Expr::col(payment::Column::Id).eq(payment.id))
            .to_owned();
        transaction.execute(&update).await?;
        Ok(Some(outcome))
    }

    /// Payments whose money is due back, oldest first, at most `limit`.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_refunds_due(&self, limit: u64) -> Result<Vec<StoredPayment>, SqlFault> {
        let due = PaymentOutcome::ALL.into_iter().filter(|outcome| outcome.is_due_back());
        let rows = payment::Entity::find()
            .filter(payment::Column::Outcome.is_in(due.map(PaymentOutcome::as_str)))
            .order_by_asc(payment::Column::Id)
            .limit(limit)
            .all(&self.connection)
            .await?;
        rows.into_iter().map(StoredPayment::try_from).collect()
    }

    /// Notes that a payment's money went back. False when there is no such payment, or it is not
    /// due.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn mark_refunded(&self, payment_id: i64) -> Result<bool, SqlFault> {
        let due = PaymentOutcome::ALL.into_iter().filter(|outcome| outcome.is_due_back());
        let update = Query::update()
            .table(payment::Entity)
            .value(payment::Column::Outcome, PaymentOutcome::Refunded.as_str())
            .value(payment::Column::SettledMs, crate::clock::now_ms(self.backend()))
            .and_where(Expr::col(payment::Column::Id).eq(payment_id))
            .and_where(Expr::col(payment::Column::Outcome).is_in(due.map(PaymentOutcome::as_str)))
            .to_owned();
        Ok(self.connection.execute(&update).await?.rows_affected() == 1)
    }
}

fn reacquire(payment_id: i64, stored: StoredOrder) -> PaymentAnswer {
    let generation = stored.generation + 1;
    PaymentAnswer::Reacquire(Box::new(Reacquiring { payment_id, stored, generation }))
}

fn order_id_of(row: &payment::Model) -> Result<OrderId, SqlFault> {
    OrderId::from_i64(row.order_id).ok_or_else(|| SqlFault::row("payments", row.id, "order_id"))
}

fn price_of(row: &payment::Model) -> Result<Price, SqlFault> {
    let currency = row.currency.parse();
    let currency = currency.map_err(|_| SqlFault::row("payments", row.id, "currency"))?;
    Ok(Price { amount: row.amount, currency })
}

async fn insert_payment(
    transaction: &DatabaseTransaction,
    new: &NewPayment,
    outcome: PaymentOutcome,
    now: i64,
) -> Result<i64, SqlFault> {
    let settled = (outcome != PaymentOutcome::Reacquiring).then_some(now);
    let statement = Query::insert()
        .into_table(payment::Entity)
        .columns([
            payment::Column::WebhookId,
            payment::Column::OrderId,
            payment::Column::Amount,
            payment::Column::Currency,
            payment::Column::Outcome,
            payment::Column::ReceivedMs,
            payment::Column::SettledMs,
        ])
        .values_panic([
            new.webhook_id.as_str().into(),
            new.order_id.as_i64().into(),
            new.price.amount.into(),
            new.price.currency.to_string().into(),
            outcome.as_str().into(),
            now.into(),
            settled.into(),
        ])
        .returning_col(payment::Column::Id)
        .to_owned();
    let row = transaction.query_one(&statement).await?;
    Ok(row.ok_or_else(|| SqlFault::row("payments", 0, "id"))?.try_get("", "id")?)
}

/// Moves a locked order on, and returns it as it is then.
async fn move_order(
    transaction: &DatabaseTransaction,
    stored: &StoredOrder,
    state: OrderState,
    generation: u32,
    now: i64,
) -> Result<StoredOrder, SqlFault> {
    let id = stored.order.id.as_i64();
    if !stored.order.state.can_become(state) {
        return Err(SqlFault::row("orders", id, "state"));
    }
    let statement = Query::update()
        .table(order::Entity)
        .value(order::Column::State, state.as_str())
        .value(order::Column::Generation, i64::from(generation))
        .value(order::Column::SettledMs, now)
        .and_where(Expr::col(order::Column::Id).eq(id))
        .and_where(Expr::col(order::Column::State).eq(stored.order.state.as_str()))
        .and_where(Expr::col(order::Column::Generation).eq(i64::from(stored.generation)))
        .to_owned();
    if transaction.execute(&statement).await?.rows_affected() != 1 {
        return Err(SqlFault::row("orders", id, "state"));
    }
    let mut moved = stored.clone();
    moved.order.state = state;
    moved.order.settled_ms = Some(now);
    moved.generation = generation;
    Ok(moved)
}

/// Whether a late payment of this order is on its way to a unit.
async fn is_being_reacquired(
    transaction: &DatabaseTransaction,
    order_id: i64,
) -> Result<bool, SqlFault> {
    let payment = payment::Entity::find()
        .filter(payment::Column::OrderId.eq(order_id))
        .filter(payment::Column::Outcome.eq(PaymentOutcome::Reacquiring.as_str()))
        .one(transaction)
        .await?;
    Ok(payment.is_some())
}

async fn slot_is_free(
    transaction: &DatabaseTransaction,
    stored: &StoredOrder,
) -> Result<bool, SqlFault> {
    let holder = order::Entity::find()
        .filter(order::Column::SaleId.eq(stored.order.sale_id.as_i64()))
        .filter(order::Column::UserId.eq(stored.order.user_id.as_str()))
        .filter(order::Column::Slot.eq(i32::from(stored.slot)))
        .filter(order::Column::State.is_in(open_states()))
        .one(transaction)
        .await?;
    Ok(holder.is_none())
}

/// Takes one unit, unless there is none, the sale is closed, or it was rebuilt since `epoch`.
async fn take_unit(
    transaction: &DatabaseTransaction,
    id: SaleId,
    epoch: Option<i64>,
) -> Result<bool, SqlFault> {
    let mut statement = Query::update();
    statement
        .table(sale::Entity)
        .value(sale::Column::StockLeft, Expr::col(sale::Column::StockLeft).sub(1))
        .and_where(Expr::col(sale::Column::Id).eq(id.as_i64()))
        .and_where(Expr::col(sale::Column::State).ne(SaleState::Closed.as_str()))
        .and_where(Expr::col(sale::Column::StockLeft).gte(1));
    if let Some(epoch) = epoch {
        statement.and_where(Expr::col(sale::Column::Epoch).eq(epoch));
    }
    Ok(transaction.execute(&statement).await?.rows_affected() == 1)
}

async fn is_epoch(
    transaction: &DatabaseTransaction,
    id: SaleId,
    epoch: i64,
) -> Result<bool, SqlFault> {
    let row = sale::Entity::find_by_id(id.as_i64()).one(transaction).await?;
    Ok(row.is_some_and(|row| row.epoch == epoch))
}

impl TryFrom<payment::Model> for StoredPayment {
    type Error = SqlFault;

    fn try_from(row: payment::Model) -> Result<Self, SqlFault> {
        let bad = |column| SqlFault::row("payments", row.id, column);
        Ok(Self {
            id: row.id,
            order_id: order_id_of(&row)?,
            price: price_of(&row)?,
            outcome: row.outcome.parse().map_err(|_| bad("outcome"))?,
            webhook_id: row.webhook_id.clone(),
            received_ms: row.received_ms,
        })
    }
}
