//! Bodies of requests: read to a modest size, and within their time.

use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use actix_web::{HttpRequest, web};
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::app::State;
use crate::problem::Problem;

/// Reads a body of a modest size, within its time.
pub(crate) async fn read_body(
    request: &HttpRequest,
    mut body: web::Payload,
    state: &State,
) -> Result<Vec<u8>, Problem> {
    let limit = state.body_limit_bytes;
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
    timeout(state.body_timeout, read)
        .await
        .map_err(|_| Problem::RequestTimeout(state.body_timeout))?
}

/// An order needs no body. One that is sent all the same must be a JSON object of a modest size, so
/// that a client which means something else by it is told.
pub(crate) async fn check_body(
    request: &HttpRequest,
    body: web::Payload,
    state: &State,
) -> Result<(), Problem> {
    let bytes = read_body(request, body, state).await?;
    if bytes.is_empty() {
        return Ok(());
    }
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Err(Problem::UnsupportedMediaType);
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)
        .ok()
        .filter(|_| bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{'))
        .map(|_| ())
        .ok_or_else(|| Problem::InvalidRequest("the body is not a JSON object".to_owned()))
}
