//! `admission.replicas`: nobody is told yes before a replica has it, and a failover to that replica
//! forgets nothing that anybody was told.

use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use flashsale_domain::OrderId;
use flashsale_test_support::{RedisServer, eventually};
use futures_util::StreamExt as _;
use futures_util::future::join_all;

use crate::support::{Answer, SOON, TestApp, new_sale, rounds, send};

/// A deployment that waits so long for one replica.
async fn waiting_for_a_replica(redis_url: &str, timeout: &str) -> TestApp {
    TestApp::spawn_with(&[
        ("redis.url", redis_url),
        ("redis.response_timeout", "2s"),
        ("admission.replicas", "1"),
        ("admission.replicas_timeout", timeout),
    ])
    .await
}

fn assert_unknown(answer: &Answer) {
    assert_eq!(answer.problem(), (503, "outcome-unknown"));
    assert!(answer.retry_after() >= Some(1), "{answer:?}");
}

#[tokio::test]
async fn a_yes_without_its_replica_is_an_unknown_outcome_and_the_key_tells_the_truth_later() {
    let primary = RedisServer::start();
    let replica = primary.start_replica(RedisServer::builder());
    let app = waiting_for_a_replica(&primary.url(), "300ms").await;
    let (other, _gateway) = app.start_another_gateway().await;
    let sale = app.sale(2).await;
    app.wait_until_known(other, sale).await;
    // The first answer may have to wait for connections, on a busy machine for longer than this.
    let alice = eventually(SOON, "a yes with a replica there", async || {
        let answer = app.place_with_key(sale, "alice", "a").await;
        (answer.status == 202).then(|| answer.receipt())
    })
    .await;

    replica.pause();
    assert_unknown(&app.place_with_key(sale, "bob", "b").await);
    // It is admitted, and not told: not by a replay, nor by the other gateway, nor without the key.
    assert_unknown(&app.place_with_key(sale, "bob", "b").await);
    assert_unknown(&send(app.press_at(other, sale, "bob").header("Idempotency-Key", "b")).await);
    assert_unknown(&app.place(sale, "bob").await);
    // There is no unit left, and no replica is needed to say so.
    assert_eq!(app.place(sale, "carol").await.problem(), (409, "sold-out"));
    let metrics = app.admin("/metrics").await.text;
    let counted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("flashsale_admission_unconfirmed_batches_total "));
    assert!(counted.is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n >= 4)), "{counted:?}");

    replica.resume();
    let bob = eventually(SOON, "the replica has it", async || {
        let answer = app.place_with_key(sale, "bob", "b").await;
        (answer.status == 202).then(|| {
            assert!(answer.is_replay());
            answer.receipt()
        })
    })
    .await;
    let at_other = eventually(SOON, "the other gateway says so too", async || {
        let answer = send(app.press_at(other, sale, "bob")).await;
        (answer.status == 409).then(|| answer.body["order_id"].clone())
    })
    .await;
    assert_eq!(at_other, bob.to_string());
    assert_eq!(app.orders_in_record(sale, "bob").await, 1);
    let _worker = app.start_worker().await;
    app.wait_until_committed("bob", bob).await;
    app.wait_until_committed("alice", alice).await;
    app.assert_sound(sale, &[(alice, "alice".into()), (bob, "bob".into())]).await;
}

#[tokio::test]
async fn what_buyers_were_told_outlives_a_failover_to_the_replica() {
    // Each has servers of its own and waits most of the time: a few go side by side.
    let all = (0..rounds(3)).map(fail_over);
    futures_util::stream::iter(all).buffer_unordered(3).collect::<Vec<()>>().await;
}

/// The crowd presses while the primary dies and its replica takes its place. In every second round the
/// replica is cut off for a while before, and no worker has written down what the primary took in that
/// while: so orders are lost, those that nobody was told of.
async fn fail_over(round: usize) {
    const STOCK: usize = 60;
    const BUYERS: usize = 90;
    let cut_off = round.is_multiple_of(2);
    let primary = RedisServer::start();
    let replica = primary.start_replica(RedisServer::builder());
    let place = Place::of(&primary);
    let app = waiting_for_a_replica(&place.url(), "100ms").await;
    let worker = if cut_off { None } else { Some(app.start_worker().await) };
    let sale = app.publish(&new_sale(i64::try_from(STOCK).expect("a small number"))).await;
    let answers = AtomicUsize::new(0);
    let press = async |buyer: usize| -> Option<(OrderId, String)> {
        let name = format!("buyer-{buyer}");
        eventually(A_FAILOVER, "an answer", async || {
            let answer = app.place_with_key(sale, &name, &name).await;
            answers.fetch_add(1, Ordering::SeqCst);
            match answer.status {
                202 => Some(Some((answer.receipt(), name.clone()))),
                409 => {
                    assert_eq!(answer.problem(), (409, "sold-out"));
                    Some(None)
                }
                _ => {
                    assert_eq!(answer.status, 503, "{answer:?}");
                    None
                }
            }
        })
        .await
    };
    let mut told = join_all((0..STOCK / 2).map(press)).await;
    if cut_off {
        command(&replica, &["REPLICAOF", "127.0.0.1", "1"]).await;
    }
    let before = answers.load(Ordering::SeqCst);
    let rest = futures_util::stream::iter((STOCK / 2..BUYERS).map(press));
    let replace = async {
        eventually(A_FAILOVER, "the sale goes on", async || {
            answers.load(Ordering::SeqCst) >= before + 10
        })
        .await;
        primary.kill_9();
        command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
        place.is_now(&replica);
        let second = replica.start_replica(RedisServer::builder());
        let worker = match worker {
            Some(worker) => worker,
            None => app.start_worker().await,
        };
        (second, worker)
    };
    let (rest, (_second, worker)) =
        tokio::join!(rest.buffer_unordered(5).collect::<Vec<_>>(), replace);
    told.extend(rest);

    let receipts: Vec<(OrderId, String)> = told.into_iter().flatten().collect();
    assert_eq!(receipts.len(), STOCK, "round {round}: all is sold");
    for (id, buyer) in &receipts {
        app.wait_until_committed(buyer, *id).await;
    }
    app.assert_sound(sale, &receipts).await;
    worker.stop(A_FAILOVER).await;
}

/// A rebuild is part of it, on a machine that does other things as well.
const A_FAILOVER: Duration = Duration::from_secs(90);

async fn command(server: &RedisServer, words: &[&str]) {
    let client = redis::Client::open(server.url()).expect("a Redis URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("it answers");
    let (name, arguments) = words.split_first().expect("a command has a name");
    let done = redis::cmd(name).arg(arguments).query_async::<()>(&mut connection).await;
    done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// The one address of whichever server is the primary: what is sent there is passed on.
struct Place {
    port: u16,
    target: Arc<AtomicU16>,
}

impl Place {
    fn of(server: &RedisServer) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let target = Arc::new(AtomicU16::new(server.port()));
        let now = Arc::clone(&target);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                // A server that is away closes the connection at once.
                let to = (Ipv4Addr::LOCALHOST, now.load(Ordering::SeqCst));
                if let Ok(server) = TcpStream::connect(to) {
                    pass_on(&client, &server);
                    pass_on(&server, &client);
                }
            }
        });
        Self { port, target }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn is_now(&self, server: &RedisServer) {
        self.target.store(server.port(), Ordering::SeqCst);
    }
}

/// Passes on what comes from one until it ends, and then ends the other.
fn pass_on(from: &TcpStream, to: &TcpStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    let _ = from.set_nodelay(true);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}
