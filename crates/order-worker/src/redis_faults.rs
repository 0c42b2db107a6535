//! Counts what Redis did not do for the worker: an error that stays is one line in the log when it
//! begins, and a number that rises for as long as it lasts.

use flashsale_operations::{Fault, OperationError};

/// Redis refused, or did not answer, this part of the worker.
pub(crate) fn count_redis_fault(part: &'static str) {
    metrics::counter!("flashsale_redis_faults_total", "part" => part).increment(1);
}

/// The same, if it was Redis that an operation failed of.
pub(crate) fn count_if_redis(part: &'static str, failure: &OperationError) {
    if matches!(failure, OperationError::Fault(Fault::Redis(_))) {
        count_redis_fault(part);
    }
}
