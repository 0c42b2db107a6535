//! A shop's endpoint that does what a test says: it answers, says nonsense, or waits.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use flashsale_webhooks::{ID_HEADER, Message, SIGNATURE_HEADER, Secrets, TIMESTAMP_HEADER};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

/// What the shop and the deployment share.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What is done with a request that was read.
#[derive(Clone)]
pub(crate) enum Answer {
    /// These bytes are written, then the connection is closed.
    Say(String),
    /// The same, once the token is cancelled.
    SayWhen(CancellationToken, String),
}

/// An answer without a body.
pub(crate) fn status(code: u16) -> Answer {
    Answer::Say(head(code, ""))
}

/// The head of an answer, with more header lines (each ends with CRLF).
pub(crate) fn head(code: u16, headers: &str) -> String {
    format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\nconnection: close\r\n{headers}\r\n")
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Method and path.
    pub(crate) line: String,
    /// By their names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn id(&self) -> &str {
        self.header(ID_HEADER)
    }

    /// Whether it is signed with `secret`, as its headers and the exact bytes of its body say.
    pub(crate) fn is_signed_with(&self, secret: &str) -> bool {
        let message = Message {
            id: self.id(),
            timestamp: self.header(TIMESTAMP_HEADER),
            signature: self.header(SIGNATURE_HEADER),
            body: &self.body,
        };
        let secrets = Secrets::parse(secret).expect("a secret");
        secrets.verify(&message, flashsale_bootstrap::clock::now_ms() / 1000).is_ok()
    }
}

#[derive(Default)]
struct Seen {
    asked: Vec<Asked>,
    in_hand: usize,
}

/// The endpoint; it lives as long as the test's runtime.
pub(crate) struct TinyShop {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    answer: Arc<Mutex<Answer>>,
}

impl TinyShop {
    /// Listens on a free port and answers everything so, until it is told otherwise.
    pub(crate) async fn that_says(answer: Answer) -> Self {
        Self::start(answer, None).await
    }

    /// The same over TLS, with the certificate of an authority that only these tests know.
    pub(crate) async fn over_tls(answer: Answer) -> Self {
        let chain = CertificateDer::pem_slice_iter(include_bytes!("certificates/shop.pem"));
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_slice(include_bytes!("certificates/shop-key.pem"));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key.expect("a key"))
            .expect("a certificate and its key");
        Self::start(answer, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn start(answer: Answer, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("is bound");
        let shop = Self { address, seen: Arc::default(), answer: Arc::new(Mutex::new(answer)) };
        let (seen, answer) = (Arc::clone(&shop.seen), Arc::clone(&shop.answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answer, tls) = (Arc::clone(&seen), Arc::clone(&answer), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &seen, &answer).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &seen, &answer).await,
                            Err(_distrusted) => {}
                        },
                    }
                });
            }
        });
        shop
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook?shop=1", self.address)
    }

    /// From now on.
    pub(crate) fn says(&self, answer: Answer) {
        *self.answer.lock().expect("nobody panics") = answer;
    }

    /// Every request so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.seen.lock().expect("nobody panics").asked.clone()
    }

    /// How often each message has come.
    pub(crate) fn times(&self) -> HashMap<String, usize> {
        let mut times = HashMap::new();
        for asked in self.asked() {
            *times.entry(asked.id().to_owned()).or_default() += 1;
        }
        times
    }

    /// How many requests wait for their answer.
    pub(crate) fn in_hand(&self) -> usize {
        self.seen.lock().expect("nobody panics").in_hand
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Seen>,
    answer: &Mutex<Answer>,
) {
    let Some(asked) = read(&mut stream).await else { return };
    {
        let mut seen = seen.lock().expect("nobody panics");
        seen.asked.push(asked);
        seen.in_hand += 1;
    }
    let answer = answer.lock().expect("nobody panics").clone();
    let text = match answer {
        Answer::Say(text) => Some(text),
        Answer::SayWhen(now, text) => {
            let mut nothing = [0];
            tokio::select! {
                () = now.cancelled() => Some(text),
                // The other side has given up.
                _ = stream.read(&mut nothing) => None,
            }
        }
    };
    if let Some(text) = text {
        let _gone = stream.write_all(text.as_bytes()).await;
        let _gone = stream.shutdown().await;
    }
    seen.lock().expect("nobody panics").in_hand -= 1;
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let (line, headers) = head.split_once("\r\n")?;
    let headers: HashMap<String, String> = headers
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(Asked { line: line.trim_end_matches(" HTTP/1.1").to_owned(), headers, body })
}
