//! What goes wrong between us and Redis.

use deadpool_redis::PoolError;
use redis::{ErrorKind, RedisError};

use crate::NotFound;

/// Redis could not be asked, or did not answer as it should. Never a "no" to a buyer.
#[derive(Debug, thiserror::Error)]
pub enum RedisFault {
    /// The command failed, or its answer did not come.
    #[error("redis: {0}")]
    Command(#[from] RedisError),
    /// No connection could be had from the pool.
    #[error("redis connection pool: {0}")]
    Pool(#[from] PoolError),
    /// The sentinels led to no primary; nothing was sent.
    #[error("redis: {0}")]
    Primary(#[from] NotFound),
    /// A URL of sentinels that cannot be used.
    #[error("a redis+sentinel:// URL that {0}")]
    Url(String),
    /// Redis answered in a shape that this version does not know.
    #[error("redis answered {command} in an unexpected shape: {detail}")]
    Reply {
        /// The command or script.
        command: &'static str,
        /// What was unexpected.
        detail: String,
    },
}

impl RedisFault {
    pub(crate) fn reply(command: &'static str, detail: impl Into<String>) -> Self {
        Self::Reply { command, detail: detail.into() }
    }

    /// True when Redis is there and answered with an error, such as WRONGTYPE or NOPERM: what is wrong
    /// may concern this one command or key only.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Command(error) if error.code().is_some())
    }

    /// True when the command may have been carried out although no answer came: the connection was
    /// lost or timed out. False when Redis itself answered with an error.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Command(error) => {
                // A connection that was refused has carried nothing.
                !error.is_connection_refusal()
                    && (error.is_timeout()
                        || error.is_connection_dropped()
                        || error.kind() == ErrorKind::Io)
            }
            Self::Reply { .. } => true,
            Self::Pool(_) | Self::Primary(_) | Self::Url(_) => false,
        }
    }
}
