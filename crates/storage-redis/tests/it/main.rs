//! The promises of this crate against a real Redis: what each script answers, and what it leaves
//! behind when it refuses.

mod adjust;
mod admit;
mod changes;
mod dead_letters;
mod direct;
mod gate;
mod golden;
mod holding;
mod race;
mod reacquire;
mod release;
mod replicas;
mod sentinels;
mod stream;
mod support;
mod trim;
mod window;
