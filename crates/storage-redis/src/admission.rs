//! Admission: calls `lua/admit.lua` for a batch of requests of one sale, and waits for replicas where
//! that is asked for.
//!
//! WAIT counts the replicas that have what its own connection wrote. So it is sent in one piece with the
//! call: a connection that broke in between would leave it to a new one, which has written nothing and
//! would be told that all is well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flashsale_domain::{Admission, AdmissionRequest, EntryId, OrderId, Partition, Refusal, SaleId};
use redis::aio::ConnectionManager;
use redis::{Cmd, ErrorKind, FromRedisValue as _, RedisResult, ServerErrorKind, Value, cmd, pipe};
use tracing::{info, warn};

use crate::admission_line::Line;
use crate::connect::millis;
use crate::primary::Primary;
use crate::scripts::ADMIT;
use crate::{Keys, RedisConfig, RedisFault};

/// The most orders, open and closed, that one buyer's record may hold: buying and cancelling in a
/// loop must not grow a record without end.
pub const ORDERS_PER_BUYER_MAX: u16 = 20;

/// A connection that only admits.
#[derive(Clone)]
pub struct AdmissionConnection {
    line: Line,
    keys: Keys,
    replicas: Option<Replicas>,
    /// Replicas stay away or come back for all clones together: it is said once.
    unconfirmed: Arc<AtomicBool>,
}

/// The replicas that must have a yes before a buyer is told.
#[derive(Debug, Clone, Copy)]
pub struct Replicas {
    /// How many; at least 1.
    pub count: u8,
    /// How long they are waited for, after each batch.
    pub timeout: Duration,
    /// What counts as having it.
    pub proof: ReplicaProof,
}

/// When a replica has something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaProof {
    /// It is in the replica's memory (WAIT).
    Memory,
    /// It is on the disk of the replica and of the primary (WAITAOF: Redis 7.2 or Valkey, with the
    /// append-only file on both).
    Disk,
}

/// What the script answered to a batch.
#[derive(Debug)]
pub struct AdmissionBatch {
    /// Redis's clock, milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// The sale's epoch; 0 when it is not loaded.
    pub epoch: i64,
    /// How often stock has grown; 0 when the sale is not loaded.
    pub returns: i64,
    /// Units left after the batch.
    pub stock: i64,
    /// One per request, in their order.
    pub outcomes: Vec<Result<Admission, Refusal>>,
    /// False when the replicas that were asked for do not have it, or not yet: then no buyer may be
    /// told that he has an order. True where none were asked for.
    pub confirmed: bool,
    /// How long the call took.
    pub elapsed: Duration,
}

impl AdmissionConnection {
    pub(crate) fn new(
        primary: &Primary,
        config: &RedisConfig,
        keys: Keys,
    ) -> Result<Self, RedisFault> {
        let line = Line::new(primary, config)?;
        Ok(Self { line, keys, replicas: None, unconfirmed: Arc::default() })
    }

    /// Waits for replicas behind every batch.
    #[must_use]
    pub fn confirmed_by(self, replicas: Replicas) -> Self {
        Self { replicas: Some(replicas), ..self }
    }

    /// Asks Redis whether it is there. A connection that was lost while nobody needed it is made anew
    /// by this, and not at the cost of the next buyer's answer.
    ///
    /// # Errors
    /// When it is not.
    pub async fn ping(&mut self) -> Result<(), RedisFault> {
        let mut connection = self.line.connection().await?;
        let answer = cmd("PING").query_async(&mut connection).await;
        Ok(self.line.noted(answer)?)
    }

