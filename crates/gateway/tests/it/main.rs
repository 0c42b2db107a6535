//! The gateway over HTTP, with the servers that it needs.
//!
//! Each test has a gateway of its own, built from real settings by the program's own code, a key
//! prefix of its own and a database of its own. A test that breaks a server starts its own.

mod auth;
mod catalogue;
mod direct;
mod documents;
mod outages;
mod place;
mod read;
mod requests;
mod shutdown;
mod support;
