//! What operators look through: orders of every buyer, and the audit log.

use flashsale_bootstrap::clock::rfc3339;
use flashsale_domain::{OrderId, OrderState, Price, SaleId, UserId};
use flashsale_storage_sql::{AuditEntry, AuditFilter, OrderFilter, StoredOrder};
use serde::{Deserialize, Serialize};

use crate::{OperationError, Operations};

/// Which orders: rows only, newest first.
#[derive(Debug, Clone, Default)]
pub struct OrderQuery {
    /// Only of this buyer.
    pub buyer: Option<UserId>,
    /// Sale, state, where to go on, and how many.
    pub filter: OrderFilter,
}

/// An order as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderLine {
    /// Its id.
    pub order_id: OrderId,
    /// Its sale.
    pub sale_id: SaleId,
    /// Its buyer.
    pub user_id: String,
    /// Where it stands.
    pub state: OrderState,
    /// Why it was rejected.
    pub reason: Option<String>,
    /// What it costs.
    pub price: Option<Price>,
    /// Until when it can be paid: RFC 3339.
    pub pay_by: Option<String>,
    /// When it became a row: RFC 3339.
    pub committed_at: Option<String>,
    /// When it was paid or ended: RFC 3339.
    pub settled_at: Option<String>,
}

impl From<StoredOrder> for OrderLine {
    fn from(StoredOrder { order, .. }: StoredOrder) -> Self {
        Self {
            order_id: order.id,
            sale_id: order.sale_id,
            user_id: order.user_id.as_str().to_owned(),
            state: order.state,
            reason: order.reason,
            price: order.price,
            pay_by: order.pay_by_ms.map(rfc3339),
            committed_at: order.committed_ms.map(rfc3339),
            settled_at: order.settled_ms.map(rfc3339),
        }
    }
}

/// A line of the audit log as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// Its number; a later line has a higher one.
    pub id: String,
    /// When, by the database's clock: RFC 3339.
    pub at: String,
    /// Who: an operator's `sub`, `salectl`, or a program's consumer name.
    pub actor: String,
    /// What was done, such as `sale.publish`.
    pub action: String,
    /// To what: an order's, entry's or sale's id.
    pub subject: String,
    /// With what result.
    pub detail: String,
}

impl From<AuditEntry> for AuditLine {
    fn from(entry: AuditEntry) -> Self {
        Self {
            id: entry.id.to_string(),
            at: rfc3339(entry.at_ms),
            actor: entry.actor,
            action: entry.action,
            subject: entry.subject,
            detail: entry.detail,
        }
    }
}

impl Operations {
    /// Orders that are rows, of one buyer or of all, newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list_orders(&self, query: &OrderQuery) -> Result<Vec<OrderLine>, OperationError> {
        let orders = self.database.list_orders_of(query.buyer.as_ref(), &query.filter).await?;
        Ok(orders.into_iter().map(OrderLine::from).collect())
    }

    /// Lines of the audit log, newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list_audit_log(
        &self,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditLine>, OperationError> {
        let lines = self.database.find_audit(filter).await?;
        Ok(lines.into_iter().map(AuditLine::from).collect())
    }
}
