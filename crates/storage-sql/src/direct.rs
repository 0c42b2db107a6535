//! Direct mode: the whole decision in one database transaction.
//!
//! The database's clock decides the window, the guarded update decides the stock, and the unique
//! index decides that a buyer's slot is held once. The lock in Redis only spares the database the
//! second press; when it is lost, the second press is refused here.

use flashsale_domain::{
    IdempotencyDigest, Order, OrderId, OrderState, PER_BUYER_MAX, Refusal, RejectReason, SaleId,
    SaleMode, SaleState, UserId, WindowPhase,
};
use sea_orm::sea_query::{Expr, ExprTrait as _, OnConflict, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, EntityTrait as _,
    QueryFilter as _, QueryOrder as _,
};

use crate::clock::now_ms;
use crate::entities::{order, sale};
use crate::events::insert_events;
use crate::{Database, SqlFault, StoredOrder};

/// What became of a direct order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectAnswer {
    /// Committed now.
    Placed(Box<Order>),
    /// The same key was answered with this order before.
    Replayed(Box<Order>),
    /// No.
    Refused(Refusal),
    /// The id is in use: take a new one.
    IdTaken,
}

/// How a transaction ended that is to be rolled back.
enum Abort {
    Answer(DirectAnswer),
    /// Another transaction of the same buyer was faster: look again.
    Raced,
    Fault(SqlFault),
}

impl<E: Into<SqlFault>> From<E> for Abort {
    fn from(error: E) -> Self {
        Self::Fault(error.into())
    }
}

/// Whoever loses a race finds one more order of the buyer at the next try, and a buyer holds at most
/// [`PER_BUYER_MAX`]; one try more finds the limit reached, another a sale that was paused meanwhile.
const TRIES: u16 = PER_BUYER_MAX + 2;

impl Database {
    /// Decides and commits an order of a direct sale. `orders_max` is the most orders, open and
    /// closed, that one buyer may have had of the sale.
    ///
    /// # Errors
    /// When the database cannot be asked; after a lost connection the order may be committed.
    pub async fn place_direct_order(
        &self,
        id: OrderId,
        sale: SaleId,
        user: &UserId,
        digest: Option<&IdempotencyDigest>,
        orders_max: u16,
    ) -> Result<DirectAnswer, SqlFault> {
        for _ in 0..TRIES {
            let transaction = self.begin_write().await?;
            match self.try_place(&transaction, id, sale, user, digest, orders_max).await {
                Ok(order) => {
                    transaction.commit().await?;
                    return Ok(DirectAnswer::Placed(Box::new(order)));
                }
                Err(abort) => {
                    // A connection that is gone cannot roll back; the server does it by itself then.
                    let _ = transaction.rollback().await;
                    match abort {
                        Abort::Answer(answer) => return Ok(answer),
                        Abort::Fault(fault) => return Err(fault),
                        Abort::Raced => {}
                    }
                }
            }
        }
        Err(SqlFault::row("orders", id.as_i64(), "slot"))
    }

