//! The settings of all four programs, parsed once into types.
//!
//! One struct, because one file and one environment serve the whole deployment; each program uses
//! the sections that it needs. Rule: whoever holds a [`Settings`] holds values that were checked,
//! alone and together. `defaults.toml` says what each key means; its ranges are these ranges.

mod error;
mod layers;
mod reader;
mod risk;
#[cfg(test)]
mod tests;
mod tracing;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flashsale_webhooks::Secrets;
use secrecy::{ExposeSecret, SecretString};
use tracing_subscriber::EnvFilter;

pub use error::{Problem, SettingsError};
use reader::Reader;
pub use risk::{Profile, Risk};
pub use tracing::TracingSettings;

/// The built-in defaults: a complete TOML file that explains every key.
pub const DEFAULTS: &str = include_str!("defaults.toml");

/// The environment variable that names the settings file.
pub const CONFIG_VARIABLE: &str = "FLASHSALE_CONFIG";

/// HS256 hashes to 256 bits; a shorter secret is the weakest part of the token.
const JWT_SECRET_BYTES_MIN: usize = 32;

/// All settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What the deployment is for.
    pub profile: Profile,
    /// What a production start is to bear.
    pub allow_unsafe: Vec<Risk>,
    /// The buyers' listener.
    pub http: HttpSettings,
    /// The listener for probes, metrics and operators.
    pub admin: AdminSettings,
    /// How to reach Redis, and the names used in it.
    pub redis: RedisSettings,
    /// How to reach the database.
    pub database: DatabaseSettings,
    /// How tokens are checked.
    pub auth: AuthSettings,
    /// The queue in front of the admission script.
    pub admission: AdmissionSettings,
    /// The gateway's copy of the published sales.
    pub catalogue: CatalogueSettings,
    /// Direct sales.
    pub direct: DirectSettings,
    /// The order worker.
    pub worker: WorkerSettings,
    /// The payment provider's webhook.
    pub payment: PaymentSettings,
    /// What the shop is told.
    pub webhooks: WebhookSettings,
    /// Traces.
    pub tracing: TracingSettings,
    /// Whether what alerts are about may be caused on purpose.
    pub drills: DrillSettings,
    /// Logs.
    pub log: LogSettings,
}

/// Section `http`.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// Where buyers connect.
    pub listen: SocketAddr,
    /// Worker threads; 0 is one a core.
    pub workers: usize,
    /// The largest request body.
    pub body_limit_bytes: usize,
    /// The largest request line and headers together, in bytes.
    pub head_limit_bytes: usize,
    /// How long an idle connection stays open; zero closes it after each answer.
    pub keep_alive: Duration,
    /// How long a client may take to send its request's head.
    pub client_request_timeout: Duration,
    /// How long a client may take to send its request's body.
    pub body_timeout: Duration,
    /// How long requests in flight may run once shutdown was requested.
    pub drain_deadline: Duration,
}

/// Section `admin`.
#[derive(Debug, Clone)]
pub struct AdminSettings {
    /// Where operators, probes and the metrics scraper connect.
    pub listen: SocketAddr,
}

/// Section `redis`.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// `redis://`, `redis+sentinel://`, `redis+unix://` or `unix://`.
    pub url: SecretString,
    /// What every key starts with.
    pub prefix: String,
    /// How many partitions there are, numbered from 0.
    pub partitions: u16,
    /// How long an answer may take; not for blocking readers.
    pub response_timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// Connections in the pool.
    pub pool_max: usize,
}

/// Section `database`.
#[derive(Debug, Clone)]
pub struct DatabaseSettings {
    /// `sqlite://`, `postgres://` or `postgresql://`.
    pub url: SecretString,
    /// Connections in the pool.
    pub max_connections: u32,
    /// How long connecting, or waiting for a pooled connection, may take.
    pub connect_timeout: Duration,
    /// How long one statement may run.
    pub statement_timeout: Duration,
}

/// Section `auth`. At most one of the two keys is set.
#[derive(Debug, Clone)]
pub struct AuthSettings {
    /// The shared secret of HS256 tokens.
    pub jwt_secret: Option<SecretString>,
    /// A PEM file with the public key of EdDSA or RS256 tokens.
    pub jwt_public_key_file: Option<PathBuf>,
    /// How far a token's times may be off.
    pub leeway: Duration,
    /// How many tokens with a public key's good signature a worker thread remembers; 0 remembers none.
    pub remembered_tokens: usize,
}

