//! The promises of this crate against a real Redis: what each script answers, and what it leaves
//! behind when it refuses.

mod admit;
mod dead_letters;
mod direct;
mod gate;
mod holding;
mod race;
mod release;
mod stream;
mod support;
mod trim;
mod window;
