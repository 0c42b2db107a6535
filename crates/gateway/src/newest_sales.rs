//! Sales that were published a moment ago: looked for before a buyer is told that there is no such
//! sale.
//!
//! Who asks for a sale that the catalogue does not know waits for a look at the database that begins
//! after he asked; everybody who asked before it began is answered by the same look, whatever sale he
//! meant. Looks are never two at a time and have a pause between them, so that made-up ids cost the
//! database a few small reads a second, however many they are. Nothing is kept of an id, neither that
//! it exists nor that it does not: a sale is found however often it was asked for before.

use std::sync::Arc;
use std::time::Duration;

use flashsale_bootstrap::Shutdown;
use flashsale_storage_sql::Database;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::catalogue::{Catalogue, CatalogueFollower};

/// Who asks waits no longer than this for a look; only a database in trouble takes so long.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// Looks for the sake of unknown ids, for each time that the catalogue is read anyway.
const LOOKS_PER_REFRESH: u32 = 10;
/// How many may wait for a look.
const ASKERS_MAX: usize = 4096;

/// There was no look in time: whether there is such a sale is not known.
pub(crate) struct NoLook;

/// Asks for looks. Shared by all threads.
pub(crate) struct NewestSales {
    askers: mpsc::Sender<oneshot::Sender<()>>,
}

/// Looks when asked.
pub(crate) struct Looker {
    askers: mpsc::Receiver<oneshot::Sender<()>>,
    catalogue: Arc<Catalogue>,
    database: Database,
    pause: Duration,
}

impl NewestSales {
    /// Looks for what `follower` would find at its next look.
    pub(crate) fn of(follower: &CatalogueFollower) -> (Self, Looker) {
        let (askers, asked) = mpsc::channel(ASKERS_MAX);
        let looker = Looker {
            askers: asked,
            catalogue: Arc::clone(&follower.catalogue),
            database: follower.database.clone(),
            pause: follower.refresh / LOOKS_PER_REFRESH,
        };
        (Self { askers }, looker)
    }

    /// Returns when the catalogue has every sale that was published before the call.
    pub(crate) async fn look(&self) -> Result<(), NoLook> {
        let (asker, looked) = oneshot::channel();
        self.askers.try_send(asker).map_err(|_| NoLook)?;
        timeout(LOOK_WITHIN, looked).await.map_err(|_| NoLook)?.map_err(|_| NoLook)
    }
}

impl Looker {
    /// Looks when asked, until the shutdown is requested.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        // A look that hangs in a database that says nothing holds no shutdown up.
        tokio::select! {
            () = self.look_when_asked() => {}
            () = shutdown.requested() => {}
        }
    }

    async fn look_when_asked(mut self) {
        let mut failing = false;
        let mut waiting = Vec::new();
        while self.askers.recv_many(&mut waiting, ASKERS_MAX).await > 0 {
            let began = Instant::now();
            let looked = self.catalogue.take_over_changes(&self.database).await;
            match &looked {
                Ok(()) if failing => info!("new sales can be looked for again"),
                Err(fault) if !failing => warn!(error = %fault, "new sales cannot be looked for"),
                Ok(()) | Err(_) => {}
            }
            failing = looked.is_err();
            for asker in waiting.drain(..) {
                if looked.is_ok() {
                    // He may have hung up.
                    let _ = asker.send(());
                }
            }
            sleep_until(began + self.pause).await;
        }
    }
}
