//! The worker against real servers: what is admitted becomes rows, whatever happens to Redis, to the
//! database, or to the worker itself.

mod announce;
mod bad_entries;
mod crashes;
mod database_outages;
mod expire;
mod failover;
mod frozen;
mod holding;
mod in_flight;
mod killed_in_between;
mod leaving;
mod orders;
mod permanent_errors;
mod production;
mod real_worker;
mod reclaim;
mod recovery;
mod redis_outages;
mod refusals;
mod relay;
mod support;
mod suspects;
mod tiny_shop;
mod turnstile;
mod versions;
mod watching;
