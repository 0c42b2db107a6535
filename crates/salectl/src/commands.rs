//! One file a command: call the operation, print its result. The JSON shapes stand with the types
//! that are printed.

pub(crate) mod audit;
pub(crate) mod audit_log;
pub(crate) mod completions;
pub(crate) mod dead;
pub(crate) mod doctor;
pub(crate) mod drill;
pub(crate) mod edit;
pub(crate) mod ledger;
pub(crate) mod migrate;
pub(crate) mod pay;
pub(crate) mod rebuild;
pub(crate) mod refunds;
pub(crate) mod rehearse;
pub(crate) mod report;
pub(crate) mod sale;
pub(crate) mod settle;
pub(crate) mod token;
pub(crate) mod workers;

use flashsale_bootstrap::Settings;
use flashsale_operations::{Operations, connect};

use crate::failure::Failure;

/// Who acts, in the audit log: whoever may run this program against the stores.
const ACTOR: &str = "salectl";

/// The operations on the stores of these settings. A database without the schema of this version is
/// refused, with the command that brings it.
async fn operations(settings: &Settings) -> Result<Operations, Failure> {
    let redis = connect::redis(settings)?;
    Ok(Operations::new(redis, connect::migrated_database(settings).await?))
}
