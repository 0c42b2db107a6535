//! Orders that end unpaid: cancelled by their buyer, or overdue.

use flashsale_domain::{OrderId, UserId};
use flashsale_storage_sql::{Cancellation, NextDue};

use crate::{OperationError, Operations};

impl Operations {
    /// Cancels a buyer's order. Its unit goes back on sale when the release has reached Redis.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn cancel_order(
        &self,
        id: OrderId,
        user: &UserId,
    ) -> Result<Cancellation, OperationError> {
        let cancellation = self.database.cancel_order(id, user).await?;
        if matches!(cancellation, Cancellation::Cancelled(_)) {
            self.announce(&[id]).await;
        }
        Ok(cancellation)
    }

    /// Expires overdue orders, at most `limit`, and returns how many.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn expire_orders(&self, limit: u64) -> Result<u64, OperationError> {
        let expired = self.database.expire_orders(limit).await?;
        let ids: Vec<OrderId> = expired.iter().map(|stored| stored.order.id).collect();
        self.announce(&ids).await;
        Ok(u64::try_from(ids.len()).expect("a count fits"))
    }

    /// When the next unpaid order is due.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn next_due(&self) -> Result<NextDue, OperationError> {
        Ok(self.database.next_due().await?)
    }
}
