//! The alert rules in a real Prometheus that scrapes real programs: each fires by what it is for.
//!
//! Only how long a condition has to last is shortened, or the test would take minutes and not the twenty
//! seconds that a dozen alerts take at one scrape a second; what the rules ask, and of which metrics, is
//! as a deployment has it. That they wait is shown by `deploy/monitoring/tests.yaml`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use flashsale_domain::Partition;
use flashsale_storage_redis::Keys;
use flashsale_test_support::{
    Program, RedisServer, TempDir, eventually_blocking, find_on_path, free_port, temp_dir,
};
use serde_json::Value;

use crate::stack::{Member, SOON, Stack, ended, exchange};

/// A Prometheus of this test's own.
pub(crate) struct Prometheus {
    program: Program,
    port: u16,
    _directory: TempDir,
}

impl Prometheus {
    pub(crate) fn watching(members: &[&Member]) -> Self {
        let directory = temp_dir("prometheus");
        let rules =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/monitoring/alerts.yaml");
        let rules = fs::read_to_string(rules).expect("the rules");
        let hasty: Vec<&str> = rules
            .lines()
            .map(
                |line| {
                    if line.trim_start().starts_with("for: ") { "        for: 0s" } else { line }
                },
            )
            .collect();
        let file = |name: &str, text: String| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("a file can be written");
            path.to_str().expect("is UTF-8").to_owned()
        };
        let rules = file("alerts.yaml", hasty.join("\n"));
        let targets: Vec<String> = members.iter().map(|member| member.admin_addr()).collect();
        let config = file(
            "prometheus.yaml",
            format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
                 rule_files: ['{rules}']\n\
                 scrape_configs: [{{job_name: x, static_configs: [{{targets: {targets:?}}}]}}]\n"
            ),
        );
        let port = free_port();
        let data = directory.path().join("data");
        let arguments = [
            format!("--config.file={config}"),
            format!("--web.listen-address=127.0.0.1:{port}"),
            format!("--storage.tsdb.path={}", data.display()),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let program = Program::start(tool("prometheus"), &[], &arguments);
        Self { program, port, _directory: directory }
    }

    /// By HTTP/1.0, which has no chunks.
    fn ask(&self, path: &str) -> Option<Value> {
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\nhost: x\r\n\r\n");
        let (_, answer) = exchange(self.port, &request)?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// The alerts that fire, by name and, where there is one, runbook's file.
    fn firing(&self) -> Option<Vec<(String, String)>> {
        let answer = self.ask("alerts")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let alerts = answer["data"]["alerts"].as_array()?.iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        Some(
            firing
                .map(|alert| {
                    let runbook = text(&alert["annotations"]["runbook_url"]);
                    (text(&alert["labels"]["alertname"]), runbook)
                })
                .collect(),
        )
    }

    pub(crate) fn wait_for(&self, alert: &str) {
        let firing = eventually_blocking(SOON, alert, || {
            assert!(self.program.exit_status().is_none(), "{}", self.program.log());
            let firing = self.firing();
            match firing.iter().flatten().find(|(name, _)| name == alert) {
                Some(found) => Ok(found.clone()),
                None => Err(firing),
            }
        });
        let runbook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(&firing.1);
        assert!(runbook.is_file(), "{alert} leads to {}", firing.1);
    }

    pub(crate) fn wait_for_quiet(&self, alert: &str) {
        eventually_blocking(SOON, &format!("no {alert}"), || match self.firing() {
            Some(firing) if firing.iter().all(|(name, _)| name != alert) => Ok(()),
            other => Err(other),
        });
    }
}

/// A program of Prometheus's package.
fn tool(name: &str) -> PathBuf {
    find_on_path(name).unwrap_or_else(|| panic!("{name} is not installed: make deps installs it"))
}

/// A Redis that is spoilt by hand.
struct Spoiler<'a> {
    redis: &'a RedisServer,
    keys: Keys,
}

impl Spoiler<'_> {
    /// Commands as one sends them by hand, one after the other; what is answered.
    fn run(&self, commands: &[String]) -> String {
        let lines: String = commands.iter().map(|line| format!("{line}\r\n")).collect();
        let (port, quit) = (self.redis.port(), "QUIT\r\n");
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connect");
        stream.write_all(format!("{lines}{quit}").as_bytes()).expect("write");
        let answer = std::io::read_to_string(stream).expect("read");
        assert!(!answer.contains("-ERR") && !answer.contains("-WRONG"), "{lines}{answer}");
        answer
    }

    fn configure(&self, key: &str, value: &str) {
        self.run(&[format!("CONFIG SET {key} {value}")]);
    }
}

