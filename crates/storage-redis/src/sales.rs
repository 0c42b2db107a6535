//! A sale's memory in Redis: publishing, pausing, closing, reading, and loading it behind a fence.

use flashsale_domain::{EntryId, Partition, Sale, SaleId, SaleState, UserId};
use redis::{RedisResult, Value};

use crate::connect::random_token;
use crate::order_stream::GROUP;
use crate::scripts::{FENCE, HOLDS_FENCE, LOAD, OPEN, PUBLISH, READ_SALE, SET_SALE_STATE};
use crate::{Record, Redis, RedisFault};

/// Records a chunk of `load`. Lua's `unpack` fails above some 8,000 values; a record is two.
const LOAD_CHUNK: usize = 2000;

/// A sale's account in Redis, read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaleAccount {
    /// Whether the gate is open on this server.
    pub gate_open: bool,
    /// The last id that the partition gave out: who holds a unit has an order up to it.
    pub last_id: EntryId,
    /// The sale's figures; `None` when Redis does not have it.
    pub sale: Option<LoadedSale>,
}

/// The figures of a loaded sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedSale {
    /// Units in all.
    pub total: i64,
    /// Units for sale.
    pub stock: i64,
    /// Units held by open orders.
    pub held: i64,
    /// The sale's epoch.
    pub epoch: i64,
    /// How often its stock has grown in this epoch.
    pub returns: i64,
    /// Orders that it has admitted; after a rebuild, those that were loaded and those admitted since.
    pub admitted: i64,
    /// Where it stands.
    pub state: String,
}

/// A closed gate, and the right to load and open it again.
#[derive(Debug)]
pub struct Fence {
    pub(crate) partition: Partition,
    pub(crate) token: String,
    pub(crate) replid: String,
    /// The server's clock at the fence: milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// The last id that the stream gave out.
    pub last_id: EntryId,
}

/// Some buyers' records, and where the next ones begin.
pub struct RecordsPage {
    /// User id and record. The ids are text from Redis, to be shown, not trusted.
    pub records: Vec<(String, Result<Record, crate::RecordError>)>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<u64>,
}

/// Some buyers' ids, and where the next ones begin.
pub struct BuyersPage {
    /// Text from Redis, to be compared, not trusted.
    pub users: Vec<String>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<u64>,
}