    /// Decides every request of `requests`, in order and atomically: at most 1,000, the greatest
    /// `admission.batch_max`, because Lua's stack holds some thousand arguments of one command.
    ///
    /// # Errors
    /// When Redis could not be asked, or its answer did not come: see
    /// [`RedisFault::is_outcome_unknown`].
    pub async fn admit<'a>(
        &mut self,
        partition: Partition,
        sale: SaleId,
        requests: impl IntoIterator<Item = &'a AdmissionRequest, IntoIter: Clone>,
    ) -> Result<AdmissionBatch, RedisFault> {
        let started = Instant::now();
        let mut call = cmd("EVALSHA");
        call.arg(ADMIT.get_hash())
            .arg(4)
            .arg(self.keys.gate(partition))
            .arg(self.keys.sale(partition, sale))
            .arg(self.keys.buyers(partition, sale))
            .arg(self.keys.orders(partition))
            .arg(sale.as_i64())
            .arg(ORDERS_PER_BUYER_MAX)
            .arg(if self.replicas.is_some() { "1" } else { "" });
        let requests = requests.into_iter();
        let mut count = 0;
        for request in requests.clone() {
            call.arg(request.user_id.as_str());
            count += 1;
        }
        for request in requests.clone() {
            call.arg(request.digest.as_ref().map_or("", |digest| digest.as_str()));
        }
        for request in requests {
            call.arg(request.traceparent.as_deref().unwrap_or(""));
        }
        let mut connection = self.line.connection().await?;
        let sent = match self.send(&call, &mut connection).await {
            // The script cache is empty: nothing has run.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.line.noted(ADMIT.load_async(&mut connection).await)?;
                self.send(&call, &mut connection).await
            }
            sent => sent,
        };
        let (reply, confirmed) = self.line.noted(sent)?;
        let mut batch = parse_reply(partition, &reply, count, started.elapsed())?;
        let says_yes =
            |outcome: &Result<_, _>| matches!(outcome, Ok(_) | Err(Refusal::AlreadyOrdered(_)));
        batch.confirmed = match confirmed {
            Ok(()) => {
                if self.unconfirmed.swap(false, Ordering::Relaxed) {
                    info!("admission is confirmed by replicas again");
                }
                true
            }
            // Where nobody was told yes there is nothing that a replica would have to have.
            Err(_) if !batch.outcomes.iter().any(says_yes) => true,
            Err(why) => {
                if !self.unconfirmed.swap(true, Ordering::Relaxed) {
                    warn!(why, "admission is not confirmed by replicas: {why}");
                }
                false
            }
        };
        Ok(batch)
    }

    /// The script's reply, and whether the replicas have what it wrote, or why that is not known.
    async fn send(
        &self,
        call: &Cmd,
        connection: &mut ConnectionManager,
    ) -> RedisResult<(Vec<Value>, Result<(), String>)> {
        let Some(replicas) = self.replicas else {
            return Ok((call.query_async(connection).await?, Ok(())));
        };
        let mut both = pipe();
        both.ignore_errors().add_command(call.clone()).add_command(replicas.wait());
        let replies: Vec<RedisResult<Value>> = both.query_async(connection).await?;
        let mut replies = replies.into_iter();
        let (Some(reply), Some(waited), None) = (replies.next(), replies.next(), replies.next())
        else {
            return Err((ErrorKind::Parse, "two commands, and not two replies").into());
        };
        Ok((Vec::from_redis_value(reply?)?, replicas.confirmed(waited)))
    }
}

impl Replicas {
    fn wait(&self) -> Cmd {
        let mut wait = match self.proof {
            ReplicaProof::Memory => cmd("WAIT"),
            ReplicaProof::Disk => {
                let mut wait = cmd("WAITAOF");
                wait.arg(1);
                wait
            }
        };
        wait.arg(self.count).arg(millis(self.timeout));
        wait
    }

    fn confirmed(&self, waited: RedisResult<Value>) -> Result<(), String> {
        let waited = waited.map_err(|error| error.to_string())?;
        let have = match (self.proof, &waited) {
            (ReplicaProof::Memory, Value::Int(replicas)) => *replicas,
            (ReplicaProof::Disk, Value::Array(counts)) => match counts.as_slice() {
                [Value::Int(0), Value::Int(_)] => {
                    return Err("the primary's own disk does not have it".to_owned());
                }
                [Value::Int(_), Value::Int(replicas)] => *replicas,
                _ => return Err(format!("WAITAOF answered {waited:?}")),
            },
            _ => return Err(format!("waiting was answered {waited:?}")),
        };
        if have >= i64::from(self.count) {
            Ok(())
        } else {
            Err(format!("{have} of {} replicas have it", self.count))
        }
    }
}

fn parse_reply(
    partition: Partition,
    reply: &[Value],
    count: usize,
    elapsed: Duration,
) -> Result<AdmissionBatch, RedisFault> {
    let shape = |detail: &str| RedisFault::reply("admit", detail);
    let ([now_ms, epoch, returns, stock], rest) =
        reply.split_first_chunk::<4>().ok_or_else(|| shape("fewer than four values"))?;
    if rest.len() != count * 2 {
        return Err(shape("not two values a request"));
    }
    let number = |value: &Value| match value {
        Value::Int(number) => Ok(*number),
        _ => Err(shape("a number was expected")),
    };
    let outcomes = rest
        .chunks_exact(2)
        .map(|pair| parse_outcome(partition, number(&pair[0])?, &pair[1]))
        .collect::<Result<_, RedisFault>>()?;
    Ok(AdmissionBatch {
        now_ms: number(now_ms)?,
        epoch: number(epoch)?,
        returns: number(returns)?,
        stock: number(stock)?,
        outcomes,
        confirmed: true,
        elapsed,
    })
}

fn parse_outcome(
    partition: Partition,
    code: i64,
    entry: &Value,
) -> Result<Result<Admission, Refusal>, RedisFault> {
    let order_id = || {
        let text = String::from_redis_value_ref(entry)
            .map_err(|error| RedisFault::reply("admit", error.to_string()))?;
        let entry: EntryId = text
            .parse()
            .map_err(|error| RedisFault::reply("admit", format!("{text:?}: {error}")))?;
        OrderId::from_entry(partition, entry)
            .map_err(|error| RedisFault::reply("admit", format!("{entry}: {error}")))
    };
    Ok(match code {
        1 => Ok(Admission { order_id: order_id()?, replayed: false }),
        2 => Ok(Admission { order_id: order_id()?, replayed: true }),
        3 => Err(Refusal::AlreadyOrdered(order_id()?)),
        4 => Err(Refusal::SoldOut),
        5 => Err(Refusal::NotStarted),
        6 => Err(Refusal::Ended),
        7 => Err(Refusal::Paused),
        8 => Err(Refusal::NotLoaded),
        9 => Err(Refusal::ClockFault),
        _ => return Err(RedisFault::reply("admit", format!("unknown outcome {code}"))),
    })
}
