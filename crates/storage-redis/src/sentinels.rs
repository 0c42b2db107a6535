//! Asking the sentinels: which server is the primary of a service.
//!
//! They are asked all at once, over connections of that moment, and the first majority is enough. Of
//! what they name, the one with the highest configuration epoch comes first: a sentinel that was away
//! may still name an older primary. Whoever is named must say of himself that he is one.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue as _, RedisError, RedisResult, Value};
use tokio::time::timeout;

use crate::{RedisConfig, RedisFault};

const SCHEME: &str = "redis+sentinel://";
const DEFAULT_PORT: u16 = 26_379;
/// A sentinel that takes longer is passed over; so is a primary.
const PATIENCE_MAX: Duration = Duration::from_secs(1);

/// Why there is no primary to talk to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotFound {
    /// Sentinels answered, and none has heard of the service.
    #[error("the sentinels of redis.url know no service {0:?}")]
    UnknownService(String),
    /// What they name is away, or is no primary.
    #[error("the sentinels name no primary that answers as one: {0}")]
    NoPrimary(String),
    /// No sentinel answered.
    #[error("no sentinel answers: {0}")]
    Silence(String),
}

/// What a `redis+sentinel://` URL says.
pub(crate) struct Sentinels {
    /// `user:password@`, as it was written, for the servers; or nothing.
    credentials: String,
    clients: Vec<Client>,
    service: String,
    /// `/db`, or nothing.
    database: String,
}

impl Sentinels {
    /// `None` where the URL is not one of sentinels.
    pub(crate) fn parse(url: &str) -> Result<Option<Self>, RedisFault> {
        let Some(rest) = url.strip_prefix(SCHEME) else { return Ok(None) };
        let wrong = |problem: &str| RedisFault::Url(problem.to_owned());
        let (authority, path) = rest.split_once('/').ok_or_else(|| wrong("names no service"))?;
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), authority),
        };
        let (service, database) = match path.split_once('/') {
            Some((service, number)) => {
                number.parse::<u16>().map_err(|_| wrong("ends in something else than /db"))?;
                (service, format!("/{number}"))
            }
            None => (path, String::new()),
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if service.is_empty() || !service.chars().all(is_plain) {
            return Err(wrong("has no service name of letters, digits and .-_"));
        }
        let mut clients = Vec::new();
        for host in hosts.split(',') {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
            let sentinel = match host {
                "" => return Err(wrong("names no sentinel between two commas")),
                host if has_port => format!("redis://{host}"),
                host => format!("redis://{host}:{DEFAULT_PORT}"),
            };
            let client =
                Client::open(sentinel).map_err(|_| wrong("has a sentinel without host"))?;
            clients.push(client);
        }
        let sentinels = Self { credentials, clients, service: service.to_owned(), database };
        // Credentials that no server's URL could carry are noticed now.
        Client::open(sentinels.url_of("localhost:1"))?;
        Ok(Some(sentinels))
    }

    /// The URL of a server.
    pub(crate) fn url_of(&self, address: &str) -> String {
        format!("redis://{}{address}{}", self.credentials, self.database)
    }

    /// The address, `host:port`, of the primary.
    pub(crate) async fn find_primary(&self, config: &RedisConfig) -> Result<String, NotFound> {
        let patience = config.connect_timeout.min(PATIENCE_MAX);
        let mut answers: FuturesUnordered<_> = self
            .clients
            .iter()
            .map(|sentinel| in_time(patience, self.ask(sentinel, patience)))
            .collect();
        let mut named: Vec<Named> = Vec::new();
        let (mut knows_nothing, mut silence) = (false, String::new());
        while named.len() * 2 <= self.clients.len()
            && let Some(answer) = answers.next().await
        {
            match answer {
                Ok(Some(primary)) => named.push(primary),
                Ok(None) => knows_nothing = true,
                Err(error) => silence = error.to_string(),
            }
        }
        drop(answers);
        if named.is_empty() {
            return Err(match knows_nothing {
                true => NotFound::UnknownService(self.service.clone()),
                false => NotFound::Silence(silence),
            });
        }
        named.sort_by(|a, b| b.epoch.cmp(&a.epoch).then_with(|| a.address.cmp(&b.address)));
        named.dedup_by(|a, b| a.address == b.address);
        let mut why = Vec::new();
        for Named { address, .. } in named {
            match in_time(patience, self.is_primary(&address, patience)).await {
                Ok(true) => return Ok(address),
                Ok(false) => why.push(format!("{address} is a replica")),
                Err(error) => why.push(format!("{address}: {error}")),
            }
        }
        Err(NotFound::NoPrimary(why.join("; ")))
    }

    /// What a sentinel names; `None` when it has not heard of the service.
    async fn ask(&self, sentinel: &Client, patience: Duration) -> RedisResult<Option<Named>> {
        let mut connection = connect(sentinel, patience).await?;
        let mut both = redis::pipe();
        both.ignore_errors();
        for question in ["GET-MASTER-ADDR-BY-NAME", "MASTER"] {
            both.cmd("SENTINEL").arg(question).arg(&self.service);
        }
        let replies: Vec<RedisResult<Value>> = both.query_async(&mut connection).await?;
        let mut replies = replies.into_iter();
        let (address, facts) = (replies.next().transpose()?, replies.next());
        let Some((host, port)) =
            Option::<(String, u16)>::from_redis_value(address.unwrap_or(Value::Nil))?
        else {
            return Ok(None);
        };
        let facts: HashMap<String, String> = match facts {
            Some(Ok(facts)) => HashMap::from_redis_value(facts)?,
            _ => HashMap::new(),
        };
        let epoch = facts.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Ok(Some(Named { epoch, address: format!("{host}:{port}") }))
    }

    async fn is_primary(&self, address: &str, patience: Duration) -> RedisResult<bool> {
        let mut connection = connect(&Client::open(self.url_of(address))?, patience).await?;
        let info: String =
            redis::cmd("INFO").arg("replication").query_async(&mut connection).await?;
        Ok(info.lines().any(|line| line.trim() == "role:master"))
    }
}

