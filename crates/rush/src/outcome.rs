//! What an answer means for the buyer: status and problem slug become one [`Outcome`].

use std::borrow::Cow;

use serde::Deserialize;

use crate::client::{Broken, Reply};

/// An order's id as the service spelled it: never taken for a number here.
pub(crate) type OrderId = Box<str>;

/// The last word on one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// 201 or 202 that was not marked as a replay.
    Accepted(OrderId),
    /// The same key again: the first answer's order.
    Replayed(OrderId),
    AlreadyOrdered(Option<OrderId>),
    Refused(Refusal),
    /// 503 with one of the slugs that the service documents.
    Unavailable(&'static str),
    /// Another 4xx, with its status.
    ClientError(u16),
    /// Another 5xx, or an answer that makes no sense, with its status.
    ServerError(u16),
    /// No answer.
    Transport,
}

/// Why the sale did not give this buyer a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    SoldOut,
    NotStarted,
    Ended,
    Paused,
}

impl Refusal {
    /// The problem's slug.
    pub(crate) fn slug(self) -> &'static str {
        match self {
            Self::SoldOut => "sold-out",
            Self::NotStarted => "not-started",
            Self::Ended => "ended",
            Self::Paused => "paused",
        }
    }
}

/// The members of an accepted order that the count needs; the rest is skipped, not built.
#[derive(Deserialize)]
struct Order {
    order_id: OrderId,
}

/// The members of a problem document that the count needs.
#[derive(Deserialize)]
struct Problem<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    order_id: Option<OrderId>,
}

impl Outcome {
    /// Reads the answer to a request for an order.
    pub(crate) fn read(reply: &Result<Reply, Broken>) -> Self {
        let Ok(reply) = reply else { return Self::Transport };
        match reply.status {
            200..=202 => match serde_json::from_slice::<Order>(&reply.body) {
                Ok(Order { order_id }) if !is_id(&order_id) => Self::ServerError(reply.status),
                Ok(Order { order_id }) if reply.replayed => Self::Replayed(order_id),
                Ok(Order { order_id }) => Self::Accepted(order_id),
                Err(_) => Self::ServerError(reply.status),
            },
            409 => {
                let Some(problem) = problem(reply) else { return Self::ClientError(409) };
                match slug(&problem.kind) {
                    "sold-out" => Self::Refused(Refusal::SoldOut),
                    "not-started" => Self::Refused(Refusal::NotStarted),
                    "ended" => Self::Refused(Refusal::Ended),
                    "paused" => Self::Refused(Refusal::Paused),
                    "already-ordered" => {
                        Self::AlreadyOrdered(problem.order_id.filter(|id| is_id(id)))
                    }
                    _ => Self::ClientError(409),
                }
            }
            503 => match problem(reply).as_ref().map(|problem| slug(&problem.kind)) {
                Some("overloaded") => Self::Unavailable("overloaded"),
                Some("sale-unavailable") => Self::Unavailable("sale-unavailable"),
                Some("outcome-unknown") => Self::Unavailable("outcome-unknown"),
                _ => Self::ServerError(503),
            },
            status @ 400..=499 => Self::ClientError(status),
            status => Self::ServerError(status),
        }
    }

    /// Why the same request is worth sending again, or `None` when this is the last word.
    ///
    /// 502 and 504 are what a proxy makes of a gateway that was killed: a broken connection.
    pub(crate) fn retry_cause(&self) -> Option<&'static str> {
        match self {
            Self::Unavailable(slug) => Some(slug),
            Self::ServerError(502) => Some("502"),
            Self::ServerError(503) => Some("503"),
            Self::ServerError(504) => Some("504"),
            Self::Transport => Some("transport"),
            Self::Accepted(_)
            | Self::Replayed(_)
            | Self::AlreadyOrdered(_)
            | Self::Refused(_)
            | Self::ClientError(_)
            | Self::ServerError(_) => None,
        }
    }
}

fn problem(reply: &Reply) -> Option<Problem<'_>> {
    serde_json::from_slice(&reply.body).ok()
}

/// The last segment: `type` is a URI reference, and a proxy may have made it absolute.
fn slug(kind: &str) -> &str {
    kind.rsplit('/').next().unwrap_or(kind)
}

/// An id goes into a path and a CSV file, so nothing but digits is taken for one.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn read(status: u16, replayed: bool, body: &'static str) -> Outcome {
        let body = Bytes::from_static(body.as_bytes());
        Outcome::read(&Ok(Reply { status, replayed, retry_after: None, body }))
    }

    #[test]
    fn every_documented_answer_has_its_outcome() {
        let order = r#"{"order_id":"41","sale_id":"7","state":"queued"}"#;
        assert_eq!(read(202, false, order), Outcome::Accepted("41".into()));
        assert_eq!(read(201, false, order), Outcome::Accepted("41".into()));
        assert_eq!(read(202, true, order), Outcome::Replayed("41".into()));
        for (body, outcome) in [
            (r#"{"type":"/problems/sold-out"}"#, Outcome::Refused(Refusal::SoldOut)),
            (r#"{"type":"/problems/not-started"}"#, Outcome::Refused(Refusal::NotStarted)),
            (r#"{"type":"/problems/ended"}"#, Outcome::Refused(Refusal::Ended)),
            (r#"{"type":"https://a.test/problems/paused"}"#, Outcome::Refused(Refusal::Paused)),
            (
                r#"{"type":"/problems/already-ordered","order_id":"41"}"#,
                Outcome::AlreadyOrdered(Some("41".into())),
            ),
            (r#"{"type":"/problems/else"}"#, Outcome::ClientError(409)),
            ("no JSON", Outcome::ClientError(409)),
        ] {
            assert_eq!(read(409, false, body), outcome, "{body}");
        }
        for slug in ["overloaded", "sale-unavailable", "outcome-unknown"] {
            let body: &'static str = format!(r#"{{"type":"/problems/{slug}"}}"#).leak();
            assert_eq!(read(503, false, body).retry_cause(), Some(slug));
        }
        assert_eq!(read(503, false, "<html>"), Outcome::ServerError(503));
        assert_eq!(read(401, false, "{}"), Outcome::ClientError(401));
        assert_eq!(read(500, false, "{}"), Outcome::ServerError(500));
    }

    #[test]
    fn a_success_without_an_order_id_is_the_servers_error() {
        assert_eq!(read(202, false, "{}"), Outcome::ServerError(202));
        assert_eq!(read(202, false, r#"{"order_id":"../x"}"#), Outcome::ServerError(202));
        assert_eq!(read(302, false, ""), Outcome::ServerError(302));
    }
}
