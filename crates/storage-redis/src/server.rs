//! What a server says of itself: how it is set up, not what it holds.

use redis::cmd;

use crate::{Redis, RedisFault};

/// How the server is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The version that clients are to go by, such as `7.0.15`; Valkey names the Redis that it is
    /// compatible with.
    pub version: String,
    /// Valkey's own version, where it is Valkey.
    pub valkey: Option<String>,
    /// Whether it takes writes.
    pub is_primary: bool,
    /// Replicas that are connected and in step.
    pub replicas: u64,
    /// Whether it keeps an append-only file.
    pub append_only: bool,
    /// When the file goes to disk: `always`, `everysec` or `no`; `None` where CONFIG is not allowed.
    pub append_fsync: Option<String>,
    /// What happens when its memory is full.
    pub eviction_policy: String,
}

impl ServerFacts {
    /// Major and minor version.
    pub fn version_pair(&self) -> Option<(u32, u32)> {
        let mut parts = self.version.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

impl Redis {
    /// Asks the server how it is set up.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn server_facts(&self) -> Result<ServerFacts, RedisFault> {
        let mut connection = self.connection().await?;
        let info: String = cmd("INFO").query_async(&mut connection).await?;
        let find = |name: &str| {
            let mut fields = info.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim().to_owned())
        };
        let get = |name: &'static str| {
            find(name).ok_or_else(|| RedisFault::reply("INFO", format!("no {name}")))
        };
        let is_replica = |line: &&str| line.starts_with("slave") && line.contains(",state=online");
        let config: Result<Vec<String>, _> =
            cmd("CONFIG").arg("GET").arg("appendfsync").query_async(&mut connection).await;
        Ok(ServerFacts {
            version: get("redis_version")?,
            valkey: find("valkey_version"),
            is_primary: get("role")? == "master",
            replicas: u64::try_from(info.lines().filter(is_replica).count()).unwrap_or(u64::MAX),
            append_only: get("aof_enabled")? == "1",
            append_fsync: config.ok().and_then(|pair| pair.into_iter().nth(1)),
            eviction_policy: get("maxmemory_policy")?,
        })
    }
}
