//! What others rely on of this crate: the reference of all settings.

mod configuration;
mod reference;
