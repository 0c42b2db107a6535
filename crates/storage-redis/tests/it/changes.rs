//! Word of changed orders: who listens gets the ids, and learns that the connection is over.

use flashsale_domain::OrderId;
use flashsale_storage_redis::ChangedOrders;
use flashsale_test_support::RedisServer;
use tokio::time::timeout;

use crate::support::{Deployment, SOON};

fn ids(numbers: std::ops::RangeInclusive<i64>) -> Vec<OrderId> {
    numbers.map(|n| OrderId::from_i64(n << 22 | n).expect("an order id")).collect()
}

async fn next(changed: &mut ChangedOrders) -> Option<Vec<OrderId>> {
    timeout(SOON, changed.next()).await.expect("a message, or the end")
}

#[tokio::test]
async fn every_listener_gets_the_ids() {
    let deployment = Deployment::empty().await;
    let mut listeners = [
        deployment.redis.changed_orders().await.unwrap(),
        deployment.redis.changed_orders().await.unwrap(),
    ];
    deployment.redis.announce_changes(&[]).await.unwrap();
    for announced in [ids(1..=1), ids(2..=7)] {
        deployment.redis.announce_changes(&announced).await.unwrap();
        for listener in &mut listeners {
            assert_eq!(next(listener).await, Some(announced.clone()));
        }
    }
}

#[tokio::test]
async fn thousands_of_ids_come_in_several_messages() {
    let deployment = Deployment::empty().await;
    let mut listener = deployment.redis.changed_orders().await.unwrap();
    let announced = ids(1..=2_500);
    deployment.redis.announce_changes(&announced).await.unwrap();
    let (mut heard, mut sizes) = (Vec::new(), Vec::new());
    while heard.len() < announced.len() {
        let message = next(&mut listener).await.expect("connected");
        sizes.push(message.len());
        heard.extend(message);
    }
    assert_eq!(heard, announced);
    assert_eq!(sizes, [1_000, 1_000, 500]);
}

#[tokio::test]
async fn another_deployment_on_the_same_redis_hears_nothing() {
    let (one, other) = (Deployment::empty().await, Deployment::empty().await);
    let mut listener = one.redis.changed_orders().await.unwrap();
    other.redis.announce_changes(&ids(1..=3)).await.unwrap();
    // What comes first is what was announced here, afterwards.
    one.redis.announce_changes(&ids(4..=4)).await.unwrap();
    assert_eq!(next(&mut listener).await, Some(ids(4..=4)));
}

#[tokio::test]
async fn what_is_no_list_of_ids_is_passed_over() {
    let deployment = Deployment::empty().await;
    let mut listener = deployment.redis.changed_orders().await.unwrap();
    let channel = deployment.changes_channel();
    let good = ids(1..=1)[0];
    for (text, heard) in [
        ("", Vec::new()),
        ("nonsense", Vec::new()),
        ("-1,0,99999999999999999999", Vec::new()),
        (format!("x,{good},").as_str(), vec![good]),
    ] {
        deployment.ask::<i64>(&["PUBLISH", &channel, text]).await;
        assert_eq!(next(&mut listener).await, Some(heard), "{text:?}");
    }
}

#[tokio::test]
async fn a_subscription_ends_when_its_connection_is_killed() {
    let server = RedisServer::start();
    let deployment = Deployment::on(&server).await;
    let mut listener = deployment.redis.changed_orders().await.unwrap();
    let killed: i64 = deployment.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(killed, 1);
    assert_eq!(next(&mut listener).await, None);
    // Whoever listens anew hears again.
    let mut listener = deployment.redis.changed_orders().await.unwrap();
    deployment.redis.announce_changes(&ids(1..=1)).await.unwrap();
    assert_eq!(next(&mut listener).await, Some(ids(1..=1)));
    drop(server);
    assert_eq!(next(&mut listener).await, None);
    deployment.redis.changed_orders().await.err().expect("there is nobody to listen to");
}
