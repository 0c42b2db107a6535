//! The operator's operations against real stores: a sale's life, its ledger, its audit, and loading
//! Redis's memory anew.

mod adjust;
mod audit;
mod closing;
mod dead;
mod ledger;
mod life;
mod moving_units;
mod payments;
mod rebuild;
mod settle;
mod support;
