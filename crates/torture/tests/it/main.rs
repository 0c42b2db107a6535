//! The drills, one short round of each kind.

mod kinds;
