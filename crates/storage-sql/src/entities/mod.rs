//! Tables as sea-orm sees them. They never leave this crate.

#[expect(unreachable_pub, reason = "what sea-orm derives beside a model is public")]
pub(crate) mod adjustment;
#[expect(unreachable_pub, reason = "what sea-orm derives beside a model is public")]
pub(crate) mod answer;
#[expect(unreachable_pub, reason = "what sea-orm derives beside a model is public")]
pub(crate) mod audit_log;
pub(crate) mod event;
pub(crate) mod order;
#[expect(unreachable_pub, reason = "what sea-orm derives beside a model is public")]
pub(crate) mod outbox;
pub(crate) mod payment;
pub(crate) mod sale;