/// The fields that `lua/admit.lua` reads.
fn sale_fields(
    sale: &Sale,
    state: SaleState,
    stock: i64,
    held: i64,
    admitted: usize,
) -> [(&'static str, String); 11] {
    [
        ("stock", stock.to_string()),
        ("held", held.to_string()),
        ("total", (stock + held).to_string()),
        ("opens_ms", sale.window.opens_ms().to_string()),
        ("closes_ms", sale.window.closes_ms().to_string()),
        ("limit", sale.per_buyer.to_string()),
        ("state", state.as_str().to_owned()),
        ("epoch", sale.epoch.to_string()),
        ("admitted", admitted.to_string()),
        ("returns", "0".to_owned()),
        ("reopen_ms", "0".to_owned()),
    ]
}

impl Redis {
    /// Puts a new sale behind an open gate. False when the gate is not open here, or the sale has
    /// left something behind: then its partition has to be loaded from the database.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn publish_sale(
        &self,
        partition: Partition,
        sale: &Sale,
    ) -> Result<bool, RedisFault> {
        let mut call = PUBLISH.prepare_invoke();
        call.key(self.keys.gate(partition))
            .key(self.keys.sale(partition, sale.id))
            .key(self.keys.buyers(partition, sale.id));
        for (field, value) in sale_fields(sale, SaleState::Published, sale.stock_total, 0, 0) {
            call.arg(field).arg(value);
        }
        let code: i64 = call.invoke_async(&mut self.connection().await?).await?;
        Ok(code == 1)
    }

    /// Pauses, resumes or closes a sale. False when it is not loaded, or closed already.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn set_sale_state(
        &self,
        partition: Partition,
        sale: SaleId,
        state: SaleState,
    ) -> Result<bool, RedisFault> {
        let code: i64 = SET_SALE_STATE
            .key(self.keys.gate(partition))
            .key(self.keys.sale(partition, sale))
            .arg(state.as_str())
            .invoke_async(&mut self.connection().await?)
            .await?;
        Ok(code == 1)
    }

    /// A sale's figures, and whether its gate is open.
    ///
    /// # Errors
    /// When Redis cannot be asked, or the figures are no numbers.
    pub async fn read_sale(
        &self,
        partition: Partition,
        sale: SaleId,
    ) -> Result<SaleAccount, RedisFault> {
        let reply: [String; 9] = READ_SALE
            .key(self.keys.gate(partition))
            .key(self.keys.sale(partition, sale))
            .key(self.keys.orders(partition))
            .invoke_async(&mut self.connection().await?)
            .await?;
        let [open, last_id, total, stock, held, epoch, returns, state, admitted] = reply;
        let number = |text: &str| {
            text.parse().map_err(|_| RedisFault::reply("read_sale", format!("{text:?}: no number")))
        };
        let sale = if state.is_empty() {
            None
        } else {
            Some(LoadedSale {
                total: number(&total)?,
                stock: number(&stock)?,
                held: number(&held)?,
                epoch: number(&epoch)?,
                returns: number(&returns)?,
                admitted: number(&admitted)?,
                state,
            })
        };
        let last_id = last_id.parse().map_err(|_| RedisFault::reply("read_sale", last_id))?;
        Ok(SaleAccount { gate_open: open == "1", last_id, sale })
    }

    /// Forgets a sale and its buyers. Only for one whose home is no longer here: a worker that misses a
    /// sale loads the partition again.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn forget_sale(&self, partition: Partition, sale: SaleId) -> Result<(), RedisFault> {
        Ok(redis::cmd("UNLINK")
            .arg(self.keys.sale(partition, sale))
            .arg(self.keys.buyers(partition, sale))
            .query_async(&mut self.connection().await?)
            .await?)
    }

    /// Units left of each of a partition's sales, in their order; `None` where Redis does not know.
    /// A hint for buyers, not an account.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn list_stock(
        &self,
        partition: Partition,
        sales: &[SaleId],
    ) -> Result<Vec<Option<i64>>, RedisFault> {
        if sales.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for sale in sales {
            pipeline.cmd("HGET").arg(self.keys.sale(partition, *sale)).arg("stock");
        }
        let stock: Vec<RedisResult<Option<i64>>> =
            pipeline.query_async(&mut self.connection().await?).await?;
        // A key that holds something else concerns its own sale only.
        Ok(stock.into_iter().map(|stock| stock.ok().flatten()).collect())
    }

    /// Those of a partition's sales that Redis does not have.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn list_unloaded(
        &self,
        partition: Partition,
        sales: &[SaleId],
    ) -> Result<Vec<SaleId>, RedisFault> {
        if sales.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for sale in sales {
            pipeline.cmd("EXISTS").arg(self.keys.sale(partition, *sale));
        }
        let there: Vec<bool> = pipeline.query_async(&mut self.connection().await?).await?;
        Ok(sales.iter().zip(there).filter(|(_, there)| !there).map(|(sale, _)| *sale).collect())
    }

    /// A buyer's record in a sale.
    ///
    /// # Errors
    /// When Redis cannot be asked, or the record is of an unknown format.
    pub async fn find_record(
        &self,
        partition: Partition,
        sale: SaleId,
        user: &UserId,
    ) -> Result<Option<Record>, RedisFault> {
        let text: Option<String> = redis::cmd("HGET")
            .arg(self.keys.buyers(partition, sale))
            .arg(user.as_str())
            .query_async(&mut self.connection().await?)
            .await?;
        text.map(|text| text.parse().map_err(|_| RedisFault::reply("HGET buyers", text)))
            .transpose()
    }

    /// Which of these sales' records holds the buyer's order of this entry. A record that cannot be
    /// read holds none.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn find_holding_sale(
        &self,
        partition: Partition,
        sales: &[SaleId],
        user: &UserId,
        entry: EntryId,
    ) -> Result<Option<SaleId>, RedisFault> {
        if sales.is_empty() {
            return Ok(None);
        }
        let mut pipeline = redis::pipe();
        for sale in sales {
            pipeline.cmd("HGET").arg(self.keys.buyers(partition, *sale)).arg(user.as_str());
        }
        let records: Vec<Option<String>> =
            pipeline.query_async(&mut self.connection().await?).await?;
        let holds = |text: &Option<String>| {
            let record = text.as_ref().and_then(|text| text.parse::<Record>().ok());
            record.is_some_and(|record| record.holds(entry))
        };
        Ok(sales.iter().zip(&records).find(|(_, text)| holds(text)).map(|(sale, _)| *sale))
    }

    /// A page of a sale's records, by HSCAN: every buyer at least once, some perhaps twice.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn list_records(
        &self,
        partition: Partition,
        sale: SaleId,
        cursor: u64,
    ) -> Result<RecordsPage, RedisFault> {
        let (next, records) = self.scan_records(partition, sale, cursor).await?;
        let records = records.into_iter().map(|(user, text)| (user, text.parse())).collect();
        Ok(RecordsPage { records, next: (next != 0).then_some(next) })
    }

    /// A page of the ids of a sale's buyers, by HSCAN: each at least once, some perhaps twice.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn list_buyers(
        &self,
        partition: Partition,
        sale: SaleId,
        cursor: u64,
    ) -> Result<BuyersPage, RedisFault> {
        let (next, pairs) = self.scan_records(partition, sale, cursor).await?;
        let users = pairs.into_iter().map(|(user, _)| user).collect();
        Ok(BuyersPage { users, next: (next != 0).then_some(next) })
    }

    async fn scan_records(
        &self,
        partition: Partition,
        sale: SaleId,
        cursor: u64,
    ) -> Result<(u64, Vec<(String, String)>), RedisFault> {
        Ok(redis::cmd("HSCAN")
            .arg(self.keys.buyers(partition, sale))
            .arg(cursor)
            .arg("COUNT")
            .arg(1000)
            .query_async(&mut self.connection().await?)
            .await?)
    }

    /// The last id at the partition's last rebuild: what is not above it and is nowhere to be found
    /// was lost with Redis's memory.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn rebuilt_id(&self, partition: Partition) -> Result<Option<EntryId>, RedisFault> {
        let text: Option<String> = redis::cmd("HGET")
            .arg(self.keys.gate(partition))
            .arg("rebuilt_id")
            .query_async(&mut self.connection().await?)
            .await?;
        Ok(text.and_then(|text| text.parse().ok()))
    }

    /// Closes the partition's gate. From now on nobody is admitted there until [`Redis::open_gate`].
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn fence(&self, partition: Partition) -> Result<Fence, RedisFault> {
        let token = random_token();
        let (now_ms, replid, last_id): (i64, String, String) = FENCE
            .key(self.keys.gate(partition))
            .key(self.keys.orders(partition))
            .arg(&token)
            .invoke_async(&mut self.connection().await?)
            .await?;
        let last_id = last_id.parse().map_err(|_| RedisFault::reply("fence", last_id))?;
        Ok(Fence { partition, token, replid, now_ms, last_id })
    }

    /// Whether the fence is still ours, and the server the same.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn holds_fence(&self, fence: &Fence) -> Result<bool, RedisFault> {
        let held: i64 = HOLDS_FENCE
            .key(self.keys.gate(fence.partition))
            .arg(&fence.token)
            .arg(&fence.replid)
            .invoke_async(&mut self.connection().await?)
            .await?;
        Ok(held == 1)
    }

    /// Loads a sale behind the fence: `stock` units for sale, and the records of all its buyers.
    /// False when the fence is no longer ours or the server is another one.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn load_sale(
        &self,
        fence: &Fence,
        sale: &Sale,
        stock: i64,
        held: i64,
        records: &[(UserId, Record)],
    ) -> Result<bool, RedisFault> {
        let mut connection = self.connection().await?;
        let chunks = records.len().div_ceil(LOAD_CHUNK).max(1);
        let admitted = records.iter().map(|(_, record)| record.items.len()).sum();
        for chunk in 0..chunks {
            let records = records.iter().skip(chunk * LOAD_CHUNK).take(LOAD_CHUNK);
            // The sale's own fields come with the last chunk: until then it is not loaded, whatever
            // happens to the gate.
            let fields = if chunk + 1 == chunks {
                sale_fields(sale, sale.state, stock, held, admitted).to_vec()
            } else {
                Vec::new()
            };
            let mut call = LOAD.prepare_invoke();
            call.key(self.keys.gate(fence.partition))
                .key(self.keys.sale(fence.partition, sale.id))
                .key(self.keys.buyers(fence.partition, sale.id))
                .arg(&fence.token)
                .arg(&fence.replid)
                .arg(u8::from(chunk == 0))
                .arg(fields.len());
            for (field, value) in fields {
                call.arg(field).arg(value);
            }
            // A record without an order is no record: the scripts refuse to read it.
            for (user, record) in records.filter(|(_, record)| !record.items.is_empty()) {
                call.arg(user.as_str()).arg(record.to_string());
            }
            let loaded: i64 = call.invoke_async(&mut connection).await?;
            if loaded != 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sets the stream's last id to `last_id`, unless it is higher already, and opens the gate. False
    /// when the fence is no longer ours or the server is another one.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn open_gate(&self, fence: Fence, last_id: EntryId) -> Result<bool, RedisFault> {
        let opened: Value = OPEN
            .key(self.keys.gate(fence.partition))
            .key(self.keys.orders(fence.partition))
            .arg(&fence.token)
            .arg(&fence.replid)
            .arg(last_id.to_string())
            .arg(GROUP)
            .invoke_async(&mut self.connection().await?)
            .await?;
        Ok(opened == Value::Int(1))
    }
}
