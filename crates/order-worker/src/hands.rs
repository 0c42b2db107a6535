//! What this worker holds of one partition: read or taken over, and not yet done.
//!
//! A heartbeat keeps these entries its own for as long as it lives; one that was taken over all the
//! same (the process slept) is dropped here, and what is committed of it nevertheless is harmless.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_domain::{EntryId, Partition};
use flashsale_storage_redis::{RawEntry, Redis};
use tokio::time::sleep;
use tracing::warn;

/// The ids in hand. Cheap to clone; all clones are the same hands.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hands {
    ids: Arc<Mutex<HashSet<EntryId>>>,
}

impl Hands {
    pub(crate) fn take(&self, entries: &[RawEntry]) {
        self.lock().extend(entries.iter().map(|entry| entry.id));
    }

    pub(crate) fn put_down(&self, ids: impl IntoIterator<Item = EntryId>) {
        let mut held = self.lock();
        for id in ids {
            held.remove(&id);
        }
    }

    pub(crate) fn hold(&self, id: EntryId) -> bool {
        self.lock().contains(&id)
    }

    pub(crate) fn all(&self) -> Vec<EntryId> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<EntryId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Heartbeat {
    pub(crate) redis: Redis,
    pub(crate) partition: Partition,
    pub(crate) consumer: String,
    pub(crate) settings: WorkerSettings,
    pub(crate) hands: Hands,
}

impl Heartbeat {
    /// Beats three times in an idle time, so that one beat may fail.
    pub(crate) async fn run(self, ended: Shutdown) {
        loop {
            tokio::select! {
                () = sleep(self.settings.reclaim_idle / 3) => {}
                () = ended.requested() => return,
            }
            let held = self.hands.all();
            if held.is_empty() {
                continue;
            }
            match self.redis.keep_entries(self.partition, &self.consumer, &held).await {
                Ok(lost) if lost.is_empty() => {}
                Ok(lost) => {
                    // Those that were acknowledged since `held` was read are gone from hand too.
                    let lost: Vec<_> = lost.into_iter().filter(|id| self.hands.hold(*id)).collect();
                    if !lost.is_empty() {
                        warn!(partition = %self.partition, count = lost.len(),
                            "entries were taken over by another worker; dropping them");
                    }
                    self.hands.put_down(lost);
                }
                // Redis is away: nobody else can take them over either.
                Err(_) => {}
            }
        }
    }
}
