//! The payment provider's webhook: signed, decided once, answered so that its retries make sense.
//!
//! 2xx tells the provider that all is done, also when the money has to go back. Everything else makes
//! it try again: an order that is not known may be written by then, and a store that is away be back.

use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_bootstrap::{clock, error_quietly};
use flashsale_domain::{Currency, NewPayment, OrderId, PaymentOutcome, Price};
use flashsale_operations::PaymentVerdict;
use flashsale_webhooks::{ID_HEADER, Message, SIGNATURE_HEADER, TIMESTAMP_HEADER};
use serde::{Deserialize, Serialize};
use tracing::info;
use utoipa::ToSchema;

use crate::app::State;
use crate::headers::at_most_one;
use crate::problem::{Problem, ProblemBody};
use crate::request_body::read_body;
use crate::spans::request_id;

/// The one type of message that is acted on.
const PAYMENT_SUCCEEDED: &str = "payment.succeeded";

/// What the payment provider tells.
#[derive(Deserialize, ToSchema)]
pub(crate) struct PaymentMessage {
    /// `payment.succeeded`; messages of other types are taken and ignored.
    #[serde(rename = "type")]
    kind: String,
    /// Of a `payment.succeeded`.
    #[serde(default)]
    #[schema(value_type = PaymentData)]
    data: serde_json::Value,
}

/// Money that was received for an order.
#[derive(Deserialize, ToSchema)]
pub(crate) struct PaymentData {
    /// The order.
    #[schema(value_type = String, example = "385724913408081920")]
    order_id: OrderId,
    /// Minor units.
    #[schema(example = 9900)]
    amount: i64,
    /// ISO 4217.
    #[schema(example = "CNY")]
    currency: String,
}

/// What became of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct PaymentAnswer {
    /// The order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    order_id: Option<OrderId>,
    /// `paid`; `refund_due` when the money bought nothing and has to go back; `refunded` when it has
    /// gone back; `ignored` for a message of another type.
    #[schema(example = "paid")]
    outcome: &'static str,
}

/// The payment provider reports (Standard Webhooks).
#[utoipa::path(
    post, path = "/api/v1/payments/webhook", tag = "payments", request_body = PaymentMessage,
    params(
        ("webhook-id" = String, Header, description = "The message's id: the same one is decided once"),
        ("webhook-timestamp" = String, Header, description = "Seconds since 1970, at most 5 minutes off"),
        ("webhook-signature" = String, Header, description = "v1,<base64 of HMAC-SHA256>; several are separated by spaces"),
    ),
    responses(
        (status = 200, body = PaymentAnswer, description = "Decided, now or before"),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        (status = 401, body = ProblemBody, description = "unauthorized: the signature is not good"),
        (status = 404, body = ProblemBody, description = "order-not-found: perhaps not yet, try again"),
        (status = 409, body = ProblemBody, description = "payment-mismatch: not what the order costs; webhook-id-reused: that of another payment"),
        (status = 413, body = ProblemBody, description = "too-large"),
        (status = 503, body = ProblemBody, description = "sale-unavailable: try again"),
    ),
)]
pub(crate) async fn webhook(
    request: HttpRequest,
    body: web::Payload,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let secrets = state
        .payment_secrets
        .as_ref()
        .ok_or(Problem::Unauthorized("payment.webhook_secret is not set"))?;
    let body = read_body(&request, body, state.body).await?;
    let header = |name| {
        let value = at_most_one(&request, name)?;
        Ok(value.and_then(|value| value.to_str().ok()).unwrap_or_default())
    };
    let message = Message {
        id: header(ID_HEADER)?,
        timestamp: header(TIMESTAMP_HEADER)?,
        signature: header(SIGNATURE_HEADER)?,
        body: &body,
    };
    secrets
        .verify(&message, clock::now_ms() / 1000)
        .map_err(|refusal| Problem::BadSignature(refusal.to_string()))?;
    let Some(payment) = payment_of(message.id, &body)? else {
        return Ok(HttpResponse::Ok().json(PaymentAnswer { order_id: None, outcome: "ignored" }));
    };

    let verdict = state.operations.receive_payment(&payment).await.map_err(|fault| {
        error_quietly!(error = %fault, order.id = %payment.order_id, request.id = request_id(&request),
            "a payment could not be decided");
        Problem::SaleUnavailable
    })?;
    match verdict {
        PaymentVerdict::OrderNotFound => Err(Problem::OrderNotFound),
        PaymentVerdict::IdReused => {
            error_quietly!(order.id = %payment.order_id, request.id = request_id(&request),
                webhook.id = payment.webhook_id,
                amount = payment.price.amount, currency = %payment.price.currency,
                "a payment has the webhook-id of another one; it is not taken");
            Err(Problem::WebhookIdReused)
        }
        PaymentVerdict::Pending => Err(Problem::SaleUnavailable),
        PaymentVerdict::Settled { outcome: PaymentOutcome::Mismatch, .. } => {
            Err(Problem::PaymentMismatch)
        }
        PaymentVerdict::Settled { outcome, repeated } => {
            if !repeated && outcome.is_due_back() {
                info!(order.id = %payment.order_id, request.id = request_id(&request),
                    webhook.id = payment.webhook_id,
                    "a payment bought nothing, its money is due back");
            }
            let answer =
                PaymentAnswer { order_id: Some(payment.order_id), outcome: outcome.as_str() };
            Ok(HttpResponse::Ok().json(answer))
        }
    }
}

/// The payment that a message tells of; `None` for a message of another type.
fn payment_of(webhook_id: &str, body: &[u8]) -> Result<Option<NewPayment>, Problem> {
    let message: PaymentMessage = serde_json::from_slice(body).map_err(|_| {
        Problem::InvalidRequest("the body is no JSON object with a type and data".to_owned())
    })?;
    if message.kind != PAYMENT_SUCCEEDED {
        return Ok(None);
    }
    let allowed = "data has order_id (a string), amount (a number of minor units, not negative) and \
                   currency (three capital letters)";
    let invalid = || Problem::InvalidRequest(allowed.to_owned());
    let data: PaymentData = serde_json::from_value(message.data).map_err(|_| invalid())?;
    let currency: Currency = data.currency.parse().map_err(|_| invalid())?;
    if data.amount < 0 {
        return Err(invalid());
    }
    Ok(Some(NewPayment {
        webhook_id: webhook_id.to_owned(),
        order_id: data.order_id,
        price: Price { amount: data.amount, currency },
    }))
}
