//! `profile = "production"`: a worker refuses to start on what is unsafe, and asks a Redis that is away
//! when it is there.

use flashsale_test_support::{RedisServer, SentinelGroup, eventually};

use crate::support::{Plan, SOON};

fn production(allowed: &str) -> [(&'static str, String); 2] {
    [
        ("FLASHSALE__PROFILE", "production".to_owned()),
        ("FLASHSALE__ALLOW_UNSAFE", allowed.to_owned()),
    ]
}

#[tokio::test]
async fn a_worker_refuses_an_unsafe_redis_at_its_start_or_when_it_is_there() {
    let redis = RedisServer::start();
    let stand = Plan::sqlite().redis(&redis).stand().await;
    let refused = stand.real_worker(&production("sqlite"));
    let ended = refused.program.wait_exit(SOON).expect("it does not start");
    assert_eq!(ended.code(), Some(1), "{}", refused.program.log());
    assert!(refused.program.log().contains("(aof-off)"), "{}", refused.program.log());

    let borne = stand.real_worker(&production("sqlite,aof-off"));
    borne.admin.wait_for_readiness(true).await;

    redis.kill_9();
    let waits = stand.real_worker(&production("sqlite"));
    eventually(SOON, "it runs and is not ready", async || {
        let readiness = waits.admin.readiness().await;
        readiness.is_some_and(|(ready, text)| !ready && text.contains("\"safety\":\"not checked"))
    })
    .await;
    redis.start_again();
    let ended = waits.program.wait_exit(SOON).expect("it ends by itself");
    assert_eq!(ended.code(), Some(1), "{}", waits.program.log());
    assert!(waits.program.log().contains("(aof-off)"), "{}", waits.program.log());
}

#[tokio::test]
async fn a_service_that_the_sentinels_do_not_know_ends_the_start() {
    let redis = RedisServer::start();
    let group = SentinelGroup::start("shop", &redis, 0);
    let stand = Plan::sqlite().redis(&redis).stand().await;
    let at = |service: &str| [("FLASHSALE__REDIS__URL", group.url_of(service))];
    let known = stand.real_worker(&at("shop"));
    known.admin.wait_for_readiness(true).await;

    let refused = stand.real_worker(&at("shpo"));
    let ended = refused.program.wait_exit(SOON).expect("it does not start");
    assert_eq!(ended.code(), Some(1), "{}", refused.program.log());
    let log = refused.program.log();
    assert!(log.contains("redis.url") && log.contains("know no service"), "{log}");
}
