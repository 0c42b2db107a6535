//! A primary behind three real sentinels: it is found, and left for the next one.

use std::time::Duration;

use flashsale_domain::OrderId;
use flashsale_storage_redis::{AdmissionConnection, Redis, RedisConfig, RedisFault};
use flashsale_test_support::{RedisServer, RedisServerBuilder, SentinelGroup, eventually, unique};

use crate::support::{Deployment, press, sale};

const SERVICE: &str = "shop";
/// For a failover, also on a busy machine.
const PATIENT: Duration = Duration::from_secs(60);
/// An answer that does not come is missed after this.
const RESPONSE: Duration = Duration::from_millis(500);

/// A primary with a replica and three sentinels, and a deployment that sells 1,000 units there.
struct Shop {
    group: SentinelGroup,
    replica: RedisServer,
    primary: RedisServer,
    deployment: Deployment,
}

impl Shop {
    async fn open() -> Self {
        let primary = RedisServer::start();
        let replica = primary.start_replica(RedisServerBuilder::default());
        let group = SentinelGroup::start(SERVICE, &primary, 1);
        let deployment = Deployment::with_url(&primary, group.url(), RESPONSE).await;
        deployment.open_gate().await;
        deployment.publish(&sale(1_000)).await;
        Self { group, replica, primary, deployment }
    }

    /// The other server is the primary, and the gate is opened there: by the connections of before.
    async fn moved(&self, admission: &mut AdmissionConnection) {
        let promoted = || self.group.primary_port() == Some(self.replica.port());
        eventually(PATIENT, "the replica is promoted", async || promoted()).await;
        let key = self.deployment.orders_key();
        let before: u64 = ask(&self.replica, &["XLEN", &key]).await;
        let mut number = 0;
        eventually(PATIENT, "buyers are served by the new primary", async || {
            let moved = async {
                let fence = self.redis().fence(self.deployment.partition).await?;
                let last_id = fence.last_id;
                self.redis().open_gate(fence, last_id).await
            };
            moved.await.map_err(|fault| fault.to_string())?;
            number += 1;
            admit(self, admission, &format!("first-{number}")).await?;
            let length: u64 = ask(&self.replica, &["XLEN", &key]).await;
            if length > before { Ok(()) } else { Err("served by the old one".to_owned()) }
        })
        .await;
    }

    fn redis(&self) -> &Redis {
        &self.deployment.redis
    }
}

async fn admit(
    shop: &Shop,
    admission: &mut AdmissionConnection,
    buyer: &str,
) -> Result<OrderId, String> {
    let batch = admission.admit(shop.deployment.partition, sale(1).id, &[press(buyer)]).await;
    let outcome = batch.map_err(|fault| fault.to_string())?.outcomes.remove(0);
    outcome.map(|admission| admission.order_id).map_err(|refusal| format!("{refusal:?}"))
}

/// What a server answers, whoever it is at the time.
async fn ask<T: redis::FromRedisValue>(server: &RedisServer, words: &[&str]) -> T {
    let client = redis::Client::open(server.url()).expect("a URL of Redis");
    let mut connection = client.get_multiplexed_async_connection().await.expect("it answers");
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command.query_async(&mut connection).await.expect("it answers")
}

async fn is_primary(server: &RedisServer) -> bool {
    ask::<String>(server, &["INFO", "replication"]).await.contains("role:master")
}

#[tokio::test]
async fn the_primary_that_the_sentinels_name_is_used_for_everything() {
    let shop = Shop::open().await;
    let deployment = &shop.deployment;
    deployment.redis.ensure_group(deployment.partition).await.expect("a group");
    let mut changed = deployment.redis.changed_orders().await.expect("a subscription");
    let mut reader = deployment.reader("w", Duration::from_millis(300)).await;
    let order = admit(&shop, &mut deployment.admission(), "ann").await.expect("admitted");
    let read = reader.read(10).await.expect("the group is there");
    assert_eq!(crate::support::ids(&read), [order.entry()]);
    deployment.redis.announce_changes(&[order]).await.expect("published");
    assert_eq!(changed.next().await, Some(vec![order]));
    assert!(deployment.redis.missing_rights(None).await.expect("answered").is_empty());
    assert!(deployment.redis.check_service().await.is_ok());
    // Through its own URL, and not only through ours.
    assert_eq!(deployment.units().await, [999, 1]);
}

#[tokio::test]
async fn after_a_failover_nothing_goes_to_the_old_primary_even_when_it_comes_back_as_one() {
    let shop = Shop::open().await;
    let deployment = &shop.deployment;
    let mut admission = deployment.admission();
    admit(&shop, &mut admission, "before").await.expect("admitted");
    deployment.redis.ensure_group(deployment.partition).await.expect("a group");
    let mut reader = deployment.reader("w", Duration::from_millis(20)).await;
    reader.read(10).await.expect("readable");

    shop.primary.kill_9();
    let failed = admit(&shop, &mut admission, "meanwhile").await;
    assert!(failed.is_err(), "{failed:?}");
    shop.moved(&mut admission).await;
    assert!(reader.read(10).await.is_err(), "the reader's connection is over");
    deployment.reader("w", Duration::from_millis(20)).await.read(10).await.expect("readable");

    // Empty, and a primary in its own eyes until the sentinels have noticed.
    shop.primary.start_again();
    for number in 0..20 {
        let order = admit(&shop, &mut admission, &format!("after-{number}")).await;
        order.expect("admitted");
        shop.redis().ping().await.expect("answered");
        if is_primary(&shop.primary).await {
            assert_eq!(ask::<u64>(&shop.primary, &["DBSIZE"]).await, 0);
        }
    }
    let length: u64 = ask(&shop.replica, &["XLEN", &deployment.orders_key()]).await;
    assert!(length >= 20, "{length}");
}

