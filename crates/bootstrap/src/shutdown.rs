//! The request to end, and the signals that make it.
//!
//! Rule: a request to end is made once and never taken back; everyone who waits learns of it.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A request to end that all clones share.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
}

/// What a shell reports for a process that ended by the signal: 128 + its number.
const EXIT_BY_SIGINT: i32 = 130;
const EXIT_BY_SIGTERM: i32 = 143;

impl Shutdown {
    /// Ends only by [`Shutdown::request`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends also by SIGTERM or SIGINT. The second of them ends the process on the spot, with 143 or
    /// 130, for whoever does not want to wait for the drain.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = Self::new();
        let requested = shutdown.clone();
        tokio::spawn(async move {
            loop {
                let (name, exit_code) = tokio::select! {
                    _ = terminate.recv() => ("SIGTERM", EXIT_BY_SIGTERM),
                    _ = interrupt.recv() => ("SIGINT", EXIT_BY_SIGINT),
                };
                if requested.is_requested() {
                    tracing::warn!(signal = name, "{name} during shutdown, exiting at once");
                    std::process::exit(exit_code);
                }
                tracing::info!(signal = name, "{name} received, shutting down");
                requested.request();
            }
        });
        Ok(shutdown)
    }

    /// Asks everyone to end.
    pub fn request(&self) {
        self.token.cancel();
    }

    /// Whether the end was requested.
    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns as soon as the end is requested. Safe to drop, as in `select!`.
    pub async fn requested(&self) {
        self.token.cancelled().await;
    }

    /// The token itself, for child tokens and for libraries that take one.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_request_reaches_every_clone() {
        let shutdown = Shutdown::new();
        let clone = shutdown.clone();
        assert!(!clone.is_requested());
        shutdown.request();
        clone.requested().await;
        assert!(clone.is_requested());
    }

    #[tokio::test]
    async fn the_first_signal_requests_the_end() {
        let shutdown = Shutdown::on_signals().expect("handlers");
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)
            .expect("a signal to ourselves");
        tokio::time::timeout(Duration::from_secs(10), shutdown.requested())
            .await
            .expect("the signal arrives");
    }
}
