//! The worker against real servers: what is admitted becomes rows, whatever happens to Redis, to the
//! database, or to the worker itself.

mod bad_entries;
mod database_outages;
mod holding;
mod leaving;
mod orders;
mod reclaim;
mod recovery;
mod redis_outages;
mod relay;
mod support;
mod suspects;
mod watching;
