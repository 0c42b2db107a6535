//! Sentinels: they promote the replica of a primary that is gone, and nothing is left of them.

use std::time::Duration;

use flashsale_test_support::{RedisServer, RedisServerBuilder, SentinelGroup, eventually_blocking};

#[test]
fn sentinels_promote_the_replica_of_a_killed_primary() {
    let primary = RedisServer::start();
    let replica = primary.start_replica(RedisServerBuilder::default());
    let group = SentinelGroup::start("shop", &primary, 1);
    assert_eq!(group.primary_port(), Some(primary.port()));
    assert!(group.url().starts_with("redis+sentinel://127.0.0.1:"));
    assert!(group.url().ends_with("/shop"));
    primary.kill_9();
    eventually_blocking(Duration::from_secs(60), "the replica is promoted", || {
        group.primary_port() == Some(replica.port())
    });
}
