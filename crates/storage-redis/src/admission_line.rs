//! What an admission connection sends over: a connection that is made again when it breaks, and that
//! never sends a command twice.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};

use crate::primary::{Primary, Server};
use crate::{RedisConfig, RedisFault};

/// A line to the primary. Clones share it.
#[derive(Clone)]
pub(crate) enum Line {
    /// To the one that there is.
    Fixed(ConnectionManager),
    /// To the one that is the primary at the time.
    Watched(Arc<Watched>),
}

pub(crate) struct Watched {
    primary: Primary,
    config: ConnectionManagerConfig,
    present: Mutex<Option<(Arc<Server>, ConnectionManager)>>,
}

impl Line {
    pub(crate) fn new(primary: &Primary, config: &RedisConfig) -> Result<Self, RedisFault> {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(config.response_timeout))
            .set_connection_timeout(Some(config.connect_timeout))
            .set_number_of_retries(1)
            .set_max_delay(Duration::from_millis(200));
        Ok(match primary {
            Primary::Fixed(server) => {
                let client = server.client.clone();
                Self::Fixed(ConnectionManager::new_lazy_with_config(client, config)?)
            }
            Primary::Watched(_) => Self::Watched(Arc::new(Watched {
                primary: primary.clone(),
                config,
                present: Mutex::default(),
            })),
        })
    }

    /// For one command.
    pub(crate) async fn connection(&self) -> Result<ConnectionManager, RedisFault> {
        match self {
            Self::Fixed(manager) => Ok(manager.clone()),
            Self::Watched(watched) => watched.connection().await,
        }
    }

    /// Takes note of a failed command: the next one looks where the primary is.
    pub(crate) fn noted<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        if let (Self::Watched(watched), Err(error)) = (self, &answer) {
            watched.primary.doubt_after(error);
        }
        answer
    }
}

impl Watched {
    async fn connection(&self) -> Result<ConnectionManager, RedisFault> {
        let server = self.primary.server().await?;
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, manager)) = &*present
            && Arc::ptr_eq(at, &server)
        {
            return Ok(manager.clone());
        }
        let client = server.client.clone();
        let manager = ConnectionManager::new_lazy_with_config(client, self.config.clone())?;
        *present = Some((server, manager.clone()));
        Ok(manager)
    }
}
