//! `salectl pay`: what the payment provider does, by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use flashsale_bootstrap::Settings;
use flashsale_domain::{OrderId, Price};
use flashsale_operations::{OperationError, connect};
use flashsale_webhooks::{ID_HEADER, SIGNATURE_HEADER, Secrets, TIMESTAMP_HEADER};
use serde::Serialize;
use serde_json::Value;

use crate::Verdict;
use crate::cli::PayArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::when::{now_ms, rfc3339};

pub(super) const PATH: &str = "/api/v1/payments/webhook";
/// The gateway answers within a second or says that it cannot; the rest is the way there.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What is posted.
#[derive(Serialize)]
struct Message {
    r#type: &'static str,
    timestamp: String,
    data: Paid,
}

#[derive(Serialize)]
struct Paid {
    order_id: OrderId,
    #[serde(flatten)]
    price: Price,
}

/// `{"webhook_id":"…","status":200,"answer":{"order_id":"…","outcome":"paid"}}`; a refusal's `answer`
/// is the problem document, and an answer that is no JSON is a string.
#[derive(Serialize)]
struct Answered {
    webhook_id: String,
    status: u16,
    answer: Value,
}

/// Signs the payment, posts it, and prints the answer. Exit code 1 when it is not 2xx.
pub(crate) async fn run(
    args: &PayArgs,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    let Some(secrets) = &settings.payment.webhook_secret else {
        return Err(Failure::usage(
            "payment.webhook_secret is not set, and nothing can be signed without it",
        ));
    };
    let base = args.url.clone().unwrap_or_else(|| url_of(settings.http.listen));
    let client = client()?;
    let url = reqwest::Url::parse(&format!("{}{PATH}", base.trim_end_matches('/')))
        .map_err(|error| Failure::usage(format!("--url: {error}")))?;
    if url.scheme() != "http" {
        return Err(Failure::usage("--url: only http:// is built in, so name the gateway itself"));
    }
    let price = match args.amount.zip(args.currency) {
        Some((amount, currency)) => Price { amount, currency },
        None => price_of(args.order, settings).await?,
    };

    let webhook_id = args.id.clone().unwrap_or_else(|| format!("pay_{}_{}", args.order, now_ms()));
    let payment = Payment { order: args.order, price, webhook_id: webhook_id.clone() };
    let answer = payment.request(&client, url, secrets).send().await.map_err(no_answer)?;
    let status = answer.status();
    let text = answer.text().await.map_err(no_answer)?;
    let answer = serde_json::from_str(&text).unwrap_or(Value::String(text));
    let answered = Answered { webhook_id, status: status.as_u16(), answer };
    output.print(&answered, || answered.text(args.order))?;
    Ok(if status.is_success() { Verdict::Good } else { Verdict::Broken })
}

/// A payment as the provider reports it.
pub(super) struct Payment {
    pub(super) order: OrderId,
    pub(super) price: Price,
    /// The same one counts once.
    pub(super) webhook_id: String,
}

impl Payment {
    /// The signed report of it, to be sent to `url`.
    pub(super) fn request(
        &self,
        client: &reqwest::Client,
        url: reqwest::Url,
        secrets: &Secrets,
    ) -> reqwest::RequestBuilder {
        let sent_ms = now_ms();
        let data = Paid { order_id: self.order, price: self.price };
        let message = Message { r#type: "payment.succeeded", timestamp: rfc3339(sent_ms), data };
        let body = serde_json::to_vec(&message).expect("texts and numbers, which JSON can hold");
        let sent_s = sent_ms / 1000;
        let signature = secrets.sign(&self.webhook_id, sent_s, &body);
        client
            .post(url)
            .header("content-type", "application/json")
            .header(ID_HEADER, &self.webhook_id)
            .header(TIMESTAMP_HEADER, sent_s)
            .header(SIGNATURE_HEADER, signature)
            .body(body)
    }
}

impl Answered {
    fn text(&self, order: OrderId) -> String {
        let told = |name: &str| self.answer.get(name).and_then(Value::as_str);
        match (told("outcome"), told("title").or(self.answer.as_str())) {
            (Some(outcome), _) => format!("order {order}: {outcome}"),
            (None, Some(why)) => format!("refused ({}): {why}", self.status),
            (None, None) => format!("answered {}: {}", self.status, self.answer),
        }
    }
}

pub(super) fn client() -> Result<reqwest::Client, Failure> {
    // A proxy of the environment has no business with what is signed here, and neither has whoever
    // the answer points to.
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(TIMEOUT)
        .build()
        .map_err(|error| Failure::from(anyhow::Error::from(error)))
}

fn no_answer(error: reqwest::Error) -> Failure {
    let error = anyhow::Error::from(error.without_url());
    Failure::from(error.context("the gateway has not answered; it may have taken the payment"))
}

async fn price_of(order: OrderId, settings: &Settings) -> Result<Price, Failure> {
    let database = connect::migrated_database(settings).await?;
    let found = database.find_order(order).await.map_err(OperationError::from)?;
    found.and_then(|stored| stored.order.price).ok_or_else(|| {
        Failure::refused(format!(
            "there is no order {order} in the database (perhaps it is still queued): wait for it, \
             or say --amount and --currency"
        ))
    })
}

/// Where a gateway of these settings is reached on this machine.
pub(super) fn url_of(listen: SocketAddr) -> String {
    let ip = match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_on_every_address_is_reached_on_this_machine() {
        for (listen, url) in [
            ("0.0.0.0:8080", "http://127.0.0.1:8080"),
            ("[::]:80", "http://[::1]:80"),
            ("10.0.0.7:8080", "http://10.0.0.7:8080"),
        ] {
            assert_eq!(url_of(listen.parse().expect(listen)), url);
        }
    }
}
