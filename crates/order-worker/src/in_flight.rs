//! Several batches of one partition in flight: while one is being put on the database's disk, the next
//! one is written, and the one before is acknowledged.
//!
//! Batches may overtake each other, as they may in two workers side by side: what an order comes to
//! does not depend on which of two batches is committed first.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::process::{Batch, Processor};

/// How long [`Busy::wait_for_end`] waits for a batch that takes its time: for a lock, or an outage's end.
const PATIENCE: Duration = Duration::from_millis(50);

/// How many batches are handed over and not yet done. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Busy {
    batches: Arc<watch::Sender<usize>>,
}

impl Busy {
    pub(crate) fn new() -> Self {
        Self { batches: Arc::new(watch::Sender::new(0)) }
    }

    pub(crate) fn begin(&self) {
        self.batches.send_modify(|batches| *batches += 1);
    }

    fn end(&self) {
        self.batches.send_modify(|batches| *batches -= 1);
    }

    /// Waits until all batches are done, for a moment at the most. What comes in meanwhile goes
    /// together, at much less than the cost of as many small transactions side by side.
    pub(crate) async fn wait_for_end(&self) {
        let mut batches = self.batches.subscribe();
        let idle = batches.wait_for(|batches| *batches == 0);
        let _either_way = timeout(PATIENCE, idle).await;
    }
}

/// Processes batches, at most `limit` at once, until nobody sends any more and all are done.
pub(crate) async fn process_all(
    processor: Processor,
    mut batches: Receiver<Batch>,
    limit: usize,
    busy: Busy,
) {
    let processor = Arc::new(processor);
    let mut in_flight = InFlight { tasks: JoinSet::new(), busy };
    loop {
        let batch = tokio::select! {
            batch = batches.recv(), if in_flight.tasks.len() < limit => batch,
            () = in_flight.end_one(), if !in_flight.tasks.is_empty() => continue,
        };
        let Some(batch) = batch else { break };
        // If a suspect is what its workers crashed of, it must take no neighbours with it.
        let alone = matches!(batch, Batch::Suspect(_));
        if alone {
            in_flight.end_all().await;
        }
        // A task of its own: an answer of the database must not wait until another batch is decoded.
        let worker = Arc::clone(&processor);
        in_flight.tasks.spawn(async move { worker.process_batch(batch).await });
        if alone {
            in_flight.end_all().await;
        }
    }
    in_flight.end_all().await;
}

struct InFlight {
    tasks: JoinSet<()>,
    busy: Busy,
}

impl InFlight {
    async fn end_all(&mut self) {
        while !self.tasks.is_empty() {
            self.end_one().await;
        }
    }

    /// What panics in a batch goes on here, and ends the partition's work.
    async fn end_one(&mut self) {
        let Some(ended) = self.tasks.join_next().await else { return };
        self.busy.end();
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "a batch that panics")]
    async fn a_panic_in_a_batch_ends_the_work_of_its_partition() {
        let mut in_flight = InFlight { tasks: JoinSet::new(), busy: Busy::new() };
        in_flight.busy.begin();
        in_flight.tasks.spawn(async { panic!("a batch that panics") });
        in_flight.end_all().await;
    }
}
