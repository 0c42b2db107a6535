//! The database's schema: one change a file, each of which can be undone.
//!
//! Constraints are named here, because other code may match on the names.

use sea_orm_migration::prelude::*;

mod m20261130_000001_create_sales;
mod m20261130_000002_create_orders;
mod m20261130_000003_create_outbox;
mod m20261130_000004_create_audit_log;
mod m20261130_000005_add_late_payment_to_sales;
mod m20261130_000006_add_settlement_to_orders;
mod m20261130_000007_create_payments;
mod m20261130_000008_create_adjustments;
mod m20261130_000009_create_events;
mod m20261130_000010_create_answers;
mod m20261130_000011_add_request_key_to_adjustments;
mod m20261130_000012_add_rehearsal_to_sales;

/// Every migration, oldest first.
pub struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(m20261130_000001_create_sales::Migration),
            Box::new(m20261130_000002_create_orders::Migration),
            Box::new(m20261130_000003_create_outbox::Migration),
            Box::new(m20261130_000004_create_audit_log::Migration),
            Box::new(m20261130_000005_add_late_payment_to_sales::Migration),
            Box::new(m20261130_000006_add_settlement_to_orders::Migration),
            Box::new(m20261130_000007_create_payments::Migration),
            Box::new(m20261130_000008_create_adjustments::Migration),
            Box::new(m20261130_000009_create_events::Migration),
            Box::new(m20261130_000010_create_answers::Migration),
            Box::new(m20261130_000011_add_request_key_to_adjustments::Migration),
            Box::new(m20261130_000012_add_rehearsal_to_sales::Migration),
        ]
    }
}
