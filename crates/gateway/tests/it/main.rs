//! The gateway over HTTP, with the servers that it needs.
//!
//! Each test has a gateway of its own, built from real settings by the program's own code, a key
//! prefix of its own and a database of its own. A test that breaks a server starts its own.

mod attacks;
mod auth;
mod cancel;
mod catalogue;
mod direct;
mod documents;
mod follow;
mod keys;
mod leases;
mod operators;
mod operators_lists;
mod outages;
mod pay;
mod place;
mod production;
mod read;
mod replicas;
mod report;
mod requests;
mod shutdown;
mod support;
mod written_api;