#[tokio::test]
async fn a_living_primary_that_is_demoted_is_left() {
    let shop = Shop::open().await;
    let mut admission = shop.deployment.admission();
    admit(&shop, &mut admission, "before").await.expect("admitted");
    eventually(PATIENT, "the sentinels agree to it", async || shop.group.fail_over()).await;
    shop.moved(&mut admission).await;
    eventually(PATIENT, "the old one is a replica", async || !is_primary(&shop.primary).await)
        .await;
    for number in 0..20 {
        let order = admit(&shop, &mut admission, &format!("after-{number}")).await;
        order.expect("admitted");
        // A replica would refuse it.
        let fence = shop.redis().fence(shop.deployment.partition).await.expect("written");
        let last_id = fence.last_id;
        assert!(shop.redis().open_gate(fence, last_id).await.expect("written"));
    }
}

/// It did not see that it was replaced, and would take what it is given.
#[tokio::test]
async fn a_primary_that_slept_through_its_demotion_is_given_nothing_when_it_wakes_up() {
    let shop = Shop::open().await;
    let mut admission = shop.deployment.admission();
    admit(&shop, &mut admission, "before").await.expect("admitted");
    let key = shop.deployment.orders_key();
    let slept_with: u64 = ask(&shop.primary, &["XLEN", &key]).await;
    shop.primary.pause();
    shop.moved(&mut admission).await;
    shop.primary.resume();
    let mut slept_as_primary = 0;
    for number in 0..20 {
        admit(&shop, &mut admission, &format!("after-{number}")).await.expect("admitted");
        let length: u64 = ask(&shop.primary, &["XLEN", &key]).await;
        if is_primary(&shop.primary).await {
            slept_as_primary += 1;
            assert_eq!(length, slept_with, "nothing since it slept");
        }
    }
    assert!(slept_as_primary > 0, "the test has met what it is about");
}

#[tokio::test]
async fn one_sentinel_is_enough_to_find_the_primary_and_none_to_stay_with_it() {
    let shop = Shop::open().await;
    shop.group.kill_9(0);
    shop.group.kill_9(2);
    let again = Deployment::with_url(&shop.primary, shop.group.url(), RESPONSE).await;
    again.redis.ping().await.expect("found by the one that is left");

    shop.group.kill_9(1);
    let mut admission = shop.deployment.admission();
    for number in 0..3 {
        admit(&shop, &mut admission, &format!("buyer-{number}")).await.expect("admitted");
        again.redis.ping().await.expect("still there");
        // Longer than what was asked counts as fresh, and there is nothing to wait for.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    let nobody = Deployment::with_url(&shop.primary, shop.group.url(), RESPONSE).await;
    let fault = nobody.redis.ping().await.expect_err("nobody to ask");
    assert!(fault.to_string().contains("no sentinel answers"), "{fault}");
    assert!(!fault.is_outcome_unknown(), "nothing was sent");
    // That may pass, so it is no reason not to start.
    assert!(nobody.redis.check_service().await.is_ok());
    shop.group.start_again(1);
    eventually(PATIENT, "a sentinel is back", async || nobody.redis.ping().await).await;
}

#[tokio::test]
async fn a_service_that_the_sentinels_do_not_know_is_said_to_be_unknown() {
    let primary = RedisServer::start();
    let group = SentinelGroup::start(SERVICE, &primary, 0);
    let deployment = Deployment::with_url(&primary, group.url_of("shpo"), RESPONSE).await;
    let fault = deployment.redis.check_service().await.expect_err("nobody knows it");
    assert!(fault.to_string().contains("know no service \"shpo\""), "{fault}");
    assert!(deployment.redis.ping().await.is_err());
}

#[tokio::test]
async fn credentials_and_database_of_the_url_are_the_servers() {
    let primary = RedisServer::start();
    let group = SentinelGroup::start(SERVICE, &primary, 0);
    let user = ["ACL", "SETUSER", "ann", "on", ">a@b", "~*", "&*", "+@all"];
    ask::<()>(&primary, &user).await;
    let url = |credentials: &str| {
        let url = group.url().replace("sentinel://", &format!("sentinel://{credentials}@"));
        let config = RedisConfig {
            url: format!("{url}/3"),
            prefix: unique("fs"),
            partitions: 1,
            response_timeout: RESPONSE,
            connect_timeout: PATIENT,
            pool_max: 1,
        };
        Redis::new(config).expect("a URL of sentinels")
    };
    let redis = url("ann:a%40b");
    redis.ensure_group(redis.partitions().next().expect("one")).await.expect("a group");
    let keyspace: String = ask(&primary, &["INFO", "keyspace"]).await;
    assert!(keyspace.contains("db3:keys=1"), "{keyspace}");
    let refused = url("ann:wrong").ping().await.expect_err("not her password");
    assert!(matches!(refused, RedisFault::Primary(_)), "{refused}");
}
