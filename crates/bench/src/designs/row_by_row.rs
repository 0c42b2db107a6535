//! A worker that writes one order in a transaction and acknowledges it, and then takes the next: the
//! same statements as ours, on the same stream.

use std::time::Duration;

use flashsale_bootstrap::Settings;
use flashsale_domain::Partition;
use flashsale_operations::connect;
use flashsale_storage_redis::decode;

/// Entries of one read: reading is not what is compared.
const READ_MAX: usize = 100;
const BLOCK: Duration = Duration::from_millis(200);

/// Works until it is ended.
pub(crate) async fn work() -> anyhow::Result<()> {
    let settings = Settings::load()?;
    let redis = connect::redis(&settings)?;
    let database = connect::migrated_database(&settings).await?;
    let partition = Partition::new(0).expect("the first partition");
    redis.ensure_group(partition).await?;
    let mut reader = redis.order_reader(partition, "row-by-row", BLOCK).await?;
    loop {
        for entry in reader.read(READ_MAX).await? {
            let order = decode(partition, &entry)?;
            database.commit_orders(&[order]).await?;
            redis.ack(partition, &[entry.id]).await?;
        }
    }
}
