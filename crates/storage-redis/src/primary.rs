//! The one place that knows which server is the primary: every connection is made from here.
//!
//! Behind sentinels the primary may become another one at any time. Once a second whoever uses a
//! connection has the sentinels asked, in the background; who finds the primary away or demoted doubts
//! it, and the next one asks before he sends anything. The old pool goes with the old primary.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deadpool_redis::{Manager, Pool, Runtime, Status};
use redis::{AsyncConnectionConfig, Client, RedisError};
use tracing::{info, warn};

use crate::sentinels::{NotFound, Sentinels};
use crate::{RedisConfig, RedisFault};

/// What was asked so recently is used without another thought.
const FRESH: Duration = Duration::from_secs(1);
/// What was asked longer ago is not used before it is asked again: nobody has looked meanwhile.
const OLD: Duration = Duration::from_secs(3);
/// Who asks so soon after somebody asked in vain is told the same.
const FAILED_LATELY: Duration = Duration::from_millis(100);

/// A server, and what is needed to talk to it.
pub(crate) struct Server {
    address: String,
    pub(crate) client: Client,
    pub(crate) pool: Pool,
}

impl Server {
    fn new(url: &str, address: String, config: &RedisConfig) -> Result<Self, RedisFault> {
        let connection = AsyncConnectionConfig::new()
            .set_response_timeout(Some(config.response_timeout))
            .set_connection_timeout(Some(config.connect_timeout));
        let manager = Manager::new_with_config(url, connection)?;
        let pool = Pool::builder(manager)
            .max_size(config.pool_max)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(config.response_timeout))
            .create_timeout(Some(config.connect_timeout))
            .recycle_timeout(Some(config.response_timeout))
            .build()
            .expect("a runtime is set, which is all that building needs");
        Ok(Self { address, client: Client::open(url)?, pool })
    }
}

/// The primary of the deployment. Cheap to clone; clones know the same.
#[derive(Clone)]
pub(crate) enum Primary {
    /// The one that the URL names.
    Fixed(Arc<Server>),
    /// The one that the sentinels name.
    Watched(Arc<Watched>),
}

pub(crate) struct Watched {
    sentinels: Sentinels,
    config: RedisConfig,
    state: Mutex<State>,
    /// One asks at a time.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    server: Option<Arc<Server>>,
    /// When the last asking began that was answered.
    answered: Option<Instant>,
    /// When the last asking began, answered or not.
    asked: Option<Instant>,
    /// The last asking in vain, and when it ended.
    failed: Option<(Instant, NotFound)>,
    /// Counts those who found that the server is not what it should be.
    doubts: u64,
    /// How many of them have had their answer.
    dispelled: u64,
}

/// When the sentinels are to be asked.
enum Ask {
    Not,
    Meanwhile,
    First,
}

impl Primary {
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, RedisFault> {
        Ok(match Sentinels::parse(&config.url)? {
            None => Self::Fixed(Arc::new(Server::new(&config.url, String::new(), config)?)),
            Some(sentinels) => Self::Watched(Arc::new(Watched {
                sentinels,
                config: config.clone(),
                state: Mutex::default(),
                asking: tokio::sync::Mutex::default(),
            })),
        })
    }

    /// The present primary.
    pub(crate) async fn server(&self) -> Result<Arc<Server>, RedisFault> {
        let watched = match self {
            Self::Fixed(server) => return Ok(Arc::clone(server)),
            Self::Watched(watched) => watched,
        };
        match watched.known() {
            (Some(server), Ask::Not) => Ok(server),
            (Some(server), Ask::Meanwhile) => {
                let watched = Arc::clone(watched);
                // What it finds is in the state for the next one.
                tokio::spawn(async move { watched.ask_in_turn().await.ok() });
                Ok(server)
            }
            (known, _) => match (watched.ask_in_turn().await, known) {
                // Without sentinels nobody is promoted either.
                (Err(NotFound::Silence(_)), Some(server)) => Ok(server),
                (found, _) => Ok(found?),
            },
        }
    }

    /// Whether this is still the primary.
    pub(crate) async fn is_still(&self, server: &Arc<Server>) -> Result<bool, RedisFault> {
        Ok(Arc::ptr_eq(&self.server().await?, server))
    }

    /// How the pool of the known primary is used; asks nobody.
    pub(crate) fn pool_status(&self) -> Option<Status> {
        match self {
            Self::Fixed(server) => Some(server.pool.status()),
            Self::Watched(watched) => {
                watched.state().server.as_ref().map(|server| server.pool.status())
            }
        }
    }

    /// No connection could be had, or a command failed: unless Redis has refused just this command,
    /// the next one asks the sentinels before it sends anything.
    pub(crate) fn doubt(&self) {
        if let Self::Watched(watched) = self {
            watched.state().doubts += 1;
        }
    }

    /// As [`Primary::doubt`], where the error is about the server.
    pub(crate) fn doubt_after(&self, error: &RedisError) {
        let demoted = ["READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED"];
        if error.code().is_none_or(|code| demoted.contains(&code)) {
            self.doubt();
        }
    }
}

impl Watched {
    fn known(&self) -> (Option<Arc<Server>>, Ask) {
        let mut state = self.state();
        let age = state.asked.map(|asked| asked.elapsed());
        let ask = match age {
            _ if state.doubts != state.dispelled => Ask::First,
            Some(age) if age < FRESH => Ask::Not,
            Some(age) if age < OLD => {
                // One is sent, and not everybody.
                state.asked = Some(Instant::now());
                Ask::Meanwhile
            }
            _ => Ask::First,
        };
        (state.server.clone(), ask)
    }

    /// Asks, or takes over what somebody has just been told.
    async fn ask_in_turn(&self) -> Result<Arc<Server>, NotFound> {
        let came = Instant::now();
        let _turn = self.asking.lock().await;
        let doubts = {
            let mut state = self.state();
            if let Some((at, why)) = &state.failed
                && at.elapsed() < FAILED_LATELY
            {
                return Err(why.clone());
            }
            if state.answered.is_some_and(|answered| answered >= came)
                && state.doubts == state.dispelled
                && let Some(server) = &state.server
            {
                return Ok(Arc::clone(server));
            }
            state.asked = Some(Instant::now());
            state.doubts
        };
        let began = Instant::now();
        let found = self.sentinels.find_primary(&self.config).await;
        let mut state = self.state();
        match found.and_then(|address| self.at(&state, address)) {
            Ok(server) => {
                state.server = Some(Arc::clone(&server));
                state.answered = Some(began);
                state.dispelled = doubts;
                state.failed = None;
                Ok(server)
            }
            Err(why) => {
                if state.failed.is_none() {
                    warn!(error = %why, "the primary of Redis is not to be found");
                }
                // What contradicts the known one lets nobody use it unasked.
                if !matches!(why, NotFound::Silence(_)) {
                    state.doubts += 1;
                }
                state.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// The known server where it has this address, else a new one.
    fn at(&self, state: &State, address: String) -> Result<Arc<Server>, NotFound> {
        if let Some(server) = &state.server
            && server.address == address
        {
            return Ok(Arc::clone(server));
        }
        let url = self.sentinels.url_of(&address);
        let server = Server::new(&url, address, &self.config)
            .map_err(|error| NotFound::NoPrimary(error.to_string()))?;
        if let Some(old) = &state.server {
            info!(
                from = old.address,
                to = server.address,
                "another server is the primary of Redis"
            );
            old.pool.close();
        }
        Ok(Arc::new(server))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
