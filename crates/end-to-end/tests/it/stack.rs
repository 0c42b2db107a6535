//! A deployment of the real programs, each a process of its own, on a key prefix and a database of
//! the test's own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::ExitStatus;
use std::time::Duration;

use flashsale_domain::OrderId;
use flashsale_storage_redis::{RawEntry, Redis, RedisConfig};
use flashsale_test_support::{
    PostgresServer, Program, ProgramBuilder, RedisServer, TempDir, binary, eventually_blocking,
    free_port, temp_dir, unique,
};
use serde_json::Value;

/// For whatever should happen soon: only a broken program takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(90);

/// Signs the tokens.
pub(crate) const SECRET: &str = "a-secret-of-the-whole-path-tests-0123456789";

/// Part of the database's URL. The private server trusts everybody, so any will do.
pub(crate) const PASSWORD: &str = "hush-hush-4711";

/// Settings and files of one deployment.
pub(crate) struct Stack {
    settings: Vec<(&'static str, String)>,
    directory: TempDir,
}

/// A program that listens.
pub(crate) struct Member {
    pub(crate) program: Program,
    http: u16,
    admin: u16,
}

impl Stack {
    /// On SQLite, migrated.
    pub(crate) fn sqlite() -> Self {
        let directory = temp_dir("stack");
        let url = format!("sqlite://{}", directory.path().join("orders.db").display());
        Self::on(url, directory)
    }

    /// On PostgreSQL, migrated.
    pub(crate) fn postgres() -> Self {
        let url = PostgresServer::shared().create_database();
        let url = url.replace("postgres@", &format!("postgres:{PASSWORD}@"));
        Self::on(url, temp_dir("stack"))
    }

    fn on(database_url: String, directory: TempDir) -> Self {
        let settings = vec![
            ("FLASHSALE__REDIS__URL", RedisServer::shared().url()),
            ("FLASHSALE__REDIS__PREFIX", unique("e2e")),
            ("FLASHSALE__DATABASE__URL", database_url),
            ("FLASHSALE__AUTH__JWT_SECRET", SECRET.to_owned()),
            ("FLASHSALE__CATALOGUE__REFRESH", "20ms".to_owned()),
        ];
        let stack = Self { settings, directory };
        stack.salectl(&["migrate"]);
        stack
    }

    /// With one more setting, for the programs started from now on.
    pub(crate) fn with(mut self, variable: &'static str, value: &str) -> Self {
        self.settings.push((variable, value.to_owned()));
        self
    }

    /// A path for a file of this deployment.
    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("is UTF-8").to_owned()
    }

    /// Starts a gateway, and waits until it is ready.
    pub(crate) fn gateway(&self) -> Member {
        self.member("gateway")
    }

    /// Starts an order-worker, and waits until it is ready.
    pub(crate) fn worker(&self) -> Member {
        self.member("order-worker")
    }

    /// Starts one that has ended again, where it was.
    pub(crate) fn again(&self, name: &str, ended: &Member) -> Member {
        self.member_at(name, ended.http, ended.admin)
    }

    fn member(&self, name: &str) -> Member {
        self.member_at(name, free_port(), free_port())
    }

    /// Starts a gateway or a worker whose log goes where nothing can be written, and waits until it is
    /// ready.
    pub(crate) fn mute(&self, name: &str) -> Member {
        let program = format!("exec '{}' 2> /dev/full", binary(name).display());
        let program = Program::builder("/bin/sh").args(&["-c", &program]);
        self.start_member(name, program, free_port(), free_port())
    }

    fn member_at(&self, name: &str, http: u16, admin: u16) -> Member {
        self.start_member(name, Program::builder(binary(name)), http, admin)
    }

    fn start_member(&self, name: &str, program: ProgramBuilder, http: u16, admin: u16) -> Member {
        let program = program
            .envs(&self.settings)
            .env("FLASHSALE__HTTP__LISTEN", format!("127.0.0.1:{http}"))
            .env("FLASHSALE__ADMIN__LISTEN", format!("127.0.0.1:{admin}"))
            .start();
        let member = Member { program, http, admin };
        eventually_blocking(SOON, &format!("{name} is ready"), || {
            assert!(member.program.exit_status().is_none(), "{}", member.program.log());
            match get(member.admin, "/readyz") {
                Some((200, _)) => Ok(()),
                other => Err(other),
            }
        });
        member
    }

