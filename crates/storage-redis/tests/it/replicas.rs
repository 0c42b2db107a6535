//! Waiting for replicas behind an admission: a real replica, which is there or is frozen.

use std::time::Duration;

use flashsale_domain::AdmissionRequest;
use flashsale_storage_redis::{AdmissionBatch, AdmissionConnection, ReplicaProof, Replicas};
use flashsale_test_support::RedisServer;

use crate::support::{Deployment, Outcome, outcomes, press, press_with_key, sale};

/// For a replica that is there, also on a busy machine.
const PATIENT: Duration = Duration::from_secs(8);
/// For one that is away, and is waited for in vain.
const BRIEF: Duration = Duration::from_millis(150);

fn one_replica(proof: ReplicaProof, timeout: Duration) -> Replicas {
    Replicas { count: 1, timeout, proof }
}

/// A server with what a test asks of it, a sale of `stock` units on it, and a replica.
async fn pair(stock: i64) -> (RedisServer, RedisServer, Deployment) {
    let primary = RedisServer::start();
    let replica = primary.start_replica(RedisServer::builder());
    let deployment = Deployment::selling_on(&primary, &sale(stock)).await;
    (primary, replica, deployment)
}

/// What another gateway is told, which waits for `timeout`.
async fn confirmed(
    deployment: &Deployment,
    timeout: Duration,
    requests: &[AdmissionRequest],
) -> (bool, Vec<Outcome>) {
    let replicas = one_replica(ReplicaProof::Memory, timeout);
    send(&mut deployment.admission().confirmed_by(replicas), deployment, requests).await
}

async fn send(
    connection: &mut AdmissionConnection,
    deployment: &Deployment,
    requests: &[AdmissionRequest],
) -> (bool, Vec<Outcome>) {
    let batch: AdmissionBatch = connection
        .admit(deployment.partition, sale(1).id, requests)
        .await
        .expect("the primary answers");
    (batch.confirmed, outcomes(&batch))
}

#[tokio::test]
async fn a_yes_is_confirmed_by_a_replica_that_is_there() {
    let (_primary, _replica, deployment) = pair(10).await;
    let (is_confirmed, told) = confirmed(&deployment, PATIENT, &[press_with_key("ann", "k")]).await;
    assert!(is_confirmed);
    let order = told[0].admitted();
    let both = [press_with_key("ann", "k"), press("ann")];
    let again = confirmed(&deployment, PATIENT, &both).await;
    assert_eq!(again, (true, vec![Outcome::Replayed(order), Outcome::AlreadyOrdered(order)]));
}

#[tokio::test]
async fn without_a_replica_no_yes_is_confirmed_and_refusals_need_none() {
    let (_primary, replica, deployment) = pair(1).await;
    replica.pause();
    let both = [press("ann"), press("bob")];
    let (is_confirmed, told) = confirmed(&deployment, BRIEF, &both).await;
    assert!(!is_confirmed);
    assert_eq!((told[1], deployment.units().await), (Outcome::SoldOut, [0, 1]));
    let order = Outcome::AlreadyOrdered(told[0].admitted());
    let refused = confirmed(&deployment, BRIEF, &[press("bob")]).await;
    assert_eq!(refused, (true, vec![Outcome::SoldOut]));
    replica.resume();
    assert_eq!(confirmed(&deployment, PATIENT, &[press("ann")]).await, (true, vec![order]));
}

/// The order was written over one connection; another one, which has written nothing, must not vouch
/// for it.
#[tokio::test]
async fn a_replay_over_another_connection_is_not_confirmed_while_no_replica_has_the_order() {
    let (_primary, replica, deployment) = pair(10).await;
    replica.pause();
    let request = [press_with_key("ann", "k")];
    let (is_confirmed, told) = confirmed(&deployment, BRIEF, &request).await;
    assert!(!is_confirmed);
    let order = told[0].admitted();
    let replay = Outcome::Replayed(order);
    let mut second = deployment.admission().confirmed_by(one_replica(ReplicaProof::Memory, BRIEF));
    assert_eq!(send(&mut second, &deployment, &request).await, (false, vec![replay]));
    let held = Outcome::AlreadyOrdered(order);
    assert_eq!(send(&mut second, &deployment, &[press("ann")]).await, (false, vec![held]));
    replica.resume();
    assert_eq!(confirmed(&deployment, PATIENT, &request).await, (true, vec![replay]));
}

