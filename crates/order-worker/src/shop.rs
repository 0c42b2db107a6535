//! The shop's endpoint for webhooks: one POST an event, over HTTP/1.1, with TLS where its URL says so.
//!
//! The URL may carry credentials and the secret is one: neither is in an error or a log. A redirect is
//! an answer like any other that is not 2xx: who may be told of orders stands in the settings alone.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use flashsale_bootstrap::settings::WebhookSettings;
use flashsale_bootstrap::{clock, tls};
use flashsale_webhooks::{ID_HEADER, SIGNATURE_HEADER, Secrets, TIMESTAMP_HEADER};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::percent_decode_str;
use secrecy::ExposeSecret as _;

/// How much of an answer's body is read, in bytes: enough that the connection of a shop that says
/// "ok" can be used again. One that says more is closed.
const ANSWER_MAX: usize = 4096;
/// The longest head of an answer, in bytes.
const HEAD_MAX: usize = 16 * 1024;
/// Shorter than what servers usually allow, so that we close an idle connection before they do.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// The endpoint, and what is needed to post to it.
pub(crate) struct Shop {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Without the user and password that it may have had.
    url: Uri,
    authorization: Option<HeaderValue>,
    secrets: Secrets,
    timeout: Duration,
}

/// Why the shop has not taken an event, as far as can be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untaken {
    #[error("it answered {0}")]
    Refused(StatusCode),
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

impl Untaken {
    /// Its name in metrics.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Timeout(_) => "timeout",
            Self::Failed(_) => "failed",
        }
    }
}

impl Shop {
    /// The shop of these settings; `None` when there is none.
    ///
    /// # Errors
    /// When the URL is none, or the file of authorities cannot be used.
    pub(crate) fn of(settings: &WebhookSettings) -> anyhow::Result<Option<Self>> {
        let Some(endpoint) = &settings.endpoint else { return Ok(None) };
        let (url, authorization) = split_credentials(endpoint.url.expose_secret())
            .context("webhooks.url is not a URL with a host")?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls::client_config("webhooks.ca_file", settings.ca_file.as_deref())?)
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .http1_max_buf_size(HEAD_MAX)
            .build(connector);
        let secrets = endpoint.secrets.clone();
        Ok(Some(Self { client, url, authorization, secrets, timeout: settings.timeout }))
    }

    /// Posts a signed message; the same `id` for every try. It is taken when the answer is 2xx.
    ///
    /// # Errors
    /// Why it is not taken. After a timeout it may be.
    pub(crate) async fn post(&self, id: &str, body: Vec<u8>) -> Result<(), Untaken> {
        let ends = Instant::now() + self.timeout;
        let sent_s = clock::now_ms() / 1000;
        let mut request = Request::post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("flashsale/", env!("CARGO_PKG_VERSION")))
            .header(ID_HEADER, id)
            .header(TIMESTAMP_HEADER, sent_s)
            .header(SIGNATURE_HEADER, self.secrets.sign(id, sent_s, &body));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request =
            request.body(Full::from(body)).map_err(|error| Untaken::Failed(error.into()))?;
        let answer = match tokio::time::timeout_at(ends.into(), self.client.request(request)).await
        {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(Untaken::Failed(error.into())),
            Err(_elapsed) => return Err(Untaken::Timeout(self.timeout)),
        };
        let status = answer.status();
        // What it says besides is of no interest, and neither is whether it comes to an end.
        let rest = Limited::new(answer.into_body(), ANSWER_MAX).collect();
        let _unread = tokio::time::timeout_at(ends.into(), rest).await;
        if status.is_success() { Ok(()) } else { Err(Untaken::Refused(status)) }
    }
}

/// The URL without user and password, and these as a header. `None` when it has no host, or is no URL;
/// neither is quoted.
fn split_credentials(url: &str) -> Option<(Uri, Option<HeaderValue>)> {
    let uri: Uri = url.parse().ok()?;
    let authority = uri.authority()?.as_str();
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials), host),
        None => (None, authority),
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let bare = Uri::builder().scheme(uri.scheme_str()?).authority(host).path_and_query(path);
    let bare = bare.build().ok().filter(|bare| bare.host().is_some_and(|host| !host.is_empty()))?;
    let Some(credentials) = credentials else { return Some((bare, None)) };
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let plain =
        [user, password].map(|part| percent_decode_str(part).collect::<Vec<u8>>()).join(&b':');
    let mut header = HeaderValue::try_from(format!("Basic {}", BASE64.encode(plain))).ok()?;
    header.set_sensitive(true);
    Some((bare, Some(header)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_leave_the_url_and_become_a_header() {
        let cases = [
            ("http://shop:81/hook?t=1", Some(("http://shop:81/hook?t=1", None))),
            ("https://shop", Some(("https://shop/", None))),
            ("https://u:p@shop/h", Some(("https://shop/h", Some("Basic dTpw")))),
            // "ü:p@ss"
            (
                "https://%C3%BC:p%40ss@[::1]:5/",
                Some(("https://[::1]:5/", Some("Basic w7w6cEBzcw=="))),
            ),
            ("https://token@shop/", Some(("https://shop/", Some("Basic dG9rZW46")))),
            ("https:///hook", None),
            ("https://a b/", None),
            ("/hook", None),
        ];
        for (url, expected) in cases {
            let split = split_credentials(url);
            let split = split.as_ref().map(|(uri, header)| {
                let header = header.as_ref().map(|header| header.to_str().expect("is ASCII"));
                (uri.to_string(), header)
            });
            let split = split.as_ref().map(|(uri, header)| (uri.as_str(), *header));
            assert_eq!(split, expected, "{url}");
        }
    }
}
