//! The gateway's own admission script, for those who send it another way.
//!
//! The parts stand in the order of `scripts.rs` of `storage-redis`. Whoever measures with it asks first
//! whether the gateway has loaded the very same text ([`is_the_gateways`]).

use std::sync::LazyLock;

use anyhow::ensure;
use flashsale_domain::{Partition, SaleId};
use flashsale_storage_redis::{Keys, ORDERS_PER_BUYER_MAX};
use redis::{Client, Script};

pub(crate) static ADMIT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("../../../../lua/lib/gate.lua"),
        "\n",
        include_str!("../../../../lua/lib/record.lua"),
        "\n",
        include_str!("../../../../lua/lib/order_id.lua"),
        "\n",
        include_str!("../../../../lua/lib/order_entry.lua"),
        "\n",
        include_str!("../../../../lua/lib/reply.lua"),
        "\n",
        include_str!("../../../../lua/admit.lua"),
        "\n",
    ))
});

/// All that stands before the requests: keys and arguments, as texts.
pub(crate) fn head(keys: &Keys, partition: Partition, sale: SaleId) -> Vec<String> {
    vec![
        ADMIT.get_hash().to_owned(),
        "4".to_owned(),
        keys.gate(partition),
        keys.sale(partition, sale),
        keys.buyers(partition, sale),
        keys.orders(partition),
        sale.to_string(),
        ORDERS_PER_BUYER_MAX.to_string(),
        // No replica is waited for.
        String::new(),
    ]
}

/// One request: user, digest of the key, traceparent.
pub(crate) fn request<'a>(user: &'a str, digest: &'a str) -> [&'a str; 3] {
    [user, digest, ""]
}

/// Fails unless Redis holds this very script, which only a gateway has loaded there.
pub(crate) async fn is_the_gateways(redis_url: &str) -> anyhow::Result<()> {
    let mut redis = Client::open(redis_url)?.get_multiplexed_async_connection().await?;
    let known: Vec<bool> =
        redis::cmd("SCRIPT").arg("EXISTS").arg(ADMIT.get_hash()).query_async(&mut redis).await?;
    ensure!(known == [true], "designs/script.rs is not the script that the gateway sends");
    Ok(())
}
