//! `make bench-memory`: what a buyer costs in Redis, and what a connection costs a gateway.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use clap::Args;
use flashsale_domain::SaleId;
use flashsale_storage_redis::Keys;
use flashsale_test_support::{PostgresServer, RedisServer, temp_dir};
use jsonwebtoken::{EncodingKey, Header, encode};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;

use crate::fill::{fill, partition};
use crate::stack::{Sale, Stack};
use crate::{fill, report};

#[derive(Debug, Args)]
pub(crate) struct What {
    /// How many orders are put into Redis; several, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [100_000, 1_000_000],
        value_parser = clap::value_parser!(u32).range(1_000..=5_000_000))]
    orders: Vec<u32>,

    /// How many connections are held open
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(100..=9_000))]
    connections: u32,

    /// Where the report goes [default: bench/report.json in the target folder]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Bytes of Redis for one order, by its own count of what it has allocated.
#[derive(Debug, Serialize)]
struct InRedis {
    orders: u32,
    /// Buyer's record and entry, before a worker has had it.
    before_ack: f64,
    /// The record alone (MEMORY USAGE).
    record: f64,
    /// The entry alone (MEMORY USAGE).
    entry: f64,
    /// While a worker has it in hand.
    in_hand: f64,
    /// When it is a row, acknowledged and trimmed.
    after_ack: f64,
}

/// Bytes of a gateway's resident memory.
#[derive(Debug, Serialize)]
struct OfGateway {
    connections: u32,
    idle_connection: f64,
    follower: f64,
}

/// Measures, says it, and writes it into the report.
pub(crate) async fn measure(what: &What) -> anyhow::Result<bool> {
    let postgres = spawn_blocking(|| PostgresServer::builder().try_start()).await??;
    let mut in_redis = Vec::new();
    for orders in &what.orders {
        let stack = Stack::start(&postgres, RedisServer::builder()).await?;
        in_redis.push(measure_redis(&stack, *orders).await?);
        stack.end(&postgres).await?;
    }
    let stack = Stack::start(&postgres, RedisServer::builder()).await?;
    let of_gateway = measure_gateway(&stack, what.connections).await?;
    stack.end(&postgres).await?;

    let largest = in_redis.iter().max_by_key(|it| it.orders).context("no orders")?;
    let ratios = BTreeMap::from([("redis_bytes_per_buyer", largest.before_ack)]);
    let path = what.report.clone().map_or_else(report::default_path, Ok)?;
    let raw = serde_json::json!({ "redis": in_redis, "gateway": of_gateway });
    report::write(&path, "memory", &ratios, &raw)?;

    let mut out = io::stdout().lock();
    writeln!(out, "| orders | record + entry | record | entry | in a worker's hand | after ack |")?;
    writeln!(out, "|---:|---:|---:|---:|---:|---:|")?;
    for it in &in_redis {
        let InRedis { orders, before_ack, record, entry, in_hand, after_ack } = it;
        writeln!(
            out,
            "| {orders} | {before_ack:.0} | {record:.0} | {entry:.0} | {in_hand:.0} | {after_ack:.0} |"
        )?;
    }
    let OfGateway { connections, idle_connection, follower } = of_gateway;
    writeln!(out, "\n| resident bytes of a gateway, at {connections} | |\n|---|---:|")?;
    writeln!(out, "| idle connection | {idle_connection:.0} |\n| follower | {follower:.0} |\n")?;
    writeln!(out, "{}", report::ratios_table(&ratios))?;
    writeln!(out, "written to {}", path.display())?;
    Ok(true)
}

