//! Several batches of one partition in flight: while one is being put on the database's disk, the next
//! one is written, and the one before is acknowledged.
//!
//! Batches may overtake each other, as they may in two workers side by side: what an order comes to
//! does not depend on which of two batches is committed first.

use std::panic::resume_unwind;
use std::sync::Arc;

use tokio::sync::mpsc::Receiver;
use tokio::task::{JoinError, JoinSet};

use crate::process::{Batch, Processor};

/// Processes batches, at most `limit` at once, until nobody sends any more and all are done.
pub(crate) async fn process_all(processor: Processor, mut batches: Receiver<Batch>, limit: usize) {
    let processor = Arc::new(processor);
    // Each is a task of its own: an answer of the database must not wait until another batch is decoded.
    let mut in_flight = JoinSet::new();
    while let Some(batch) = batches.recv().await {
        // If a suspect is what its workers crashed of, it must take no neighbours with it.
        let alone = matches!(batch, Batch::Suspect(_));
        while in_flight.len() >= if alone { 1 } else { limit } {
            end(in_flight.join_next().await);
        }
        let worker = Arc::clone(&processor);
        in_flight.spawn(async move { worker.process_batch(batch).await });
        if alone {
            end(in_flight.join_next().await);
        }
    }
    while !in_flight.is_empty() {
        end(in_flight.join_next().await);
    }
}

/// What panicked in a batch goes on here: it ends the partition's work.
fn end(ended: Option<Result<(), JoinError>>) {
    if let Some(Err(error)) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        resume_unwind(panic);
    }
}
