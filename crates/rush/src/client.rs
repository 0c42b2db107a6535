//! One keep-alive connection, one request at a time: HTTP/1.1 over plain TCP.
//!
//! No pool and no redirects: what is measured is the service, and each connection is a buyer's.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::tokens::Buyer;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_REPLAYED: &str = "idempotency-replayed";

/// Where requests go: a gateway or its proxy, with everything that can be computed once.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    host: String,
    port: u16,
    host_header: HeaderValue,
    /// The URL's own path, without a slash at its end; usually empty.
    base: String,
    /// Origin form of the path that orders are placed at.
    place_order: Uri,
}

impl Target {
    /// The same target, ready for orders of one sale.
    pub(crate) fn for_sale(mut self, sale: u64) -> Self {
        self.place_order = format!("{}/api/v1/sales/{sale}/orders", self.base)
            .parse()
            .expect("a path that was parsed before, and digits");
        self
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.host_header.to_str().unwrap_or(&self.host);
        write!(f, "http://{authority}{}", self.base)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let uri: Uri = url.parse().map_err(|problem| format!("not a URL: {problem}"))?;
        if uri.scheme_str() != Some("http") {
            return Err(
                "only http:// URLs: the rush speaks plain HTTP, put it beside the proxy".into()
            );
        }
        let authority = uri.authority().ok_or("a URL needs a host")?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err("a URL here has no user and no query".into());
        }
        Ok(Self {
            // A literal IPv6 address stands in brackets in a URL, not in a socket address.
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            host_header: HeaderValue::try_from(authority.as_str())
                .map_err(|problem| problem.to_string())?,
            base: uri.path().trim_end_matches('/').to_owned(),
            place_order: Uri::default(),
        })
    }
}

/// What a buyer asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask<'a> {
    /// A unit of the sale.
    PlaceOrder,
    /// The order of this id, held back up to this many seconds until its state is known.
    ReadOrder(&'a str, u64),
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The header `Idempotency-Replayed: true` was there.
    pub(crate) replayed: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
}

/// Why there is no answer; the request may have been carried out all the same.
#[derive(Debug)]
pub(crate) enum Broken {
    Connect(io::Error),
    Http(hyper::Error),
    TimedOut(Duration),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(problem) => write!(f, "cannot connect: {problem}"),
            Self::Http(problem) => {
                write!(f, "{problem}")?;
                match std::error::Error::source(problem) {
                    Some(source) => write!(f, ": {source}"),
                    None => Ok(()),
                }
            }
            Self::TimedOut(after) => write!(f, "no answer within {after:?}"),
        }
    }
}

/// A connection that is made when it is needed, and made anew elsewhere when it breaks.
#[derive(Debug)]
pub(crate) struct Client {
    targets: Arc<[Target]>,
    /// The target in use: the next one takes over when it breaks.
    at: usize,
    timeout: Duration,
    live: Option<Live>,
}

/// An open connection. It is polled by whoever waits for its answer, not by a task of its own:
/// at tens of thousands of requests a second the hand-over between two tasks is felt.
#[derive(Debug)]
struct Live {
    sender: SendRequest<Empty<Bytes>>,
    connection: http1::Connection<TokioIo<TcpStream>, Empty<Bytes>>,
}

impl Client {
    /// Connection number `number`: the numbers go round the targets.
    pub(crate) fn new(targets: Arc<[Target]>, number: usize, timeout: Duration) -> Self {
        let at = number % targets.len();
        Self { targets, at, timeout, live: None }
    }

    /// How many targets there are to fail over to, the one in use included.
    pub(crate) fn targets(&self) -> usize {
        self.targets.len()
    }

    /// Connects, so that the first request need not.
    pub(crate) async fn connect(&mut self) -> Result<(), Broken> {
        let opened = tokio::time::timeout(self.timeout, Live::open(&self.targets[self.at])).await;
        match opened.unwrap_or(Err(Broken::TimedOut(self.timeout))) {
            Ok(live) => {
                self.live = Some(live);
                Ok(())
            }
            Err(broken) => {
                self.fail_over();
                Err(broken)
            }
        }
    }

