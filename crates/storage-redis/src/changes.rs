//! Word of changed orders, from whoever changed them to every gateway with somebody waiting.
//!
//! A message that is lost is lost: it only spares the waiting a look at the database, and who waits
//! looks again by himself.

use flashsale_domain::OrderId;
use futures_util::StreamExt as _;
use redis::aio::PubSubStream;

use crate::{Redis, RedisFault};

/// Ids in one message, so that it stays a small one.
const IDS_PER_MESSAGE: usize = 1000;

/// The messages of one subscription.
pub struct ChangedOrders {
    messages: PubSubStream,
}

impl ChangedOrders {
    /// The orders that somebody has changed; `None` when the connection is over. Safe to drop at any
    /// moment.
    pub async fn next(&mut self) -> Option<Vec<OrderId>> {
        let message = self.messages.next().await?;
        let text: String = message.get_payload().unwrap_or_default();
        Some(text.split(',').filter_map(|id| id.parse().ok()).collect())
    }
}

impl Redis {
    /// Tells every gateway that these orders have changed.
    ///
    /// # Errors
    /// When Redis cannot be asked: who waits finds out by himself.
    pub async fn announce_changes(&self, ids: &[OrderId]) -> Result<(), RedisFault> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut pipeline = redis::pipe();
        for chunk in ids.chunks(IDS_PER_MESSAGE) {
            let ids: Vec<String> = chunk.iter().map(ToString::to_string).collect();
            pipeline.cmd("PUBLISH").arg(self.keys.changes()).arg(ids.join(",")).ignore();
        }
        Ok(pipeline.query_async(&mut self.connection().await?).await?)
    }

    /// Listens for changed orders, on a connection of its own.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn changed_orders(&self) -> Result<ChangedOrders, RedisFault> {
        let connect = async {
            let server = self.primary.server().await?;
            let connected = server.client.get_async_pubsub().await;
            let mut subscription = connected.inspect_err(|_| self.primary.doubt())?;
            subscription.subscribe(self.keys.changes()).await?;
            Ok::<_, RedisFault>(subscription.into_on_message())
        };
        let messages = tokio::time::timeout(self.config.connect_timeout, connect)
            .await
            .map_err(|_| RedisFault::reply("SUBSCRIBE", "no answer in time"))??;
        Ok(ChangedOrders { messages })
    }
}
