//! What an operator sees of a worker: readiness and metrics.

use flashsale_test_support::{PostgresServer, RedisServer, eventually};
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{Plan, SOON, Stand, blocking, on_both, only};

on_both!(a_worker_is_ready_once_its_stores_have_answered, async |stand: Stand| {
    stand.publish(10).await;
    let worker = stand.worker().await;
    worker.wait_for_readiness(true).await;
    let (_, checks) = worker.readiness().await;
    for check in ["\"database\":\"ok\"", "\"redis\":\"ok\"", "\"reader\":\"ok\""] {
        assert!(checks.contains(check), "{checks}");
    }
    worker.stop().await.expect("a clean end");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_its_database_is_not_ready_until_it_is_back() {
    let server = blocking(PostgresServer::start);
    let stand = Plan::postgres_on(&server).stand().await;
    stand.publish(10).await;
    let worker = stand.worker().await;
    worker.wait_for_readiness(true).await;
    blocking(|| server.stop());
    worker.wait_for_readiness(false).await;
    blocking(|| server.start_again());
    worker.wait_for_readiness(true).await;
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_gets_nothing_done_is_not_ready_although_both_stores_answer() {
    let stand = Plan::sqlite().impatient().stand().await;
    let sale = stand.publish(10).await;
    let worker = stand.worker().await;
    worker.wait_for_readiness(true).await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    stand.admit(&sale, "buyer", 1).await;
    // It says so after half a minute.
    worker.wait_for_readiness(false).await;
    let (_, checks) = worker.readiness().await;
    for check in ["stood still", "\"database\":\"ok\"", "\"redis\":\"ok\"", "\"reader\":\"ok\""] {
        assert!(checks.contains(check), "{checks}");
    }
    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(1).await;
    worker.wait_for_readiness(true).await;
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_goes_astray_is_shown_and_named_by_one_worker() {
    // What loads a memory that was lost must not load one that is only wrong: it would copy one side
    // over the other while orders are on their way.
    let plan = Plan::sqlite().with("worker.rebuild", "auto");
    let stand = plan.with("worker.ledger_interval", "200ms").stand().await;
    let sale = stand.publish(100).await;
    let label = format!("sale=\"{}\"", sale.id);
    let workers = [stand.real_worker(&[]), stand.real_worker(&[])];
    let imbalances = async || {
        let mut shown = Vec::new();
        for worker in &workers {
            shown.push(worker.admin.metric("flashsale_ledger_imbalance", &label).await);
        }
        shown.retain(|value| value.is_some_and(|value| !value.is_nan()));
        shown
    };
    stand.admit(&sale, "buyer", 10).await;
    eventually(SOON, "one worker to say 0", async || {
        let shown = imbalances().await;
        if shown == [Some(0.0)] { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
    let key = stand.keys.sale(only(), sale.id);
    stand.ask::<i64>(&["HINCRBY", &key, "stock", "1"]).await;
    eventually(SOON, "a unit too many", async || imbalances().await == [Some(1.0)]).await;
    let named = "does not balance: redis: total 100 is not available 91 + held 10";
    eventually(SOON, "the log", async || {
        workers.iter().any(|worker| worker.program.log().contains(named))
    })
    .await;
    stand.ask::<i64>(&["HINCRBY", &key, "stock", "-1"]).await;
    eventually(SOON, "all is well again", async || imbalances().await == [Some(0.0)]).await;

    // Whoever watches is replaced.
    let watching = {
        let first = workers[0].admin.metric("flashsale_ledger_imbalance", &label).await;
        usize::from(first.is_none_or(f64::is_nan))
    };
    workers[watching].program.kill_9();
    let other = &workers[1 - watching];
    eventually(SOON, "the other one to say 0", async || {
        other.admin.metric("flashsale_ledger_imbalance", &label).await == Some(0.0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_may_evict_keys_is_no_redis_to_work_with_also_where_config_is_denied() {
    let server = blocking(RedisServer::start);
    let stand = Plan::sqlite().redis(&server).stand().await;
    stand.publish(10).await;
    let rules = ["on", ">secret", "~*", "&*", "+@all", "-config"];
    stand.ask::<()>(&[&["ACL", "SETUSER", "worker"][..], &rules].concat()).await;
    let url = server.url().replace("redis://", "redis://worker:secret@");
    let denied = redis::Client::open(url.as_str()).expect("a URL");
    let mut connection = denied.get_multiplexed_async_connection().await.expect("it may connect");
    let asked: Result<redis::Value, _> =
        redis::cmd("CONFIG").arg("GET").arg("*").query_async(&mut connection).await;
    assert_eq!(asked.expect_err("denied").code(), Some("NOPERM"));

    let worker = stand.real_worker(&[("FLASHSALE__REDIS__URL", url)]);
    worker.admin.wait_for_readiness(true).await;
    for (kept, expected) in [("yes", 1.0), ("no", 0.0)] {
        stand.ask::<()>(&["CONFIG", "SET", "appendonly", kept]).await;
        eventually(SOON, "the append-only file", async || {
            worker.admin.metric("flashsale_aof_enabled", "").await == Some(expected)
        })
        .await;
    }
    // Before anything has happened: an alert on an increase would miss what comes with its counter.
    for counter in [
        "flashsale_entries_lost_total",
        "flashsale_group_recreated_total",
        "flashsale_rebuilds_total",
    ] {
        assert!(worker.admin.metric(counter, "").await.is_some(), "no {counter}");
    }
    for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
        stand.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]).await;
        worker.admin.wait_for_readiness(false).await;
        let (_, checks) = worker.admin.readiness().await.expect("an answer");
        assert!(checks.contains(policy) && checks.contains("noeviction"), "{checks}");
        let safe = worker.admin.metric("flashsale_eviction_policy_safe", "").await;
        assert_eq!(safe, Some(0.0), "{policy}");
        stand.ask::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
        worker.admin.wait_for_readiness(true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_that_nobody_knows_is_no_number_and_sends_no_worker_home() {
    let plan = Plan::sqlite().with("worker.batch", "10").with("worker.target_lag", "100ms");
    let stand = plan.stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.real_worker(&[]);
    worker.admin.wait_for_readiness(true).await;
    let shown = async || {
        let backlog = worker.admin.metric("flashsale_stream_backlog", "").await;
        let wanted = worker.admin.metric("flashsale_desired_workers", "").await;
        (backlog.filter(|backlog| !backlog.is_nan()), wanted)
    };
    let wait_for = async |backlog, wanted| {
        eventually(SOON, &format!("a backlog of {backlog:?}"), async || {
            let shown = shown().await;
            if shown == (backlog, Some(wanted)) { Ok(()) } else { Err(shown) }
        })
        .await;
    };
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let ids = stand.admit(&sale, "buyer", 100).await;
    // Nothing is measured yet: 100 a second, and 100 ms.
    wait_for(Some(100.0), 10.0).await;
    // A hole among those that nobody has had: Redis no longer knows how many there are.
    let hole = ids[90].entry().to_string();
    assert_eq!(stand.ask::<i64>(&["XDEL", &stand.keys.orders(only()), &hole]).await, 1);
    wait_for(None, 10.0).await;
    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(99).await;
    wait_for(Some(0.0), 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_that_others_rely_on_are_there() {
    let stand = Plan::sqlite().with("redis.partitions", "7").impatient().stand().await;
    let sale = stand.publish(100).await;
    let partition = sale.partition.expect("a home");
    let of_partition = format!("partition=\"{partition}\"");
    stand.admit(&sale, "buyer", 40).await;
    // A peer holds them, so that they wait, and are taken over.
    stand.redis.ensure_group(partition).await.expect("a group");
    let block = std::time::Duration::from_millis(10);
    let mut peer = stand.redis.order_reader(partition, "dead-peer", block).await.expect("a reader");
    assert_eq!(peer.read(10).await.expect("a reading").len(), 10);
    // One that nobody can read.
    let key = stand.keys.orders(partition);
    stand.ask::<String>(&["XADD", &key, "*", "hello", "world"]).await;

    let worker = stand.worker().await;
    eventually(SOON, "a backlog", async || {
        worker.metric("flashsale_stream_backlog", &of_partition).await
    })
    .await;
    let committed = format!("sale=\"{}\",result=\"inserted\"", sale.id);
    eventually(SOON, "the orders", async || {
        worker.metric("flashsale_orders_committed_total", &committed).await.unwrap_or(0.0) >= 40.0
    })
    .await;
    eventually(SOON, "the dead letter", async || {
        worker.metric("flashsale_dead_letters", &of_partition).await == Some(1.0)
    })
    .await;
    eventually(SOON, "nothing left to do", async || {
        let backlog = worker.metric("flashsale_stream_backlog", &of_partition).await;
        let oldest = worker.metric("flashsale_oldest_unapplied_seconds", &of_partition).await;
        let both = (backlog, oldest);
        if both == (Some(0.0), Some(0.0)) { Ok(()) } else { Err(both) }
    })
    .await;
    for name in [
        "flashsale_build_info",
        "flashsale_reclaimed_total",
        "flashsale_commit_lag_seconds_bucket",
        "flashsale_commit_lag_seconds_count",
        "flashsale_commit_batch_size_count",
        "flashsale_desired_workers",
        "flashsale_redis_pool_connections",
        "flashsale_database_pool_connections",
    ] {
        let value = worker.metric(name, "").await.unwrap_or_else(|| panic!("no {name}"));
        assert!(value > 0.0, "{name} is {value}");
    }
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_a_schema_does_not_start() {
    let stand = Plan::sqlite().stand().await;
    stand.database.unmigrate().await.expect("the schema can be taken away");
    let metrics = flashsale_bootstrap::telemetry::init_metrics().expect("one recorder");
    let built = flashsale_order_worker::OrderWorker::build(&stand.settings, metrics).await;
    let Err(error) = built else { panic!("it starts without a schema") };
    assert!(format!("{error:#}").contains("salectl migrate"), "{error:#}");
}