    /// Sends one request and reads its answer, connecting first where there is no connection.
    pub(crate) async fn send(&mut self, ask: Ask<'_>, buyer: &Buyer) -> Result<Reply, Broken> {
        let held = match ask {
            Ask::PlaceOrder => Duration::ZERO,
            Ask::ReadOrder(_, wait_s) => Duration::from_secs(wait_s),
        };
        let limit = self.timeout + held;
        let answered = tokio::time::timeout(limit, self.exchange(ask, buyer)).await;
        let reply = answered.unwrap_or(Err(Broken::TimedOut(limit)));
        if reply.is_err() {
            self.fail_over();
        }
        reply
    }

    /// `live` is taken out while an exchange runs, so that a half-read connection is never kept.
    async fn exchange(&mut self, ask: Ask<'_>, buyer: &Buyer) -> Result<Reply, Broken> {
        let target = &self.targets[self.at];
        let kept = match self.live.take() {
            Some(live) => live.still_open().await,
            None => None,
        };
        let mut live = match kept {
            Some(live) => live,
            None => Live::open(target).await?,
        };
        let (reply, open) = live.exchange(request(target, ask, buyer)).await;
        if open && reply.is_ok() {
            self.live = Some(live);
        }
        reply.map_err(Broken::Http)
    }

    fn fail_over(&mut self) {
        self.live = None;
        self.at = (self.at + 1) % self.targets.len();
    }
}

impl Live {
    async fn open(target: &Target) -> Result<Self, Broken> {
        let stream = TcpStream::connect((target.host.as_str(), target.port))
            .await
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(Broken::Connect)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(Broken::Http)?;
        Ok(Self { sender, connection })
    }

    /// The connection, if it can carry one more request. It sees a close that the server sent
    /// meanwhile (keep-alive over, restart), which is no failure of the next request.
    async fn still_open(mut self) -> Option<Self> {
        let open = tokio::select! {
            biased;
            _ = &mut self.connection => false,
            ready = self.sender.ready() => ready.is_ok(),
        };
        open.then_some(self)
    }

    /// The answer, and whether the connection is still open after it.
    async fn exchange(&mut self, request: Request<Empty<Bytes>>) -> (hyper::Result<Reply>, bool) {
        let sender = &mut self.sender;
        let exchange = async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            let header = |name| head.headers.get(name).map(HeaderValue::as_bytes);
            Ok(Reply {
                status: head.status.as_u16(),
                replayed: header(IDEMPOTENCY_REPLAYED) == Some(b"true"),
                retry_after: header(header::RETRY_AFTER.as_str())
                    .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
                    .map(Duration::from_secs),
                body,
            })
        };
        let mut exchange = std::pin::pin!(exchange);
        tokio::select! {
            biased;
            reply = &mut exchange => (reply, true),
            // The server closed, maybe right after a whole answer: the exchange knows.
            _ = &mut self.connection => (exchange.await, false),
        }
    }
}

fn request(target: &Target, ask: Ask<'_>, buyer: &Buyer) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    let headers = request.headers_mut();
    headers.insert(header::HOST, target.host_header.clone());
    headers.insert(header::AUTHORIZATION, buyer.authorization.clone());
    match ask {
        Ask::PlaceOrder => {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
            if let Some(key) = &buyer.idempotency_key {
                headers.insert(IDEMPOTENCY_KEY, key.clone());
            }
            *request.method_mut() = Method::POST;
            *request.uri_mut() = target.place_order.clone();
        }
        Ask::ReadOrder(id, wait_s) => {
            *request.uri_mut() = format!("{}/api/v1/orders/{id}?wait={wait_s}", target.base)
                .parse()
                .expect("an id is checked to be digits before it is asked for");
        }
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_plain_http_url() {
        let shop = Target::from_str("http://shop.test:8080/a/").expect("parses").for_sale(7);
        assert_eq!(shop.to_string(), "http://shop.test:8080/a");
        assert_eq!(shop.place_order, "/a/api/v1/sales/7/orders");
        let v6 = Target::from_str("http://[::1]").expect("parses");
        assert_eq!((v6.host.as_str(), v6.port), ("::1", 80));

        let https = Target::from_str("https://shop.test").expect_err("is refused");
        assert!(https.contains("http://"), "{https}");
        for wrong in ["shop.test", "http://", "http://u:p@shop.test", "http://shop.test/?a=b"] {
            assert!(Target::from_str(wrong).is_err(), "{wrong}");
        }
    }
}