#[test]
fn alerts_fire_by_what_they_are_for() {
    let redis = RedisServer::builder().append_only(true).start();
    let stack = Stack::sqlite()
        .with("FLASHSALE__REDIS__URL", &redis.url())
        .with("FLASHSALE__REDIS__PREFIX", "alerts")
        // Nobody puts right what the test spoils.
        .with("FLASHSALE__WORKER__REBUILD", "manual")
        .with("FLASHSALE__WORKER__LEDGER_INTERVAL", "1s")
        // Nor takes an entry over before it is told to.
        .with("FLASHSALE__WORKER__RECLAIM_IDLE", "10m");
    let (gateway, worker) = (stack.gateway(), stack.worker());
    let sale = stack.open_sale(100, "queued");
    assert_eq!(ended(&stack.rush(&[&gateway], &sale, &["--buyers", "20"])).code(), Some(0));
    stack.settled(&sale);

    let prometheus = Prometheus::watching(&[&gateway, &worker]);
    eventually_blocking(SOON, "both are scraped, and nothing fires", || {
        let up = prometheus.ask("query?query=sum(up)");
        let firing = prometheus.firing();
        let scraped = up.as_ref().is_some_and(|up| up["data"]["result"][0]["value"][1] == "2");
        if scraped && firing == Some(vec![]) { Ok(()) } else { Err((up, firing)) }
    });
    for member in [&gateway, &worker] {
        assert_clean_metrics(member);
    }
    eventually_blocking(SOON, "the stock that is left, and outcomes that nobody had yet", || {
        let metrics = gateway.metrics();
        let expected = [
            format!("flashsale_stock_left{{sale=\"{sale}\"}} 80"),
            format!("flashsale_admissions_total{{sale=\"{sale}\",outcome=\"not_loaded\"}} 0"),
            format!("flashsale_admissions_total{{sale=\"{sale}\",outcome=\"clock_fault\"}} 0"),
        ];
        let missing: Vec<_> = expected
            .into_iter()
            .filter(|line| !metrics.lines().any(|found| found == line))
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(missing) }
    });

    let keys = Keys::new("alerts");
    let (partition, id) = (Partition::new(0).expect("the first"), sale.parse().expect("an id"));
    let spoiler = Spoiler { redis: &redis, keys };
    let orders = spoiler.keys.orders(partition);
    let group = group_of(&spoiler, &orders);

    spoiler.configure("maxmemory-policy", "allkeys-lru");
    prometheus.wait_for("FlashsaleRedisMayEvict");
    spoiler.configure("maxmemory-policy", "noeviction");
    prometheus.wait_for_quiet("FlashsaleRedisMayEvict");
    spoiler.configure("appendonly", "no");
    prometheus.wait_for("FlashsaleAofOff");
    spoiler.configure("appendonly", "yes");

    let stock = spoiler.keys.sale(partition, id);
    spoiler.run(&[format!("HINCRBY {stock} stock -1")]);
    prometheus.wait_for("FlashsaleLedgerImbalance");
    spoiler.run(&[format!("HINCRBY {stock} stock 1")]);
    prometheus.wait_for_quiet("FlashsaleLedgerImbalance");

    // An entry that nobody can read.
    spoiler.run(&[format!("XADD {orders} * hello world")]);
    prometheus.wait_for("FlashsaleDeadLetters");

    // One that is old, in the hands of a worker that is gone; and then deleted under it.
    let old_ms = now_ms() - 120_000;
    let (old, stream) = (format!("{old_ms}-0"), &orders);
    spoiler.run(&[
        "MULTI".to_owned(),
        // Ids only grow: the stream is made anew, with a past.
        format!("DEL {stream}"),
        format!("XGROUP CREATE {stream} {group} 0 MKSTREAM"),
        format!("XADD {stream} {old} hello world"),
        format!("XREADGROUP GROUP {group} gone STREAMS {stream} >"),
        "EXEC".to_owned(),
    ]);
    prometheus.wait_for("FlashsaleOrdersWaiting");
    spoiler.run(&[
        "MULTI".to_owned(),
        format!("XCLAIM {orders} {group} gone 0 {old} IDLE 3600000"),
        format!("XDEL {orders} {old}"),
        "EXEC".to_owned(),
    ]);
    prometheus.wait_for("FlashsaleEntriesLost");

    spoiler.run(&[format!("DEL {orders}")]);
    prometheus.wait_for("FlashsaleGroupRecreated");

    // A gate that bears another server's name is closed to everybody.
    spoiler.run(&[format!("HSET {} replid other", spoiler.keys.gate(partition))]);
    let crowd = stack.start(
        "rush",
        &[
            "--url",
            &format!("http://{}", gateway.http_addr()),
            "--sale",
            &sale,
            "--buyers",
            "50",
            "--no-key",
            "--quiet",
        ],
    );
    prometheus.wait_for("FlashsaleGateClosed");
    prometheus.wait_for("FlashsaleAdmissionErrors");
    crowd.kill_9();

    worker.program.kill_9();
    prometheus.wait_for("FlashsaleNoWorker");
    gateway.program.kill_9();
    prometheus.wait_for("FlashsaleNoGateway");
}

/// What promtool, which is not ours, says of a member's metrics.
fn assert_clean_metrics(member: &Member) {
    let text = member.metrics();
    let mut promtool = Command::new(tool("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = promtool.stdin.take().expect("it is piped");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    let done = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{said}");
}

fn group_of(spoiler: &Spoiler<'_>, stream: &str) -> String {
    let answer = spoiler.run(&[format!("XINFO GROUPS {stream}")]);
    let mut lines = answer.lines().skip_while(|line| *line != "name");
    lines.nth(2).expect("a group").to_owned()
}

fn now_ms() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_millis()
}
