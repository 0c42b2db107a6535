//! Thousands who follow their orders on one gateway: each is told soon after the commit, and costs
//! little while he waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashsale_test_support::eventually;
use futures_util::StreamExt as _;
use futures_util::stream;
use jsonwebtoken::{EncodingKey, Header, encode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::stack::{Member, SECRET, SOON, Stack};

const FOLLOWERS: usize = 5_000;
/// Sockets that this process needs for something else.
const OTHER_SOCKETS: u64 = 200;

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("fits for long")
}

pub(crate) fn token(buyer: &str) -> String {
    let claims = json!({ "sub": buyer, "exp": now_ms() / 1000 + 3600 });
    let key = EncodingKey::from_secret(SECRET.as_bytes()).expect("a secret");
    encode(&Header::default(), &claims, &key).expect("can be signed")
}

/// Lets this process, and what it starts, open as many sockets as the machine allows; how many
/// followers fit.
fn followers_that_fit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not be raised, fewer fit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let sockets = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let fit = sockets.saturating_sub(OTHER_SOCKETS);
    usize::try_from(fit).unwrap_or(usize::MAX).min(FOLLOWERS)
}

fn resident_kib(member: &Member) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", member.program.pid()));
    let status = status.expect("the gateway runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("Linux says how much memory it uses")
}

/// Follows an order until its row is told; how many milliseconds after the commit that was.
async fn follow(at: String, buyer: String, order: String, begun: Arc<AtomicUsize>) -> i64 {
    let stream = TcpStream::connect(&at).await.expect("the gateway listens");
    let mut stream = BufReader::with_capacity(1024, stream);
    let request = format!(
        "GET /api/v1/orders/{order}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        token(&buyer)
    );
    stream.write_all(request.as_bytes()).await.expect("is sent");
    let mut line = String::new();
    loop {
        line.clear();
        let read = stream.read_line(&mut line).await.expect("the stream goes on");
        assert_ne!(read, 0, "the stream of order {order} ended too soon");
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let data: Value = serde_json::from_str(data).expect("the data is JSON");
        assert_eq!(data["order_id"], order, "{data}");
        match data["state"].as_str() {
            Some("queued") => _ = begun.fetch_add(1, Ordering::Relaxed),
            Some("awaiting_payment") => {
                let told_ms = now_ms();
                let committed = data["committed_at"].as_str().expect("says when");
                let committed = chrono::DateTime::parse_from_rfc3339(committed).expect("a time");
                return told_ms - committed.timestamp_millis();
            }
            other => panic!("{other:?}: {data}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_who_follow_their_orders_are_told_soon_and_cost_little() {
    let count = followers_that_fit();
    let stack = Stack::postgres()
        // Thousands at once: on a busy machine some are not read from for a while.
        .with("FLASHSALE__HTTP__CLIENT_REQUEST_TIMEOUT", "1m");
    let sale = stack.open_sale(10_000, "queued");
    let gateway = stack.gateway();
    let client = reqwest::Client::new();
    let place = async |number: usize| {
        let buyer = format!("buyer-{number}");
        let url = format!("http://{}/api/v1/sales/{sale}/orders", gateway.http_addr());
        let answer = client.post(url).bearer_auth(token(&buyer)).send().await.expect("answered");
        let answer: Value = answer.json().await.expect("is JSON");
        let order = answer["order_id"].as_str().unwrap_or_else(|| panic!("{answer}"));
        (buyer, order.to_owned())
    };
    let orders: Vec<_> = stream::iter(0..count).map(place).buffer_unordered(50).collect().await;

    let before_kib = resident_kib(&gateway);
    let begun = Arc::new(AtomicUsize::new(0));
    let followers: Vec<_> = orders
        .into_iter()
        .map(|(buyer, order)| {
            tokio::spawn(follow(gateway.http_addr(), buyer, order, Arc::clone(&begun)))
        })
        .collect();
    eventually(SOON, "everybody follows", async || {
        let begun = begun.load(Ordering::Relaxed);
        if begun == count { Ok(()) } else { Err(begun) }
    })
    .await;
    let after_kib = resident_kib(&gateway);

    let worker = tokio::task::block_in_place(|| stack.worker());
    let mut late = Vec::with_capacity(count);
    for follower in followers {
        let told = timeout(SOON, follower).await.expect("everybody is told");
        late.push(told.expect("told in order"));
    }
    late.sort_unstable();
    let percentile = |percent: usize| late[(late.len() - 1) * percent / 100];
    let per_follower = after_kib.saturating_sub(before_kib) / u64::try_from(count).expect("fits");
    eprintln!(
        "{count} followers: {per_follower} KiB each ({before_kib} to {after_kib} KiB); told after the \
         commit: p50 {} ms, p99 {} ms, max {} ms",
        percentile(50),
        percentile(99),
        percentile(100),
    );
    assert!(percentile(99) < 5_000, "p99 {} ms", percentile(99));
    assert!(per_follower < 200, "{per_follower} KiB a follower");
    drop(worker);
    gateway.program.terminate();
    gateway.must_end_well(Duration::from_secs(20));
}