async fn measure_redis(stack: &Stack, orders: u32) -> anyhow::Result<InRedis> {
    let sale = stack.open(Sale::of(orders)).await?;
    let id: SaleId = sale.parse()?;
    let redis = fill::redis(&stack.settings)?;
    let client = redis::Client::open(stack.redis.url())?;
    // Looking at every element of a million takes its time.
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut asking = client.get_multiplexed_async_connection_with_config(&patient).await?;
    redis.ensure_group(partition()?).await?;

    let before = used_memory(&mut asking).await?;
    fill(&redis, id, orders).await?;
    let filled = used_memory(&mut asking).await?;
    let keys = Keys::new("fs");
    let record = usage(&mut asking, &keys.buyers(partition()?, id)).await?;
    let entry = usage(&mut asking, &keys.orders(partition()?)).await?;

    let mut reader = redis.order_reader(partition()?, "bench", Duration::from_millis(100)).await?;
    let mut in_hand = Vec::new();
    loop {
        let entries = reader.read(1_000).await?;
        if entries.is_empty() {
            break;
        }
        in_hand.extend(entries.into_iter().map(|entry| entry.id));
    }
    ensure!(in_hand.len() == usize::try_from(orders)?, "not all was read");
    let read = used_memory(&mut asking).await?;
    for ids in in_hand.chunks(1_000) {
        redis.ack(partition()?, ids).await?;
    }
    while redis.trim_acked(partition()?).await? > 0 {}
    let acked = used_memory(&mut asking).await?;

    let each = |bytes: f64| bytes / f64::from(orders);
    Ok(InRedis {
        orders,
        before_ack: each(filled - before),
        record: each(record),
        entry: each(entry),
        in_hand: each(read - before),
        after_ack: each(acked - before),
    })
}

/// Bytes that Redis has allocated, by its own count.
pub(crate) async fn used_memory(redis: &mut MultiplexedConnection) -> anyhow::Result<f64> {
    let info: String = redis::cmd("INFO").arg("memory").query_async(redis).await?;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.context("no used_memory")?.trim().parse().context("used_memory")
}

async fn usage(redis: &mut MultiplexedConnection, key: &str) -> anyhow::Result<f64> {
    let mut command = redis::cmd("MEMORY");
    // Every element is looked at, not a sample.
    command.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
    Ok(command.query_async(redis).await?)
}

async fn measure_gateway(stack: &Stack, connections: u32) -> anyhow::Result<OfGateway> {
    let sale = stack.open(Sale::of(connections)).await?;
    let folder = temp_dir("bench");
    let receipts = folder.path().join("receipts.csv");
    let (url, count) = (&stack.gateway_url, connections.to_string());
    let file = receipts.to_str().context("a path of UTF-8")?;
    let press = ["--url", url, "--sale", &sale, "--buyers", &count, "--receipts", file, "--quiet"];
    crate::programs::output("rush", &stack.settings, &press).await?;
    let orders = std::fs::read_to_string(&receipts)?;
    let orders: Vec<(&str, &str)> =
        orders.lines().skip(1).filter_map(|line| line.split_once(',')).collect();
    ensure!(orders.len() == usize::try_from(connections)?, "not every buyer has an order");

    let address = url.strip_prefix("http://").context("a URL of http")?;
    let look = format!("GET /api/v1/sales/{sale} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let before = resident(stack.gateway.pid())?;
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(ask(address, &look, "\"stock_left\"").await?);
    }
    let idle = resident(stack.gateway.pid())?;
    drop(open);

    let secret = stack.settings.iter().find(|(key, _)| key.ends_with("JWT_SECRET"));
    let key = EncodingKey::from_secret(secret.context("a secret")?.1.as_bytes())?;
    let exp = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + 3_600;
    // What the first connections left behind is used again: followers start from there as well.
    let mut followers = Vec::new();
    let without = resident(stack.gateway.pid())?.min(before);
    for (id, buyer) in orders {
        let claims = serde_json::json!({ "sub": buyer, "exp": exp });
        let token = encode(&Header::default(), &claims, &key)?;
        let follow = format!(
            "GET /api/v1/orders/{id}/events HTTP/1.1\r\nHost: {address}\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        );
        followers.push(ask(address, &follow, "event: state").await?);
    }
    let following = resident(stack.gateway.pid())?;
    let each = |bytes: f64| bytes / f64::from(connections);
    Ok(OfGateway {
        connections,
        idle_connection: each(idle - before),
        follower: each(following - without),
    })
}

/// Opens a connection, asks, and reads until the answer holds `word`; it stays open.
async fn ask(address: &str, request: &str, word: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains(word) {
        let read = stream.read_buf(&mut answer).await?;
        ensure!(read > 0, "the gateway said {}", String::from_utf8_lossy(&answer));
    }
    Ok(stream)
}

/// Resident memory of a process in bytes.
fn resident(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1_024.0)
}
