//! Bodies of requests: read to a modest size, and within their time.

use std::time::Duration;

use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use actix_web::{HttpRequest, web};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::app::State;
use crate::problem::Problem;

/// How large a body may be, and how long it may take to come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    /// Bytes.
    pub(crate) bytes: usize,
    pub(crate) time: Duration,
}

/// Reads a body of a modest size, within its time.
pub(crate) async fn read_body(
    request: &HttpRequest,
    mut body: web::Payload,
    limits: BodyLimits,
) -> Result<Vec<u8>, Problem> {
    let limit = limits.bytes;
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    if declared.and_then(|v| v.parse::<usize>().ok()).is_some_and(|length| length > limit) {
        return Err(Problem::TooLarge(limit));
    }
    let read = async {
        let mut bytes = Vec::new();
        while let Some(chunk) = body.next().await {
            let chunk = chunk
                .map_err(|_| Problem::InvalidRequest("the body ended before its end".to_owned()))?;
            if bytes.len() + chunk.len() > limit {
                return Err(Problem::TooLarge(limit));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    timeout(limits.time, read).await.map_err(|_| Problem::RequestTimeout(limits.time))?
}

/// Reads a body that says what is to be done; none is an empty object. A field that is not known is
/// told of, with those that there are: it was meant to do something.
pub(crate) async fn read_json<T: DeserializeOwned>(
    request: &HttpRequest,
    body: web::Payload,
    limits: BodyLimits,
) -> Result<T, Problem> {
    let bytes = read_body(request, body, limits).await?;
    if !bytes.is_empty() {
        check_is_json(request)?;
    }
    let bytes = if bytes.is_empty() { &b"{}"[..] } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| Problem::InvalidRequest(error.to_string()))
}

fn check_is_json(request: &HttpRequest) -> Result<(), Problem> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        Ok(())
    } else {
        Err(Problem::UnsupportedMediaType)
    }
}

/// An order needs no body. One that is sent all the same must be a JSON object of a modest size, so
/// that a client which means something else by it is told.
pub(crate) async fn check_body(
    request: &HttpRequest,
    body: web::Payload,
    state: &State,
) -> Result<(), Problem> {
    let bytes = read_body(request, body, state.body).await?;
    if bytes.is_empty() {
        return Ok(());
    }
    check_is_json(request)?;
    serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)
        .ok()
        .filter(|_| bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{'))
        .map(|_| ())
        .ok_or_else(|| Problem::InvalidRequest("the body is not a JSON object".to_owned()))
}
