//! storage-sql against real databases: every test that can be runs on SQLite and on PostgreSQL, each
//! time in a database of its own.

mod support;

mod account;
mod commit;
mod direct;
mod faults;
mod migrations;
mod orders;
mod rebuild;
mod sales;
