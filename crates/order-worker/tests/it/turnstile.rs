//! A way to Redis that holds up the request that names a certain word, for good.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use flashsale_test_support::{RedisServer, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::support::SOON;

/// Whoever connects here reaches Redis, until he names the word.
pub(crate) struct Turnstile {
    address: SocketAddr,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    word: Mutex<Option<String>>,
    has_stopped: AtomicBool,
}

impl Turnstile {
    pub(crate) async fn to(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("is bound");
        let (port, gate) = (server.port(), Arc::new(Gate::default()));
        let of_all = Arc::clone(&gate);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let gate = Arc::clone(&of_all);
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let ((requests, mut to_client), (mut answers, to_server)) =
                        (client.into_split(), server.into_split());
                    // Who has gone leaves nothing open at the other end.
                    tokio::select! {
                        () = gate.pass(requests, to_server) => {}
                        _ = tokio::io::copy(&mut answers, &mut to_client) => {}
                    }
                });
            }
        });
        Self { address, gate }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// From now on, a request that names this word does not reach Redis, nor does what follows it.
    pub(crate) fn stop_at(&self, word: &str) {
        *self.gate.word.lock().expect("nobody panics") = Some(word.to_owned());
        self.gate.has_stopped.store(false, Ordering::SeqCst);
    }

    /// Waits until a request is held up.
    pub(crate) async fn has_stopped(&self) {
        let stopped = async || self.gate.has_stopped.load(Ordering::SeqCst);
        eventually(SOON, "a request that is held up", stopped).await;
    }
}

impl Gate {
    async fn pass(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        // A request is written at once, and is shorter than this.
        let mut buffer = vec![0; 65_536];
        loop {
            let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
            if self.names_the_word(&buffer[..length]) {
                self.has_stopped.store(true, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    }

    fn names_the_word(&self, request: &[u8]) -> bool {
        let word = self.word.lock().expect("nobody panics");
        let named = |word: &String| request.windows(word.len()).any(|it| it == word.as_bytes());
        word.as_ref().is_some_and(named)
    }
}
