//! The worker against real servers: what is admitted becomes rows, whatever happens to Redis, to the
//! database, or to the worker itself.

mod bad_entries;
mod database_outages;
mod leaving;
mod orders;
mod reclaim;
mod redis_outages;
mod support;
mod watching;
