//! storage-sql against real databases: every test that can be runs on SQLite and on PostgreSQL, each
//! time in a database of its own.

mod server;
mod support;

mod account;
mod adjustments;
mod audit_log;
mod closing;
mod closing_races;
mod commit;
mod direct;
mod events;
mod faults;
mod late_payments;
mod migrations;
mod orders;
mod payments;
mod rebuild;
mod rehearsals;
mod sales;
mod upgrades;
