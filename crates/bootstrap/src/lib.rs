//! What every Flashsale program does before and beside its own work: read the settings, set up
//! logs and metrics, serve the admin listener, notice the signals that end it.
//!
//! Rule: nothing in here knows a sale, an order, Redis or SQL, and after [`Settings::load`] nobody
//! reads the environment again.

pub mod admin;
pub mod cli;
pub mod clock;
mod health;
mod quiet;
pub mod readiness;
pub mod settings;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
pub mod traces;
pub mod version;

pub use admin::AdminServer;
pub use quiet::Quiet;
pub use readiness::Readiness;
pub use settings::{DEFAULTS, Settings, SettingsError};
pub use shutdown::Shutdown;
