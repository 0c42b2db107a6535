//! Admission: calls `lua/admit.lua` for a batch of requests of one sale.

use std::time::{Duration, Instant};

use flashsale_domain::{Admission, AdmissionRequest, EntryId, OrderId, Partition, Refusal, SaleId};
use redis::aio::ConnectionManager;
use redis::{FromRedisValue as _, Value};

use crate::scripts::ADMIT;
use crate::{Keys, RedisFault};

/// The most orders, open and closed, that one buyer's record may hold: buying and cancelling in a
/// loop must not grow a record without end.
pub const ORDERS_PER_BUYER_MAX: u16 = 20;

/// A connection that only admits.
#[derive(Clone)]
pub struct AdmissionConnection {
    manager: ConnectionManager,
    keys: Keys,
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
    /// How long the call took.
    pub elapsed: Duration,
}

impl AdmissionConnection {
    pub(crate) fn new(manager: ConnectionManager, keys: Keys) -> Self {
        Self { manager, keys }
    }

    /// Asks Redis whether it is there. A connection that was lost while nobody needed it is made anew
    /// by this, and not at the cost of the next buyer's answer.
    ///
    /// # Errors
    /// When it is not.
    pub async fn ping(&mut self) -> Result<(), RedisFault> {
        Ok(redis::cmd("PING").query_async(&mut self.manager).await?)
    }

    /// Decides every request of `requests`, in order and atomically.
    ///
    /// # Errors
    /// When Redis could not be asked, or its answer did not come: see
    /// [`RedisFault::is_outcome_unknown`].
    pub async fn admit<'a>(
        &mut self,
        partition: Partition,
        sale: SaleId,
        requests: impl IntoIterator<Item = &'a AdmissionRequest>,
    ) -> Result<AdmissionBatch, RedisFault> {
        let started = Instant::now();
        let mut call = ADMIT.prepare_invoke();
        call.key(self.keys.gate(partition))
            .key(self.keys.sale(partition, sale))
            .key(self.keys.buyers(partition, sale))
            .key(self.keys.orders(partition))
            .arg(sale.as_i64())
            .arg(ORDERS_PER_BUYER_MAX);
        let mut count = 0;
        for request in requests {
            let digest = request.digest.as_ref().map_or("", |digest| digest.as_str());
            call.arg(request.user_id.as_str()).arg(digest).arg("");
            count += 1;
        }
        let reply: Vec<Value> = call.invoke_async(&mut self.manager).await?;
        parse_reply(partition, &reply, count, started.elapsed())
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