/// The one way in which tokens are checked.
#[derive(Debug, Clone, Copy)]
pub enum TokenKey<'a> {
    /// HS256 with this secret.
    Secret(&'a SecretString),
    /// EdDSA or RS256 with the public key in this PEM file.
    PublicKeyFile(&'a Path),
}

/// Section `admission`.
#[derive(Debug, Clone)]
pub struct AdmissionSettings {
    /// Requests in one script call.
    pub batch_max: usize,
    /// Requests that may wait in one worker thread.
    pub queue_capacity: usize,
    /// How long a request may wait.
    pub queue_deadline: Duration,
    /// How many replicas must have a yes before a buyer is told; 0 waits for none.
    pub replicas: u8,
    /// How long they are waited for.
    pub replicas_timeout: Duration,
    /// What counts as having it.
    pub replicas_confirm: ReplicasConfirm,
}

/// Section `catalogue`.
#[derive(Debug, Clone)]
pub struct CatalogueSettings {
    /// How often the published sales are read again.
    pub refresh: Duration,
}

/// Section `direct`.
#[derive(Debug, Clone)]
pub struct DirectSettings {
    /// How long a buyer's lock lives if its holder dies.
    pub lock_ttl: Duration,
    /// How long a request waits for the lock.
    pub lock_wait: Duration,
}

/// Section `worker`.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Orders in one transaction.
    pub batch: usize,
    /// Transactions of one partition at the same time.
    pub in_flight: usize,
    /// How long one read waits for new orders.
    pub block: Duration,
    /// How long orders of a crowd are gathered for the next transaction.
    pub linger: Duration,
    /// How long an unfinished order stays with a worker that says nothing.
    pub reclaim_idle: Duration,
    /// Solo attempts before an order is set aside.
    pub max_deliveries: u32,
    /// How long the work in hand may take once shutdown was requested.
    pub drain_deadline: Duration,
    /// How often finished orders are removed from the stream.
    pub trim_interval: Duration,
    /// How often the ledgers of live sales are read, by one worker a partition.
    pub ledger_interval: Duration,
    /// How old a waiting order may become before more workers are asked for.
    pub target_lag: Duration,
    /// Who loads a partition's memory when Redis has lost it.
    pub rebuild: RebuildMode,
    /// The first pause after an outage.
    pub retry_min: Duration,
    /// The longest pause during an outage.
    pub retry_max: Duration,
}

/// Section `payment`.
#[derive(Debug, Clone)]
pub struct PaymentSettings {
    /// What the provider signs with.
    pub webhook_secret: Option<Secrets>,
}

/// Section `webhooks`.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// Where changes of orders are posted, and what signs them.
    pub endpoint: Option<Endpoint>,
    /// A PEM file with authorities that the shop's certificate may be of, besides the public ones.
    pub ca_file: Option<PathBuf>,
    /// How long the shop may take to answer.
    pub timeout: Duration,
    /// The first pause after a failed try.
    pub retry_min: Duration,
    /// The longest.
    pub retry_max: Duration,
}

/// The shop's side of outgoing webhooks.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// `http://` or `https://`.
    pub url: SecretString,
    /// The first one signs.
    pub secrets: Secrets,
}

/// Section `drills`.
#[derive(Debug, Clone, Copy)]
pub struct DrillSettings {
    /// `salectl drill` works.
    pub allowed: bool,
}

/// Section `log`.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// How a line looks.
    pub format: LogFormat,
    /// Directives of `EnvFilter`.
    pub filter: String,
}

/// When a replica has what was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicasConfirm {
    /// It is in its memory.
    Memory,
    /// It is on its disk, and on the primary's.
    Disk,
}

/// Who loads a partition's memory from the database when Redis has lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildMode {
    /// An order-worker, by itself.
    Auto,
    /// An operator, with `salectl rebuild`.
    Manual,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// `Human` on a terminal, `Json` elsewhere.
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

impl Settings {
    /// Reads defaults, the file named by `FLASHSALE_CONFIG`, and the environment of this process.
    ///
    /// # Errors
    /// Everything that is wrong with them, at once.
    pub fn load() -> Result<Self, SettingsError> {
        let file = layers::read_named_file(std::env::var_os(CONFIG_VARIABLE))?;
        Self::from_sources(file, layers::read_environment()?)
    }

