//! The gateway: HTTP in, an admission decision out.
//!
//! An order's way: `routes/placing` → `admission_queue` → `lua/admit.lua`. On that way no database is
//! read: the sale comes from the `catalogue`, the buyer from the token.

mod admission_queue;
mod answer_counts;
mod app;
mod auth;
mod catalogue;
mod direct;
mod edge;
mod followers;
mod headers;
mod help;
mod leases;
mod newest_sales;
mod openapi;
mod operators;
mod problem;
mod receipts;
mod request_body;
mod routes;
mod spans;
mod token;
mod unread_body;

pub use app::Gateway;
pub use openapi::{api_document, operators_document};
