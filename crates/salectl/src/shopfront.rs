//! A rehearsal's buyers, and what they do at the shop's front: over HTTP, as any buyer.
//!
//! One machine plays them all, so it meets the proxy's limits for one client: what is told to come again
//! comes again, with the same key, until the rehearsal's time is over.

use std::path::Path;
use std::time::{Duration, Instant};

use flashsale_bootstrap::Settings;
use flashsale_bootstrap::settings::TokenKey;
use flashsale_domain::{OrderId, REHEARSAL_BUYERS, SaleId, UserId};
use reqwest::{Client, RequestBuilder, Url};
use serde_json::Value;
use tokio::time::sleep;

use crate::failure::Failure;
use crate::token::{Claims, sign};
use crate::when::now_ms;

/// Tokens outlive the longest rehearsal.
const TOKEN_S: i64 = 2 * 3600;
/// Before it comes again, a buyer waits as long as he is told, and no longer than this.
const PAUSE_MAX: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(250);

/// A synthetic buyer.
pub(crate) struct Buyer {
    /// Unknown where somebody else has signed his token.
    pub(crate) sub: Option<UserId>,
    token: String,
    key: String,
}

/// What a buyer was told.
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) body: Value,
}

impl Told {
    /// The problem's slug, or the status.
    pub(crate) fn word(&self) -> String {
        let slug = self.body["type"].as_str().and_then(|uri| uri.rsplit('/').next());
        slug.map_or_else(|| self.status.to_string(), str::to_owned)
    }

    pub(crate) fn order_id(&self) -> Option<OrderId> {
        self.body["order_id"].as_str()?.parse().ok()
    }

    pub(crate) fn state(&self) -> &str {
        self.body["state"].as_str().unwrap_or_default()
    }
}

/// Buyers of the run named `run`, with tokens for an hour or two.
pub(crate) fn buyers(settings: &Settings, run: &str, count: u32) -> Result<Vec<Buyer>, Failure> {
    let secret = match settings.auth.require()? {
        TokenKey::Secret(secret) => secret,
        TokenKey::PublicKeyFile(_) => {
            return Err(Failure::refused(format!(
                "only auth.jwt_public_key_file is set, and a public key cannot sign: have whoever holds \
                 the private key sign a token for each buyer, with `sub`s from {REHEARSAL_BUYERS}1 on, \
                 and name the file with --tokens"
            )));
        }
    };
    let iat = now_ms() / 1000;
    (0..count)
        .map(|number| {
            let name = format!("{REHEARSAL_BUYERS}{run}:{number}");
            let sub = UserId::new(name.as_str()).expect("a short text without control characters");
            let token = sign(&Claims { sub: &sub, role: None, iat, exp: iat + TOKEN_S }, secret)?;
            Ok(Buyer { sub: Some(sub), token, key: name })
        })
        .collect()
}

/// Buyers whose tokens somebody else has signed.
pub(crate) fn buyers_of(file: &Path, run: &str) -> Result<Vec<Buyer>, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::file(format!("--tokens {}: {error}", file.display())))?;
    let tokens = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let buyers: Vec<Buyer> = tokens
        .enumerate()
        .map(|(number, token)| Buyer {
            sub: None,
            token: token.to_owned(),
            key: format!("{run}:{number}"),
        })
        .collect();
    if buyers.is_empty()
        || buyers.iter().any(|buyer| !buyer.token.bytes().all(|b| b.is_ascii_graphic()))
    {
        let what = format!("--tokens {}: one token a line, at least one", file.display());
        return Err(Failure::file(what));
    }
    Ok(buyers)
}

/// The way in that buyers take.
pub(crate) struct Shopfront {
    client: Client,
    base: String,
    /// Nobody comes again after this.
    ends: Instant,
}