    /// As [`Settings::load`], with the file (path and text) and the environment handed in. Variables
    /// without our prefix are passed over.
    ///
    /// # Errors
    /// Everything that is wrong with them, at once.
    pub fn from_sources(
        file: Option<(PathBuf, String)>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let mut problems = Vec::new();
        let values = layers::merge(file, env, &mut problems);
        let mut reader = Reader::new(values, problems);
        let settings = Self::read(&mut reader);
        settings.validate(&mut reader);
        reader.finish(settings)
    }

    fn read(from: &mut Reader) -> Self {
        Self {
            profile: from.parsed(
                "profile",
                "development or production",
                Profile::Development,
                risk::parse_profile,
            ),
            allow_unsafe: from.words("allow_unsafe", &risk::names(), risk::parse),
            http: HttpSettings {
                listen: from.address("http.listen"),
                workers: from.integer("http.workers", 0..=1024),
                body_limit_bytes: from.integer("http.body_limit_bytes", 1024..=1_048_576),
                head_limit_bytes: from.integer("http.head_limit_bytes", 1024..=131_072),
                keep_alive: from.duration("http.keep_alive", secs(0)..=secs(3600)),
                client_request_timeout: from
                    .duration("http.client_request_timeout", millis(100)..=secs(60)),
                body_timeout: from.duration("http.body_timeout", millis(100)..=secs(60)),
                drain_deadline: from.duration("http.drain_deadline", secs(0)..=secs(600)),
            },
            admin: AdminSettings { listen: from.address("admin.listen") },
            redis: RedisSettings {
                url: from.secret(
                    "redis.url",
                    "redis://, redis+sentinel://, redis+unix:// or unix:// (TLS, rediss://, is not \
                     built in)",
                    |url| check_scheme(url, &["redis", "redis+sentinel", "redis+unix", "unix"]),
                ),
                prefix: from.parsed(
                    "redis.prefix",
                    "1 to 32 characters of a-z, 0-9, _ and -",
                    String::new(),
                    parse_prefix,
                ),
                // The order id has 10 bits for the partition; its last number, 1023, is direct mode's.
                partitions: from.integer("redis.partitions", 1..=1023),
                response_timeout: from.duration("redis.response_timeout", millis(10)..=secs(60)),
                connect_timeout: from.duration("redis.connect_timeout", millis(10)..=secs(60)),
                pool_max: from.integer("redis.pool_max", 1..=1024),
            },
            database: DatabaseSettings {
                url: from.secret(
                    "database.url",
                    "sqlite://, postgres:// or postgresql://",
                    |url| check_scheme(url, &["sqlite", "postgres", "postgresql"]),
                ),
                max_connections: from.integer("database.max_connections", 1..=1000),
                connect_timeout: from.duration("database.connect_timeout", millis(100)..=secs(60)),
                statement_timeout: from
                    .duration("database.statement_timeout", millis(100)..=secs(600)),
            },
            auth: AuthSettings {
                jwt_secret: from.optional_secret("auth.jwt_secret"),
                jwt_public_key_file: from.parsed(
                    "auth.jwt_public_key_file",
                    "the path of a PEM file",
                    None,
                    |path| Ok((!path.is_empty()).then(|| PathBuf::from(path))),
                ),
                leeway: from.duration("auth.leeway", secs(0)..=secs(300)),
                remembered_tokens: from.integer("auth.remembered_tokens", 0..=1_000_000),
            },
            admission: AdmissionSettings {
                batch_max: from.integer("admission.batch_max", 1..=1000),
                queue_capacity: from.integer("admission.queue_capacity", 1..=1_000_000),
                queue_deadline: from.duration("admission.queue_deadline", millis(1)..=secs(60)),
                replicas: from.integer("admission.replicas", 0..=10),
                replicas_timeout: from.duration("admission.replicas_timeout", millis(1)..=secs(10)),
                replicas_confirm: from.parsed(
                    "admission.replicas_confirm",
                    "memory or disk",
                    ReplicasConfirm::Memory,
                    parse_replicas_confirm,
                ),
            },
            catalogue: CatalogueSettings {
                refresh: from.duration("catalogue.refresh", millis(10)..=secs(1)),
            },
            direct: DirectSettings {
                lock_ttl: from.duration("direct.lock_ttl", millis(100)..=secs(60)),
                lock_wait: from.duration("direct.lock_wait", secs(0)..=secs(60)),
            },
            worker: WorkerSettings {
                batch: from.integer("worker.batch", 1..=5000),
                in_flight: from.integer("worker.in_flight", 1..=16),
                // Not 0, which to Redis is for ever: the reader must come back to see a shutdown.
                block: from.duration("worker.block", millis(10)..=secs(60)),
                linger: from.duration("worker.linger", secs(0)..=secs(1)),
                reclaim_idle: from.duration("worker.reclaim_idle", secs(1)..=secs(3600)),
                max_deliveries: from.integer("worker.max_deliveries", 1..=100),
                drain_deadline: from.duration("worker.drain_deadline", secs(0)..=secs(600)),
                trim_interval: from.duration("worker.trim_interval", millis(100)..=secs(3600)),
                ledger_interval: from.duration("worker.ledger_interval", millis(100)..=secs(3600)),
                target_lag: from.duration("worker.target_lag", millis(100)..=secs(3600)),
                rebuild: from.parsed(
                    "worker.rebuild",
                    "auto or manual",
                    RebuildMode::Auto,
                    parse_rebuild_mode,
                ),
                retry_min: from.duration("worker.retry_min", millis(1)..=secs(60)),
                retry_max: from.duration("worker.retry_max", millis(1)..=secs(600)),
            },
            payment: PaymentSettings {
                webhook_secret: webhook_secrets(from, "payment.webhook_secret"),
            },
            webhooks: WebhookSettings {
                endpoint: endpoint(from),
                ca_file: from.parsed("webhooks.ca_file", "the path of a PEM file", None, |path| {
                    Ok((!path.is_empty()).then(|| PathBuf::from(path)))
                }),
                timeout: from.duration("webhooks.timeout", millis(100)..=secs(60)),
                retry_min: from.duration("webhooks.retry_min", millis(100)..=secs(86_400)),
                retry_max: from.duration("webhooks.retry_max", millis(100)..=secs(86_400)),
            },
            tracing: TracingSettings::read(from),
            drills: DrillSettings { allowed: from.boolean("drills.allowed") },
            log: LogSettings {
                format: from.parsed(
                    "log.format",
                    "auto, human or json",
                    LogFormat::Auto,
                    parse_log_format,
                ),
                filter: from.parsed(
                    "log.filter",
                    "directives such as info,sqlx=warn",
                    String::new(),
                    parse_log_filter,
                ),
            },
        }
    }

