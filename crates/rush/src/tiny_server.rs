//! A server for the tests of the client's side: real TCP, real HTTP, and answers that a test makes
//! up, closing connections included, which a well-behaved gateway would not do on demand.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What a request says.
pub(crate) struct Asked {
    /// Method and path.
    pub(crate) line: String,
    /// The Idempotency-Key, or what stands in its place for requests without one.
    pub(crate) buyer: String,
}

/// What a test answers.
pub(crate) enum Act {
    /// Status, more header lines (each ends with CRLF), body.
    Answer(u16, &'static str, String),
    /// The same, then the connection is closed, which the answer does not announce.
    AnswerThenClose(u16, &'static str, String),
    /// The connection is closed without an answer.
    Close,
}

/// An answer with an order.
pub(crate) fn order(id: u64) -> String {
    format!(r#"{{"order_id":"{id}","sale_id":"7","state":"queued"}}"#)
}

/// A problem document.
pub(crate) fn problem(slug: &str) -> String {
    format!(r#"{{"type":"/problems/{slug}","title":"…","status":0}}"#)
}

type Answerer = Arc<Mutex<dyn FnMut(Asked) -> Act + Send>>;

/// Listens on a free port for as long as the test's runtime lives.
pub(crate) async fn serve(answer: impl FnMut(Asked) -> Act + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    let answer: Answerer = Arc::new(Mutex::new(answer));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(stream, Arc::clone(&answer)));
        }
    });
    address
}

async fn converse(mut stream: TcpStream, answer: Answerer) {
    while let Some(asked) = read(&mut stream).await {
        let act = (answer.lock().expect("no test panics while it answers"))(asked);
        let (Act::Answer(status, headers, ref body)
        | Act::AnswerThenClose(status, headers, ref body)) = act
        else {
            return;
        };
        let length = body.len();
        let text =
            format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        let written = stream.write_all(text.as_bytes()).await;
        if written.is_err() || matches!(act, Act::AnswerThenClose(..)) {
            return;
        }
    }
}

/// Reads one request's head; a request of these tests has no body.
async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let header = |name: &str| {
        head.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    Some(Asked {
        line: head.lines().next()?.trim_end_matches(" HTTP/1.1").to_owned(),
        buyer: header("idempotency-key:").or_else(|| header("authorization:"))?,
    })
}
