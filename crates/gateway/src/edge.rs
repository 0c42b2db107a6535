//! What every request passes on its way in and out: one middleware, because each costs every buyer an
//! allocation and a turn.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::middleware::Next;
use actix_web::{HttpRequest, web};
use opentelemetry::context::FutureExt as _;

use crate::app::State;
use crate::problem::{self, Problem};
use crate::unread_body;

/// Traces what is sampled, refuses a head that is too large, keeps the body until the answer is written,
/// says problems in the language that is asked for, and once the gateway drains makes each answer the
/// last of its connection.
pub(crate) async fn pass(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let body = unread_body::share(&mut request);
    let state = state_of(request.request());
    let limit = state.head_limit_bytes;
    let span = state.sampling.as_ref().and_then(|sampling| sampling.begin(&request));
    let response = if problem::is_head_larger(&request, limit) {
        // A response, not an error: an error would not be said in another language.
        request.error_response(Problem::HeadTooLarge(limit))
    } else if let Some(span) = &span {
        next.call(request).with_context(span.context()).await?.map_into_boxed_body()
    } else {
        next.call(request).await?.map_into_boxed_body()
    };
    let mut response = problem::localize(response);
    if let Some(span) = span {
        span.end(&response);
    }
    if state_of(response.request()).draining.is_requested() {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    Ok(match body {
        Some(body) => unread_body::keep_until_answered(response, body),
        None => response,
    })
}

/// The same for the operators' port, which has no crowd to mind: no limit of the head beyond the
/// server's own, and no draining.
pub(crate) async fn pass_operators(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let body = unread_body::share(&mut request);
    let response = problem::localize(next.call(request).await?.map_into_boxed_body());
    Ok(match body {
        Some(body) => unread_body::keep_until_answered(response, body),
        None => response,
    })
}

fn state_of(request: &HttpRequest) -> &State {
    request.app_data::<web::Data<State>>().expect("every app is built with state")
}
