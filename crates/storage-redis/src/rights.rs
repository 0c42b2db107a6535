//! Which commands this crate and its scripts use, and whether the connection may run them all.
//!
//! Rule: a command that is used anywhere is in [`COMMANDS`]; a test compares the list with `lua/` and
//! with this crate's own code.

use redis::{AsyncConnectionConfig, Cmd, RedisError, RedisResult, Value, cmd, pipe};

use crate::{Redis, RedisFault, ReplicaProof};

/// Stands for a key of the deployment.
const KEY: &str = "{key}";
/// Stands for its channel.
const CHANNEL: &str = "{channel}";

/// Every command, with arguments that Redis would accept. None of them is carried out.
const COMMANDS: [&[&str]; 43] = [
    &["DEL", KEY],
    &["EVALSHA", "0000000000000000000000000000000000000000", "1", KEY],
    &["EXISTS", KEY],
    &["GET", KEY],
    &["HDEL", KEY, "f"],
    &["HEXISTS", KEY, "f"],
    &["HGET", KEY, "f"],
    &["HGETALL", KEY],
    &["HINCRBY", KEY, "f", "1"],
    &["HLEN", KEY],
    &["HMGET", KEY, "f"],
    &["HSCAN", KEY, "0"],
    &["HSET", KEY, "f", "v"],
    &["HSETNX", KEY, "f", "v"],
    &["INFO"],
    &["PEXPIRE", KEY, "1"],
    &["PING"],
    &["PUBLISH", CHANNEL, "m"],
    &["SADD", KEY, "m"],
    &["SCRIPT", "LOAD", "return 1"],
    &["SET", KEY, "v"],
    &["SRANDMEMBER", KEY],
    &["SREM", KEY, "m"],
    &["SUBSCRIBE", CHANNEL],
    &["TIME"],
    &["TYPE", KEY],
    &["UNLINK", KEY],
    // The pool sends it each time that a connection is taken.
    &["UNWATCH"],
    &["XACK", KEY, "g", "1-0"],
    &["XADD", KEY, "*", "f", "v"],
    &["XAUTOCLAIM", KEY, "g", "c", "0", "0"],
    &["XCLAIM", KEY, "g", "c", "0", "1-0"],
    &["XGROUP", "CREATE", KEY, "g", "0"],
    &["XGROUP", "DELCONSUMER", KEY, "g", "c"],
    &["XINFO", "CONSUMERS", KEY, "g"],
    &["XINFO", "GROUPS", KEY],
    &["XINFO", "STREAM", KEY],
    &["XLEN", KEY],
    &["XPENDING", KEY, "g"],
    &["XRANGE", KEY, "-", "+"],
    &["XREADGROUP", "GROUP", "g", "c", "STREAMS", KEY, ">"],
    &["XSETID", KEY, "1-0"],
    &["XTRIM", KEY, "MINID", "1-0"],
];

impl Redis {
    /// The commands, in small letters, that the connection's user may not run, or not on the keys and
    /// the channel of this deployment; `proof` adds the command that waits for replicas.
    ///
    /// Redis checks a right when a command joins a transaction, and the transaction is given up: so
    /// nothing is done, and the user needs no right over ACLs for it.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn missing_rights(
        &self,
        proof: Option<ReplicaProof>,
    ) -> Result<Vec<String>, RedisFault> {
        let waiting: &[&[&str]] = match proof {
            None => &[],
            Some(ReplicaProof::Memory) => &[&["WAIT", "0", "0"]],
            Some(ReplicaProof::Disk) => &[&["WAITAOF", "0", "0", "0"]],
        };
        // Not one of the pool: who may not give a transaction up would stay in it.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(self.config.response_timeout))
            .set_connection_timeout(Some(self.config.connect_timeout));
        let server = self.primary.server().await?;
        let mut connection =
            server.client.get_multiplexed_async_connection_with_config(&config).await?;
        // Alone, because outside of a transaction the others would be carried out.
        match cmd("MULTI").query_async::<()>(&mut connection).await {
            Err(error) if is_denied(&error) => return Ok(vec!["multi".to_owned()]),
            begun => begun?,
        }
        let (key, channel) = (self.keys.nothing(), self.keys.changes());
        let asked: Vec<&[&str]> =
            COMMANDS.iter().chain(waiting).copied().chain([&["DISCARD"][..]]).collect();
        let mut transaction = pipe();
        transaction.ignore_errors();
        for words in &asked {
            let mut command = Cmd::new();
            for word in *words {
                command.arg(match *word {
                    KEY => key.as_str(),
                    CHANNEL => channel.as_str(),
                    word => word,
                });
            }
            transaction.add_command(command);
        }
        let replies: Vec<RedisResult<Value>> = transaction.query_async(&mut connection).await?;
        let denied = |reply: &RedisResult<Value>| reply.as_ref().is_err_and(is_denied);
        let missing = asked.iter().zip(&replies).filter(|(_, reply)| denied(reply));
        Ok(missing.map(|(words, _)| name(words)).collect())
    }
}

fn is_denied(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

/// As ACL rules spell it.
fn name(words: &[&str]) -> String {
    match words {
        [container @ ("CONFIG" | "SCRIPT" | "XGROUP" | "XINFO"), subcommand, ..] => {
            format!("{container}|{subcommand}").to_ascii_lowercase()
        }
        [name, ..] => name.to_ascii_lowercase(),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Commands behind each `opening`, as ACL rules spell them, in the files below `folder` that end so.
    fn commands_in(
        folder: &Path,
        ending: &str,
        openings: &[&str],
        quote: char,
        found: &mut BTreeSet<String>,
    ) {
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                commands_in(&path, ending, openings, quote, found);
            } else if path.extension().is_some_and(|it| it == ending) {
                let text = std::fs::read_to_string(&path).expect("a readable file");
                // What this file itself says of commands is the list, and not a use.
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                for opening in openings {
                    for call in text.split(opening).skip(1) {
                        let mut words = call.split(quote);
                        let command = words.next().unwrap_or_default();
                        let between = words.next().unwrap_or_default();
                        let sub = words.next().unwrap_or_default();
                        // The call may go on on the next line.
                        let between: String = between.split_whitespace().collect();
                        let is_next = [",", ").arg("].contains(&between.as_str());
                        let words = if is_next { &[command, sub][..] } else { &[command] };
                        found.insert(name(words));
                    }
                }
            }
        }
    }

    #[test]
    fn every_command_that_is_used_is_in_the_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut used = BTreeSet::new();
        let calls = ["redis.call('", "redis.pcall('"];
        commands_in(&root.join("../../lua"), "lua", &calls, '\'', &mut used);
        assert!(used.contains("xgroup|create") && used.contains("hset"), "{used:?}");
        commands_in(&root.join("src"), "rs", &["cmd(\""], '"', &mut used);
        assert!(used.contains("xreadgroup") && used.contains("publish"), "{used:?}");
        let listed: BTreeSet<_> = COMMANDS.iter().map(|words| name(words)).collect();
        // Those of the check itself, those that only some deployments use, and what sentinels are asked.
        let apart = ["multi", "wait", "waitaof", "config|get", "sentinel"].map(str::to_owned);
        let missing: Vec<_> =
            used.iter().filter(|it| !listed.contains(*it) && !apart.contains(it)).collect();
        assert!(missing.is_empty(), "{missing:?} are used and not listed");
    }
}