    /// The rules over more than one key.
    fn validate(&self, reader: &mut Reader) {
        reader.require(
            &["auth.jwt_secret", "auth.jwt_public_key_file"],
            !(self.auth.jwt_secret.is_some() && self.auth.jwt_public_key_file.is_some()),
            "auth.jwt_public_key_file is set too",
            "one of the two, so that it is clear which tokens are good",
        );
        reader.require(
            &["worker.reclaim_idle", "database.statement_timeout"],
            self.worker.reclaim_idle > 2 * self.database.statement_timeout,
            &format!(
                "{} is not more than twice database.statement_timeout ({})",
                humantime::format_duration(self.worker.reclaim_idle),
                humantime::format_duration(self.database.statement_timeout)
            ),
            "more than twice database.statement_timeout, because a transaction that is slow but alive must not lose its orders to another worker",
        );
        reader.require(
            &["admission.replicas_timeout", "redis.response_timeout"],
            self.admission.replicas == 0
                || 2 * self.admission.replicas_timeout <= self.redis.response_timeout,
            &format!(
                "{} is more than half of redis.response_timeout ({})",
                humantime::format_duration(self.admission.replicas_timeout),
                humantime::format_duration(self.redis.response_timeout)
            ),
            "at most half of redis.response_timeout, because what is waited for must still be answered in time",
        );
        reader.require(
            &["worker.retry_min", "worker.retry_max"],
            self.worker.retry_min <= self.worker.retry_max,
            &format!(
                "{} is more than worker.retry_max ({})",
                humantime::format_duration(self.worker.retry_min),
                humantime::format_duration(self.worker.retry_max)
            ),
            "at most worker.retry_max",
        );
        reader.require(
            &["webhooks.retry_min", "webhooks.retry_max"],
            self.webhooks.retry_min <= self.webhooks.retry_max,
            &format!(
                "{} is more than webhooks.retry_max ({})",
                humantime::format_duration(self.webhooks.retry_min),
                humantime::format_duration(self.webhooks.retry_max)
            ),
            "at most webhooks.retry_max",
        );
    }
}