impl Shopfront {
    pub(crate) fn new(client: Client, url: &str, ends: Instant) -> Result<Self, Failure> {
        let parsed = Url::parse(url).map_err(|error| Failure::usage(format!("--url: {error}")))?;
        if parsed.scheme() != "http" {
            return Err(Failure::usage(
                "--url: only http:// is built in, so name the proxy behind what ends TLS, or a gateway",
            ));
        }
        Ok(Self { client, base: url.trim_end_matches('/').to_owned(), ends })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn time_left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    pub(crate) fn url(&self, path: &str) -> Result<Url, Failure> {
        Url::parse(&format!("{}{path}", self.base))
            .map_err(|error| Failure::usage(format!("--url: {error}")))
    }

    /// The sales that everybody sees.
    pub(crate) async fn list_sales(&self) -> Result<Told, Failure> {
        let url = self.url("/api/v1/sales")?;
        self.ask(|| self.client.get(url.clone())).await
    }

    pub(crate) async fn place_order(&self, sale: SaleId, buyer: &Buyer) -> Result<Told, Failure> {
        let url = self.url(&format!("/api/v1/sales/{sale}/orders"))?;
        self.ask(|| {
            let request = self.client.post(url.clone()).bearer_auth(&buyer.token);
            request.header("Idempotency-Key", &buyer.key)
        })
        .await
    }

    /// Presses once, and does not come again.
    pub(crate) async fn press_once(&self, sale: SaleId, buyer: &Buyer) -> Result<Told, Failure> {
        let url = self.url(&format!("/api/v1/sales/{sale}/orders"))?;
        let request = self.client.post(url).bearer_auth(&buyer.token);
        let told = try_ask(request.header("Idempotency-Key", &buyer.key)).await;
        told.map(|(told, _)| told).map_err(no_answer)
    }

    /// Whether a gateway answers.
    pub(crate) async fn is_open(&self) -> bool {
        let Ok(url) = self.url("/api/v1/sales") else { return false };
        try_ask(self.client.get(url)).await.is_ok_and(|(told, _)| told.status == 200)
    }

    /// The order; held back while it is queued.
    pub(crate) async fn read_order(&self, order: OrderId, buyer: &Buyer) -> Result<Told, Failure> {
        let url = self.url(&format!("/api/v1/orders/{order}?wait=5"))?;
        self.ask(|| self.client.get(url.clone()).bearer_auth(&buyer.token)).await
    }

    pub(crate) async fn cancel(&self, order: OrderId, buyer: &Buyer) -> Result<Told, Failure> {
        let url = self.url(&format!("/api/v1/orders/{order}/cancel"))?;
        self.ask(|| self.client.post(url.clone()).bearer_auth(&buyer.token)).await
    }

    /// Sends what `make` makes, again and again while nobody has decided.
    pub(crate) async fn ask(&self, make: impl Fn() -> RequestBuilder) -> Result<Told, Failure> {
        loop {
            let (word, pause) = match try_ask(make()).await {
                Ok((told, _)) if !matches!(told.status, 429 | 502..=504) => return Ok(told),
                Ok((told, pause)) => (told.word(), pause),
                Err(error) => (error.without_url().to_string(), PAUSE),
            };
            if self.time_left() <= pause {
                return Err(Failure::refused(format!(
                    "no decision in time; the last answer: {word}"
                )));
            }
            sleep(pause).await;
        }
    }
}

fn no_answer(error: reqwest::Error) -> Failure {
    let error = anyhow::Error::from(error.without_url());
    Failure::from(error.context("nobody answers at --url"))
}

async fn try_ask(request: RequestBuilder) -> reqwest::Result<(Told, Duration)> {
    let answer = request.send().await?;
    let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let replayed = header("idempotency-replayed") == Some("true");
    let pause = header("retry-after").and_then(|text| text.parse().ok());
    let pause = pause.map_or(PAUSE, Duration::from_secs).clamp(PAUSE, PAUSE_MAX);
    let status = answer.status().as_u16();
    let body = serde_json::from_str(&answer.text().await?).unwrap_or_default();
    Ok((Told { status, replayed, body }, pause))
}
