//! A request body that nobody reads to its end does not keep its connection.
//!
//! A "no" often comes before the body has. If the body is dropped then, and it is a chunked one, the
//! server goes on to read the rest, without a deadline, so that the connection can be used again: a
//! client that never sends the rest holds a connection for good, and needs no token for it. While the
//! body is alive when the answer has been written, the server closes the connection instead, after it
//! has thrown away for a second what still comes. A body that has come whole changes nothing.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_web::HttpMessage as _;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::error::PayloadError;
use actix_web::web::Bytes;
use futures_util::Stream;

/// Takes hold of a request's body; the handler can read it all the same. `None` when there is none.
pub(crate) fn share(request: &mut ServiceRequest) -> Option<Shared> {
    let payload = match request.take_payload() {
        Payload::None => return None,
        payload => Shared(Rc::new(RefCell::new(payload))),
    };
    request.set_payload(Payload::Stream { payload: Box::pin(payload.clone()) });
    Some(payload)
}

/// Keeps a request's body until the answer has been written.
pub(crate) fn keep_until_answered(response: ServiceResponse, body: Shared) -> ServiceResponse {
    response.map_body(|_, answer| BoxBody::new(Answer { body: answer, _request: body }))
}

/// A request's body, held by the handler that may read it and by its answer.
#[derive(Clone)]
pub(crate) struct Shared(Rc<RefCell<Payload>>);

impl Stream for Shared {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_next(cx)
    }
}

/// An answer's body that keeps the request's.
struct Answer {
    body: BoxBody,
    _request: Shared,
}

impl MessageBody for Answer {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}
