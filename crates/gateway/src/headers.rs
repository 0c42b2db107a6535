//! Request headers that mean something only when they come once.

use std::fmt;

use actix_web::HttpRequest;
use actix_web::http::header::{AsHeaderName, HeaderValue};

use crate::problem::Problem;

/// The header's one value, if it was sent. Of several nobody can say which one was meant, and a
/// proxy may have looked at another one than we would.
pub(crate) fn at_most_one(
    request: &HttpRequest,
    name: impl AsHeaderName + fmt::Display + Copy,
) -> Result<Option<&HeaderValue>, Problem> {
    let mut values = request.headers().get_all(name);
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(Problem::InvalidRequest(format!("send one {name} header, not several"))),
    }
}