/// What a sentinel says.
struct Named {
    /// Rises with every failover.
    epoch: u64,
    address: String,
}

async fn connect(client: &Client, patience: Duration) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(patience))
        .set_connection_timeout(Some(patience));
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn in_time<T>(
    patience: Duration,
    answer: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    match timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_sentinels_gives_the_url_of_each_server() {
        let url = "redis+sentinel://ann:p%40ss@one:1,two,[::1]:3,[::2]/shop/4";
        let sentinels = Sentinels::parse(url).expect("a good one").expect("of sentinels");
        assert_eq!(sentinels.service, "shop");
        assert_eq!(sentinels.url_of("ten:6"), "redis://ann:p%40ss@ten:6/4");
        let asked: Vec<String> = sentinels
            .clients
            .iter()
            .map(|client| client.get_connection_info().addr().to_string())
            .collect();
        assert_eq!(asked, ["one:1", "two:26379", "::1:3", "::2:26379"]);

        let plain = Sentinels::parse("redis+sentinel://one/shop").expect("a good one");
        assert_eq!(plain.expect("of sentinels").url_of("ten:6"), "redis://ten:6");
        assert!(Sentinels::parse("redis://one/4").expect("a good one").is_none());
    }

    #[test]
    fn a_url_that_names_no_service_or_no_sentinel_is_refused() {
        for wrong in [
            "one:1",
            "one:1/",
            "one:1//2",
            "/shop",
            "one,,two/shop",
            "one/shop/x",
            "one/shop?a=b",
            "one/shop/1/2",
        ] {
            let parsed = Sentinels::parse(&format!("redis+sentinel://{wrong}"));
            assert!(matches!(parsed, Err(RedisFault::Url(_))), "{wrong}");
        }
    }
}
