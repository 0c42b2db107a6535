//! Private servers and waiting for tests and the demo: Redis, PostgreSQL, nginx and our own programs, each
//! on a free port of 127.0.0.1 with its files in a temporary folder.
//!
//! The rule that this crate keeps: whatever is started here ends with the process that started it,
//! however that process ends, and nothing that runs elsewhere on the machine is ever touched. It
//! imports nothing of ours, so every crate may use it as a dev-dependency.

mod eventually;
mod nginx;
mod port;
mod postgres_server;
mod process;
mod program;
mod redis_server;
mod sentinel_group;
mod temp;
mod unique;

pub use eventually::{Probe, eventually, eventually_blocking, try_eventually};
pub use nginx::{Nginx, NginxBuilder};
pub use port::free_port;
pub use postgres_server::{PostgresServer, PostgresServerBuilder};
pub use process::find_on_path;
pub use program::{Program, ProgramBuilder, binary, forget_settings};
pub use redis_server::{RedisServer, RedisServerBuilder};
pub use sentinel_group::SentinelGroup;
pub use temp::{TempDir, temp_dir};
pub use unique::unique;