#[tokio::test]
async fn a_replay_writes_where_replicas_are_waited_for_and_nowhere_else() {
    let (_primary, _replica, deployment) = pair(10).await;
    let offset = async || -> u64 {
        let info: String = deployment.ask(&["INFO", "replication"]).await;
        let field = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
        field.expect("Redis tells").parse().expect("a number")
    };
    // Pings to replicas go the same way, and would be taken for writes.
    deployment.ask::<()>(&["CONFIG", "SET", "repl-ping-replica-period", "3600"]).await;
    let request = [press_with_key("ann", "k")];
    deployment.admit(&request).await;
    let before = offset().await;
    let contents = deployment.contents().await;
    deployment.admit(&request).await;
    assert_eq!(offset().await, before, "nothing goes to replicas that nobody waits for");
    confirmed(&deployment, PATIENT, &request).await;
    assert!(offset().await > before, "the replay stands behind what it tells of");
    assert_eq!(deployment.contents().await, contents);
}

#[tokio::test]
async fn the_script_is_loaded_where_it_is_missing_and_waited_for_as_well() {
    let (_primary, replica, deployment) = pair(10).await;
    deployment.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    let (is_confirmed, told) = confirmed(&deployment, PATIENT, &[press("ann")]).await;
    assert!(is_confirmed);
    told[0].admitted();
    replica.pause();
    deployment.ask::<()>(&["SCRIPT", "FLUSH"]).await;
    assert!(!confirmed(&deployment, BRIEF, &[press("bob")]).await.0);
    replica.resume();
}

#[tokio::test]
async fn a_primary_that_is_full_refuses_a_replay_rather_than_vouch_for_it() {
    let (_primary, _replica, deployment) = pair(10).await;
    let request = [press_with_key("ann", "k")];
    deployment.admit(&request).await;
    deployment.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let replicas = one_replica(ReplicaProof::Memory, BRIEF);
    let mut connection = deployment.admission().confirmed_by(replicas);
    let fault = connection.admit(deployment.partition, sale(1).id, &request).await;
    let fault = fault.expect_err("nothing can be written");
    assert!(fault.is_refused() && !fault.is_outcome_unknown(), "{fault}");
}

/// Needs WAITAOF, which Redis has had since 7.2; where it is missing, nothing may be confirmed.
#[tokio::test]
async fn on_disk_is_confirmed_only_when_both_disks_have_it() {
    let primary = RedisServer::builder().append_only(true).start();
    let replica = primary.start_replica(RedisServer::builder().append_only(true));
    let deployment = Deployment::selling_on(&primary, &sale(10)).await;
    let has_waitaof = deployment.try_ask::<Vec<i64>>(&["WAITAOF", "0", "0", "1"]).await.is_ok();
    let on_disk = one_replica(ReplicaProof::Disk, PATIENT);
    let mut connection = deployment.admission().confirmed_by(on_disk);
    let (is_confirmed, told) = send(&mut connection, &deployment, &[press("ann")]).await;
    told[0].admitted();
    assert_eq!(is_confirmed, has_waitaof);

    // It has it in memory, and keeps no file.
    let client = redis::Client::open(replica.url()).expect("a Redis URL");
    let mut to_replica = client.get_multiplexed_async_connection().await.expect("it answers");
    let mut off = redis::cmd("CONFIG");
    off.arg("SET").arg("appendonly").arg("no");
    off.query_async::<()>(&mut to_replica).await.expect("it keeps no file");
    let soon = one_replica(ReplicaProof::Disk, BRIEF);
    let mut connection = deployment.admission().confirmed_by(soon);
    assert!(!send(&mut connection, &deployment, &[press("bob")]).await.0);
    assert!(confirmed(&deployment, PATIENT, &[press("bob")]).await.0);
}
