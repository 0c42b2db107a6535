//! The operator's operations against real stores: a sale's life, its ledger, its audit, and loading
//! Redis's memory anew.

mod audit;
mod dead;
mod ledger;
mod life;
mod rebuild;
mod support;
