//! A sale's life in an operator's hands: each change leaves a line in the audit log, with who made it
//! and what came of it. `salectl` and the operators' API change sales through here.
//!
//! The line follows the change, and a change that succeeds again is a line again: so one whose line was
//! lost with the program has it as soon as the operator asks again.

use flashsale_domain::{NewSale, Sale, SaleId};
use flashsale_storage_sql::SaleEdit;

use crate::{OperationError, Operations, Rebuilt, Refused};

/// An operator who changes sales.
#[derive(Clone, Copy)]
pub struct Operator<'a> {
    pub(crate) operations: &'a Operations,
    actor: &'a str,
}

impl Operations {
    /// These operations by `actor`, whom the audit log names.
    pub const fn by<'a>(&'a self, actor: &'a str) -> Operator<'a> {
        Operator { operations: self, actor }
    }
}

impl Operator<'_> {
    /// Whom the audit log names.
    pub(crate) const fn actor(&self) -> &str {
        self.actor
    }

    /// See [`Operations::create_sale`].
    ///
    /// # Errors
    /// When a field is out of range, or the database fails.
    pub async fn create_sale(&self, new: &NewSale) -> Result<Sale, OperationError> {
        let sale = self.operations.create_sale(new).await?;
        let what = format!("{} units, {}: {}", sale.stock_total, sale.mode, sale.title);
        self.log("sale.create", sale.id, &what).await?;
        Ok(sale)
    }

    /// See [`Operations::edit_sale`].
    ///
    /// # Errors
    /// When the sale's state or the new value does not allow it, or the database fails.
    pub async fn edit_sale(&self, id: SaleId, edit: &SaleEdit) -> Result<Sale, OperationError> {
        let done = self.operations.edit_sale(id, edit).await;
        self.logged("sale.edit", id, done, |_| describe(edit)).await
    }

    /// See [`Operations::publish_sale`].
    ///
    /// # Errors
    /// When the sale may not be published, or a store fails.
    pub async fn publish_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        let done = self.operations.publish_sale(id).await;
        self.logged("sale.publish", id, done, state).await
    }

    /// See [`Operations::pause_sale`].
    ///
    /// # Errors
    /// When the sale may not be paused, or a store fails.
    pub async fn pause_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        let done = self.operations.pause_sale(id).await;
        self.logged("sale.pause", id, done, state).await
    }

    /// See [`Operations::resume_sale`].
    ///
    /// # Errors
    /// When the sale may not be resumed, or a store fails.
    pub async fn resume_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        let done = self.operations.resume_sale(id).await;
        self.logged("sale.resume", id, done, state).await
    }

    /// See [`Operations::close_sale`].
    ///
    /// # Errors
    /// When the sale may not be closed, or a store fails.
    pub async fn close_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        let done = self.operations.close_sale(id).await;
        self.logged("sale.close", id, done, state).await
    }

    /// See [`Operations::rebuild_sale`].
    ///
    /// # Errors
    /// See [`Operations::rebuild_partition`]; also when the sale lives in none.
    pub async fn rebuild_sale(&self, id: SaleId) -> Result<Rebuilt, OperationError> {
        let done = self.operations.rebuild_sale(id).await;
        let what = |rebuilt: &Rebuilt| format!("partition {} is rebuilt", rebuilt.partition);
        self.logged("sale.rebuild", id, done, what).await
    }

    async fn logged<T>(
        &self,
        action: &str,
        id: SaleId,
        done: Result<T, OperationError>,
        what: impl FnOnce(&T) -> String,
    ) -> Result<T, OperationError> {
        match &done {
            Ok(value) => self.log(action, id, &what(value)).await?,
            Err(error) => {
                if let Some(why) = half_done(error) {
                    // What the operator is to hear of is the failure, not that it was not noted.
                    let _unnoted = self.log(action, id, &format!("not finished: {why}")).await;
                }
            }
        }
        done
    }

    pub(crate) async fn log(
        &self,
        action: &str,
        id: SaleId,
        what: &str,
    ) -> Result<(), OperationError> {
        let (actor, subject) = (self.actor, id.to_string());
        Ok(self.operations.database.insert_audit(actor, action, &subject, what).await?)
    }
}

fn state(sale: &Sale) -> String {
    format!("is {}", sale.state)
}

fn describe(edit: &SaleEdit) -> String {
    let SaleEdit { title, window, per_buyer, price, payment_window_s, late_payment } = edit;
    let named = [
        ("title", title.is_some()),
        ("window", window.is_some()),
        ("per_buyer", per_buyer.is_some()),
        ("price", price.is_some()),
        ("payment_window_s", payment_window_s.is_some()),
        ("late_payment", late_payment.is_some()),
    ];
    let names: Vec<&str> = named.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
    let title = title.as_ref().map(|title| format!(": {}", title.trim())).unwrap_or_default();
    format!("changed {}{title}", names.join(", "))
}

/// Why something may have changed all the same. What a store's driver says is for the log of the
/// program, because drivers quote what they were given.
fn half_done(error: &OperationError) -> Option<String> {
    match error {
        OperationError::Fault(_) => Some("a store failed".to_owned()),
        OperationError::Refused(
            refused @ (Refused::NotLoaded(_)
            | Refused::EntriesWaiting { .. }
            | Refused::FenceLost(_)
            | Refused::RebuildRunning(_)),
        ) => Some(refused.to_string()),
        OperationError::Refused(_) => None,
    }
}
