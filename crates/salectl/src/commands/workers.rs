//! `salectl workers`.

use flashsale_operations::{PartitionWorkers, Workers};

use crate::Verdict;
use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Access;

/// Shows each partition's consumers and backlog. As JSON:
///
/// ```json
/// {"partitions":[{"partition":0,"backlog":{"undelivered":0,"pending":3},
///   "consumers":[{"name":"host-1-0a0b0c0d","pending":3,"idle_ms":12}]}]}
/// ```
/// `backlog` is null while there is no stream, `undelivered` while Redis does not know it.
pub(crate) async fn run(access: &Access<'_>, output: Output) -> Result<Verdict, Failure> {
    let workers: Workers = match access {
        Access::Stores(settings) => super::operations(settings).await?.list_workers().await?,
        Access::Gateway(remote) => remote.get("workers", &[]).await?,
    };
    output.print(&workers, || workers.partitions.iter().map(text).collect())?;
    Ok(Verdict::Good)
}

fn text(partition: &PartitionWorkers) -> String {
    let backlog = partition.backlog.map_or_else(
        || "no stream yet".to_owned(),
        |backlog| {
            let undelivered = backlog.undelivered.map_or_else(
                || "an unknown number".to_owned(),
                |undelivered| undelivered.to_string(),
            );
            format!("{undelivered} undelivered, {} in hand", backlog.pending)
        },
    );
    let mut text = format!("partition {}: {backlog}\n", partition.partition);
    for consumer in &partition.consumers {
        let (name, pending, idle_ms) = (&consumer.name, consumer.pending, consumer.idle_ms);
        text.push_str(&format!("  {name}  {pending} in hand, heard of {idle_ms} ms ago\n"));
    }
    if partition.consumers.is_empty() {
        text.push_str("  NO WORKER\n");
    }
    text
}
