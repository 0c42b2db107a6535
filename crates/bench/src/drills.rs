//! What is lost when our programs are killed under load: the counterpart of the queue in memory.

use std::sync::Arc;

use tokio::time::Duration;

use crate::figures::Run;
use crate::load::{Load, Told};
use crate::round::Round;
use crate::stack::{Sale, wait_until};
use crate::worker::wait_for_rows;

/// Orders of a killed worker go to another one this soon, in place of half a minute.
const RECLAIM: [(&str, &str); 2] = [
    ("FLASHSALE__WORKER__RECLAIM_IDLE", "1s"),
    ("FLASHSALE__DATABASE__STATEMENT_TIMEOUT", "400ms"),
];

/// Kills the worker under load, the gateway when the last buyer has his answer, and starts both again.
pub(crate) async fn killed(round: &mut Round<'_>) -> anyhow::Result<Run> {
    let buyers = round.part(2);
    let sale = round.stack.open(Sale::of(buyers)).await?;
    let settings = RECLAIM.map(|(key, value)| (key, value.to_owned())).to_vec();
    let url = round.stack.gateway_url.clone();
    let load = Load { buyers, ..round.load(&url, &sale, Told::Accepted) };

    let before = round.stack.rows().await?;
    let worker = Arc::new(round.stack.worker(&settings).await?);
    let stack = &*round.stack;
    let (rushed, killed) = tokio::join!(load.rush(&stack.settings), async {
        let half = i64::from(buyers / 4);
        let is_under_way = || async { stack.rows().await.is_ok_and(|rows| rows > before + half) };
        wait_until("the first rows", is_under_way).await?;
        worker.kill_9();
        anyhow::Ok(())
    });
    killed?;
    let rushed = rushed?;
    let rows = stack.rows().await? - before;
    round.stack.replace_gateway().await?;

    let worker = round.stack.worker(&settings).await?;
    wait_for_rows(round.stack, &worker, before + i64::from(buyers)).await?;
    worker.terminate();
    let _ended = worker.wait_exit(Duration::from_secs(30));
    let recovered = round.stack.rows().await? - before;
    let mut run = rushed.run(crate::cpu::Cpu::default());
    run.more.insert("accepted", buyers.into());
    run.more.insert("rows_when_killed", rows as f64);
    run.more.insert("lost_at_kill_9", f64::from(buyers) - recovered as f64);
    Ok(run)
}