    /// Asks a member by its own `--health`, as a container does; the exit code and what is printed.
    pub(crate) fn health(&self, name: &str, member: &Member) -> (Option<i32>, String) {
        let program = Program::builder(binary(name))
            .envs(&self.settings)
            .env("FLASHSALE__ADMIN__LISTEN", format!("0.0.0.0:{}", member.admin))
            .arg("--health")
            .start();
        (ended(&program).code(), program.log())
    }

    /// Any program of ours, with these settings.
    pub(crate) fn start(&self, name: &str, arguments: &[&str]) -> Program {
        Program::start(binary(name), &self.settings, arguments)
    }

    /// Runs `salectl`, and returns its exit code and what it printed.
    pub(crate) fn try_salectl(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let program = self.start("salectl", arguments);
        (ended(&program).code(), program.log())
    }

    /// Runs `salectl`, which must succeed, and returns what it printed.
    pub(crate) fn salectl(&self, arguments: &[&str]) -> String {
        let (code, printed) = self.try_salectl(arguments);
        assert_eq!(code, Some(0), "salectl {arguments:?}: {printed}");
        printed.trim_end().to_owned()
    }

    /// The same with `--json`.
    pub(crate) fn salectl_json(&self, arguments: &[&str]) -> Value {
        let printed = self.salectl(&[&["--json"], arguments].concat());
        serde_json::from_str(&printed).expect("is JSON")
    }

    /// A published sale that is open now; its id.
    pub(crate) fn open_sale(&self, stock: u32, mode: &str) -> String {
        let stock = stock.to_string();
        let create = ["sale", "create", "--title", "Voucher", "--stock", &stock, "--mode", mode];
        let id = self.salectl(&[&create[..], &["--opens", "now", "--closes", "+1h"]].concat());
        self.salectl(&["sale", "publish", &id]);
        id
    }

    /// Starts a crowd at these gateways; its receipts go to [`Stack::receipts`].
    pub(crate) fn rush(&self, gateways: &[&Member], sale: &str, more: &[&str]) -> Program {
        let ports: Vec<u16> = gateways.iter().map(|gateway| gateway.http).collect();
        self.rush_at(&ports, sale, more)
    }

    /// The same at whatever listens there.
    pub(crate) fn rush_at(&self, ports: &[u16], sale: &str, more: &[&str]) -> Program {
        let urls: Vec<String> =
            ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let receipts = self.receipts();
        let mut arguments = vec!["--json", "--quiet", "--sale", sale, "--receipts", &receipts];
        for url in &urls {
            arguments.extend(["--url", url]);
        }
        arguments.extend(more);
        self.start("rush", &arguments)
    }

    pub(crate) fn receipts(&self) -> String {
        self.path("receipts.csv")
    }

    /// How many orders buyers were told of.
    pub(crate) fn count_receipts(&self) -> usize {
        let text = std::fs::read_to_string(self.receipts()).expect("rush has written it");
        text.lines().count() - 1
    }

    /// Waits until no order of the sale is queued any more; its ledger.
    pub(crate) fn settled(&self, sale: &str) -> Value {
        eventually_blocking(SOON, "nothing is queued", || {
            let ledger = self.salectl_json(&["ledger", sale]);
            if ledger["queued"] == 0 { Ok(ledger) } else { Err(ledger) }
        })
    }

