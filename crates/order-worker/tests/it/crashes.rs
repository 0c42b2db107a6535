//! Workers killed for good: by an entry that kills every worker that touches it, and again and again.

use std::collections::HashSet;

use flashsale_storage_redis::DeadLetter;
use flashsale_test_support::eventually;

use crate::real_worker::RealWorker;
use crate::support::{Plan, SOON, Stand, only};

/// Solo runs that an entry gets.
const ATTEMPTS: i64 = 2;

/// How often the entry was tried alone.
async fn attempts(stand: &Stand, entry: &str) -> i64 {
    let field = format!("a:{entry}");
    let attempts: Option<i64> = stand.ask(&["HGET", &stand.keys.suspects(only()), &field]).await;
    attempts.unwrap_or(0)
}

/// Inserting poison takes for ever: long enough to see that a worker has begun with it. Whoever sees
/// it kills the worker, so that the entry is what every worker dies of.
async fn poison_is_endless(stand: &Stand) {
    stand
        .execute(
            "CREATE FUNCTION never_end() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_sleep(600); RETURN NEW; END'",
        )
        .await;
    stand
        .execute(
            "CREATE TRIGGER never_end BEFORE INSERT ON orders FOR EACH ROW \
             WHEN (NEW.user_id = 'poison-0') EXECUTE FUNCTION never_end()",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_kills_every_worker_is_set_aside_after_its_attempts_across_restarts() {
    let plan = Plan::postgres()
        .with("worker.reclaim_idle", "3s")
        .with("database.statement_timeout", "1400ms")
        .with("worker.max_deliveries", &ATTEMPTS.to_string());
    let stand = plan.stand().await;
    let sale = stand.publish(100).await;
    poison_is_endless(&stand).await;
    let mut good = stand.admit(&sale, "before", 5).await;
    let poison = stand.admit(&sale, "poison", 1).await[0].entry().to_string();
    good.extend(stand.admit(&sale, "after", 5).await);

    // The first dies with the whole batch in hand: nobody knows yet which entry it was.
    let first = stand.real_worker(&[]);
    eventually(SOON, "all in its hands", async || stand.pending().await == 11).await;
    first.program.kill_9();
    // The second takes the batch over, and dies of it too.
    let second = stand.real_worker(&[]);
    let reclaimed = format!("r:{poison}");
    eventually(SOON, "all in the second's hands", async || {
        let suspects = stand.keys.suspects(only());
        stand.ask::<Option<i64>>(&["HGET", &suspects, &reclaimed]).await == Some(1)
    })
    .await;
    second.program.kill_9();
    assert_eq!(attempts(&stand, &poison).await, 0);

    // From now on it runs alone.
    let mut crashes = 0;
    let letter: DeadLetter = loop {
        let before = attempts(&stand, &poison).await;
        let worker = stand.real_worker(&[]);
        let letter = eventually(SOON, "a solo attempt, or the dead letter", async || {
            let letter = stand.dead().await.pop();
            (letter.is_some() || attempts(&stand, &poison).await > before).then_some(letter)
        })
        .await;
        if let Some(letter) = letter {
            break letter;
        }
        worker.program.kill_9();
        crashes += 1;
        assert!(crashes < 20, "it kills one worker after the other");
    };
    // An attempt that was over when its worker was killed is no crash, and was given back.
    assert!(crashes >= ATTEMPTS, "{crashes}");
    assert_eq!(letter.reason, "crash-suspect");
    assert_eq!(letter.entry.id.to_string(), poison);

    let last = stand.real_worker(&[]);
    stand.wait_for_rows(10).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, good.into_iter().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await.len()), (90, 1));
    last.program.kill_9();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_killed_workers_leave_no_consumer_behind() {
    const AT_ONCE: usize = 20;
    let stand = Plan::sqlite().impatient().stand().await;
    let sale = stand.publish(100_000).await;
    let (mut ids, mut seen) = (HashSet::new(), HashSet::new());
    for wave in 0..200 / AT_ONCE {
        let workers: Vec<RealWorker> = (0..AT_ONCE).map(|_| stand.real_worker(&[])).collect();
        let (known, mut orders) = (seen.len(), 0);
        // A worker is in the group once it has had an order; one at a time, they take turns.
        eventually(SOON, "all of them in the group", async || {
            for _ in 0..5 {
                orders += 1;
                ids.extend(stand.admit(&sale, &format!("wave-{wave}-{orders}"), 1).await);
            }
            seen.extend(stand.consumers().await);
            if seen.len() == known + AT_ONCE { Ok(()) } else { Err(seen.len() - known) }
        })
        .await;
        // Some of them die with these in their hands.
        ids.extend(stand.admit(&sale, &format!("last-{wave}"), AT_ONCE).await);
        for worker in workers {
            worker.program.kill_9();
        }
    }
    assert_eq!(seen.len(), 200);
    let worker = stand.worker().await;
    eventually(SOON, "the living one alone in the group", async || {
        let names = stand.consumers().await;
        if names.len() == 1 && !seen.contains(&names[0]) { Ok(()) } else { Err(names.len()) }
    })
    .await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids);
    assert_eq!(stand.dead().await, []);
    worker.stop().await.expect("a clean end");
}