    async fn try_place(
        &self,
        transaction: &DatabaseTransaction,
        id: OrderId,
        sale_id: SaleId,
        user: &UserId,
        digest: Option<&IdempotencyDigest>,
        orders_max: u16,
    ) -> Result<Order, Abort> {
        let refuse = |refusal| Abort::Answer(DirectAnswer::Refused(refusal));
        let Some(row) = sale::Entity::find_by_id(sale_id.as_i64()).one(transaction).await? else {
            return Err(refuse(Refusal::NotLoaded));
        };
        let sale = flashsale_domain::Sale::try_from(row)?;
        if sale.mode != SaleMode::Direct {
            // Its units are given out in Redis; one taken past it would be sold twice.
            return Err(refuse(Refusal::NotLoaded));
        }

        // One read for key, limit and slot, so that they are of one moment.
        let rows = order::Entity::find()
            .filter(order::Column::SaleId.eq(sale_id.as_i64()))
            .filter(order::Column::UserId.eq(user.as_str()))
            .order_by_asc(order::Column::Id)
            .all(transaction)
            .await?;
        let orders =
            rows.into_iter().map(StoredOrder::try_from).collect::<Result<Vec<_>, SqlFault>>()?;
        let memory_lost = |stored: &StoredOrder| {
            stored.order.reason.as_deref() == Some(RejectReason::MemoryLost.as_str())
        };
        let replay = orders.iter().find(|stored| {
            digest.is_some() && stored.digest.as_ref() == digest && !memory_lost(stored)
        });
        if let Some(stored) = replay {
            let order = Box::new(stored.order.clone());
            return Err(Abort::Answer(DirectAnswer::Replayed(order)));
        }
        let open: Vec<&StoredOrder> =
            orders.iter().filter(|stored| stored.order.state.is_open()).collect();
        if open.len() >= usize::from(sale.per_buyer) || orders.len() >= usize::from(orders_max) {
            let latest = open.last().copied().or(orders.last());
            let latest = latest.expect("a buyer at a limit has an order").order.id;
            return Err(refuse(Refusal::AlreadyOrdered(latest)));
        }
        match sale.state {
            SaleState::Published => {}
            SaleState::Paused => return Err(refuse(Refusal::Paused)),
            SaleState::Closed => return Err(refuse(Refusal::Ended)),
            SaleState::Draft => return Err(refuse(Refusal::NotLoaded)),
        }
        let now = self.read_now(transaction).await?;
        match sale.window.phase_at(now) {
            WindowPhase::Open => {}
            WindowPhase::NotStarted => return Err(refuse(Refusal::NotStarted)),
            WindowPhase::Ended => return Err(refuse(Refusal::Ended)),
        }

        let take = Query::update()
            .table(sale::Entity)
            .value(sale::Column::StockLeft, Expr::col(sale::Column::StockLeft).sub(1))
            .and_where(Expr::col(sale::Column::Id).eq(sale_id.as_i64()))
            .and_where(Expr::col(sale::Column::State).eq(SaleState::Published.as_str()))
            .and_where(Expr::col(sale::Column::StockLeft).gte(1))
            .to_owned();
        if transaction.execute(&take).await?.rows_affected() != 1 {
            let row = sale::Entity::find_by_id(sale_id.as_i64()).one(transaction).await?;
            return Err(match row {
                Some(row) if row.state == SaleState::Published.as_str() => refuse(Refusal::SoldOut),
                // Paused or closed since we looked: look again.
                _ => Abort::Raced,
            });
        }

        let slot = (1..=sale.per_buyer)
            .find(|slot| open.iter().all(|stored| stored.slot != *slot))
            .expect("fewer open orders than slots");
        let pay_by = now + sale.payment_window_s * 1000;
        let insert = Query::insert()
            .into_table(order::Entity)
            .columns([
                order::Column::Id,
                order::Column::SaleId,
                order::Column::UserId,
                order::Column::Slot,
                order::Column::Epoch,
                order::Column::Digest,
                order::Column::State,
                order::Column::PriceAmount,
                order::Column::PriceCurrency,
                order::Column::PayByMs,
                order::Column::CommittedMs,
            ])
            .values_panic([
                id.as_i64().into(),
                sale_id.as_i64().into(),
                user.as_str().into(),
                i32::from(slot).into(),
                sale.epoch.into(),
                digest.map(IdempotencyDigest::as_str).into(),
                OrderState::AwaitingPayment.as_str().into(),
                sale.price.amount.into(),
                sale.price.currency.to_string().into(),
                pay_by.into(),
                now.into(),
            ])
            .on_conflict(OnConflict::new().do_nothing().to_owned())
            .to_owned();
        if transaction.execute(&insert).await?.rows_affected() != 1 {
            let taken = order::Entity::find_by_id(id.as_i64()).one(transaction).await?.is_some();
            return Err(if taken { Abort::Answer(DirectAnswer::IdTaken) } else { Abort::Raced });
        }
        let stored = StoredOrder {
            order: Order {
                id,
                sale_id,
                user_id: user.clone(),
                state: OrderState::AwaitingPayment,
                reason: None,
                price: Some(sale.price),
                pay_by_ms: Some(pay_by),
                committed_ms: Some(now),
                settled_ms: None,
            },
            slot,
            generation: 1,
            digest: digest.cloned(),
        };
        insert_events(self, transaction, std::slice::from_ref(&stored), now).await?;
        Ok(stored.order)
    }

    pub(crate) async fn read_now(
        &self,
        transaction: &DatabaseTransaction,
    ) -> Result<i64, SqlFault> {
        let statement = Query::select().expr_as(now_ms(self.backend()), "now_ms").to_owned();
        let row = transaction.query_one(&statement).await?;
        let row = row.ok_or_else(|| SqlFault::row("clock", 0, "now_ms"))?;
        Ok(row.try_get("", "now_ms")?)
    }
}
