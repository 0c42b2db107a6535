//! Tables as sea-orm sees them. They never leave this crate.

pub(crate) mod order;
pub(crate) mod sale;