impl AuthSettings {
    /// Whether tokens are signed with a secret that is shorter than it should be.
    pub fn secret_is_weak(&self) -> bool {
        let secret = self.jwt_secret.as_ref();
        secret.is_some_and(|secret| secret.expose_secret().len() < JWT_SECRET_BYTES_MIN)
    }

    /// The key that tokens are checked with, for a program that cannot do without.
    ///
    /// # Errors
    /// Neither `auth.jwt_secret` nor `auth.jwt_public_key_file` is set.
    pub fn require(&self) -> Result<TokenKey<'_>, SettingsError> {
        match (&self.jwt_secret, &self.jwt_public_key_file) {
            (Some(secret), _) => Ok(TokenKey::Secret(secret)),
            (None, Some(file)) => Ok(TokenKey::PublicKeyFile(file)),
            (None, None) => Err(Problem {
                key: "auth.jwt_secret".to_owned(),
                source: None,
                what: "neither it nor auth.jwt_public_key_file is set, so no token can be checked"
                    .to_owned(),
                allowed: "FLASHSALE__AUTH__JWT_SECRET, FLASHSALE__AUTH__JWT_SECRET__FILE or FLASHSALE__AUTH__JWT_PUBLIC_KEY_FILE".to_owned(),
            }
            .into()),
        }
    }
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Quotes nothing of the URL: it may carry a password, and a mistyped one may be all password.
fn check_scheme(url: &str, allowed: &[&str]) -> Result<(), String> {
    match url.split_once("://") {
        Some((scheme, _)) if allowed.contains(&scheme) => Ok(()),
        Some(("rediss", _)) => Err("TLS is not built in".to_owned()),
        Some(_) => Err("its scheme is not one of those that are built in".to_owned()),
        None => Err("it is not a URL: there is no ://".to_owned()),
    }
}

/// Secrets for webhooks; `None` when the key is empty, or what it holds is no secret (which is noted).
fn webhook_secrets(from: &mut Reader, key: &'static str) -> Option<Secrets> {
    let secret = from.optional_secret(key)?;
    let secrets = Secrets::parse(secret.expose_secret());
    from.require(
        &[key],
        secrets.is_ok(),
        "it is none",
        "whsec_ and base64, or a text of at least 8 bytes; several are separated by spaces",
    );
    secrets.ok()
}

fn endpoint(from: &mut Reader) -> Option<Endpoint> {
    let secrets = webhook_secrets(from, "webhooks.secret");
    let url = from.optional_secret("webhooks.url")?;
    let scheme = check_scheme(url.expose_secret(), &["http", "https"]);
    from.require(
        &["webhooks.url"],
        scheme.is_ok(),
        &scheme.err().unwrap_or_default(),
        "http:// or https://",
    );
    from.require(
        &["webhooks.secret", "webhooks.url"],
        secrets.is_some(),
        "it is not set, and webhooks.url is",
        "a secret, because the shop could not tell who posts to it",
    );
    Some(Endpoint { url, secrets: secrets? })
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if (1..=32).contains(&text.len()) && text.chars().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not a prefix"))
    }
}

fn parse_replicas_confirm(text: &str) -> Result<ReplicasConfirm, String> {
    match text {
        "memory" => Ok(ReplicasConfirm::Memory),
        "disk" => Ok(ReplicasConfirm::Disk),
        other => Err(format!("{other:?} is neither")),
    }
}

fn parse_rebuild_mode(text: &str) -> Result<RebuildMode, String> {
    match text {
        "auto" => Ok(RebuildMode::Auto),
        "manual" => Ok(RebuildMode::Manual),
        _ => Err("no such mode".to_owned()),
    }
}

fn parse_log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "human" => Ok(LogFormat::Human),
        "json" => Ok(LogFormat::Json),
        other => Err(format!("{other:?} is not a format")),
    }
}

fn parse_log_filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{text:?} does not parse: {error}")),
    }
}
