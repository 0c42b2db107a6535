//! The operator's operations against real stores: a sale's life, its ledger, its audit, and loading
//! Redis's memory anew.

mod adjust;
mod audit;
mod closing;
mod dead;
mod doctor;
mod drill;
mod ledger;
mod life;
mod moving_units;
mod operator;
mod payments;
mod rebuild;
mod rebuild_under_fire;
mod rehearsal;
mod settle;
mod support;