    /// From admission to COMMIT, in milliseconds, of each of the sale's orders.
    pub(crate) fn commit_lags_ms(&self, sale: &str) -> Vec<i64> {
        let url = &self.settings.iter().find(|(name, _)| name.ends_with("DATABASE__URL"));
        let config = flashsale_storage_sql::DatabaseConfig {
            url: url.expect("a database is set").1.clone(),
            max_connections: 1,
            connect_timeout: SOON,
            statement_timeout: SOON,
        };
        let sale = sale.parse().expect("a sale's id");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let rows = runtime.block_on(async {
            let database = flashsale_storage_sql::Database::connect(&config).await?;
            database.list_sale_orders(sale, None, 1_000_000).await
        });
        let rows = rows.expect("the database answers");
        rows.iter()
            .map(|row| {
                let admitted_ms = i64::try_from(row.order.id.entry().ms).expect("fits");
                row.order.committed_ms.expect("it is a row") - admitted_ms
            })
            .collect()
    }

    /// An order's entry on the stream.
    pub(crate) fn entry(&self, order: OrderId) -> RawEntry {
        let setting = |ending: &str| {
            let found = self.settings.iter().find(|(name, _)| name.ends_with(ending));
            found.expect("it is set").1.clone()
        };
        let config = RedisConfig {
            url: setting("REDIS__URL"),
            prefix: setting("REDIS__PREFIX"),
            partitions: 1,
            response_timeout: SOON,
            connect_timeout: SOON,
            pool_max: 1,
        };
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let entry = runtime.block_on(async {
            Redis::new(config)?.find_entry(order.partition(), order.entry()).await
        });
        entry.expect("Redis answers").expect("the order is on the stream")
    }

    /// Requires that the audit, receipts and all, finds nothing.
    pub(crate) fn assert_clean(&self, sale: &str) {
        let receipts = self.receipts();
        let audit = self.salectl_json(&["audit", sale, "--receipts", &receipts]);
        assert_eq!(audit["clean"], true, "{audit}");
        let checked = audit["audits"][0]["receipts_checked"].as_u64().expect("a number");
        assert_eq!(checked, u64::try_from(self.count_receipts()).expect("fits"));
    }
}

impl Member {
    /// Where it listens to buyers.
    pub(crate) fn http_addr(&self) -> String {
        format!("127.0.0.1:{}", self.http)
    }

    /// Where it listens to operators.
    pub(crate) fn admin_addr(&self) -> String {
        format!("127.0.0.1:{}", self.admin)
    }

    /// All its metrics, as Prometheus reads them.
    pub(crate) fn metrics(&self) -> String {
        let (_, answer) = get(self.admin, "/metrics").expect("an answer");
        answer.split_once("\r\n\r\n").expect("head and body").1.to_owned()
    }

    /// The sum of a metric over all its series; 0 while there is none.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, text) = get(self.admin, "/metrics").unwrap_or_default();
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            (series.split('{').next() == Some(name)).then(|| value.parse::<f64>().ok())?
        });
        values.sum()
    }

    /// Waits until the metric is at least so high.
    pub(crate) fn wait_for(&self, name: &str, least: f64) {
        eventually_blocking(SOON, &format!("{name} of {least}"), || {
            let value = self.metric(name);
            if value >= least { Ok(()) } else { Err(value) }
        });
    }

    /// Sends a request to the buyers' port as it stands; the status and the whole answer.
    pub(crate) fn send(&self, request: &str) -> (u16, String) {
        exchange(self.http, request).expect("an answer")
    }

    /// Asks it to end by SIGTERM, and requires exit code 0 within `limit`.
    pub(crate) fn must_end_well(&self, limit: Duration) {
        let status = self.program.wait_exit(limit);
        let log = self.program.log();
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{log}");
    }
}

/// How the program ended.
pub(crate) fn ended(program: &Program) -> ExitStatus {
    program.wait_exit(SOON).unwrap_or_else(|| panic!("it does not end: {}", program.log()))
}

/// What a rush reports, and its exit code.
pub(crate) fn report(rush: &Program) -> (Value, Option<i32>) {
    let code = ended(rush).code();
    let log = rush.log();
    let line = log.lines().find(|line| line.starts_with('{'));
    let report = serde_json::from_str(line.unwrap_or_else(|| panic!("no report: {log}")));
    (report.expect("is JSON"), code)
}

fn get(port: u16, path: &str) -> Option<(u16, String)> {
    exchange(port, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
}

/// Sends a request as it stands; the status and the whole answer.
pub(crate) fn exchange(port: u16, request: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer))
}
