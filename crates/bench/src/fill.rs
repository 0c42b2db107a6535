//! Orders put on the stream by the real script, in batches, without HTTP: for what begins behind it.

use anyhow::{Context as _, ensure};
use flashsale_bootstrap::Settings;
use flashsale_domain::{AdmissionRequest, IdempotencyKey, Partition, SaleId, UserId};
use flashsale_operations::connect;
use flashsale_storage_redis::Redis;

use crate::programs::Settings as OfPrograms;

/// As the gateway's batches under load.
const BATCH: u32 = 128;

/// Access to Redis, as the programs with these settings have it.
pub(crate) fn redis(settings: &OfPrograms) -> anyhow::Result<Redis> {
    let env = settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    connect::redis(&Settings::from_sources(None, env)?)
}

/// The only partition.
pub(crate) fn partition() -> anyhow::Result<Partition> {
    Partition::new(0).context("the only partition")
}

/// Admits `count` buyers to a sale, each with a key: `b-0`, `b-1`, …
pub(crate) async fn fill(redis: &Redis, sale: SaleId, count: u32) -> anyhow::Result<()> {
    let mut admission = redis.admission_connection()?;
    for from in (0..count).step_by(usize::try_from(BATCH)?) {
        let requests = (from..count.min(from + BATCH)).map(|number| {
            let user = format!("b-{number}");
            let digest = Some(IdempotencyKey::new(format!("key-{user}"))?.digest());
            Ok(AdmissionRequest { user_id: UserId::new(user)?, digest, traceparent: None })
        });
        let requests = requests.collect::<anyhow::Result<Vec<_>>>()?;
        let batch = admission.admit(partition()?, sale, &requests).await?;
        ensure!(batch.outcomes.iter().all(Result::is_ok), "not every buyer was admitted");
    }
    Ok(())
}
