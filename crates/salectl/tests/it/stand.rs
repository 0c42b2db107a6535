//! One deployment a test: its own key prefix in the shared Redis, and its own database.

use std::process::{Command, Output};

use flashsale_bootstrap::Settings;
use flashsale_domain::{AdmissionRequest, OrderId, Partition, SaleId, UserId};
use flashsale_operations::connect;
use flashsale_storage_redis::Keys;
use flashsale_test_support::{
    PostgresServer, RedisServer, TempDir, forget_settings, temp_dir, unique,
};
use serde_json::Value;

/// Signs the tokens of a [`Stand`].
pub(crate) const SECRET: &str = "a secret of at least thirty-two bytes";

/// A deployment without programs.
pub(crate) struct Stand {
    prefix: String,
    database_url: String,
    directory: TempDir,
    more: Vec<(String, String)>,
}

/// What one call of `salectl` left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Calls a program, and waits for its end.
    pub(crate) fn of(mut command: Command) -> Self {
        let output: Output = command.output().expect("the program starts");
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("is UTF-8"),
        }
    }
}

impl Stand {
    /// On SQLite, without a schema.
    pub(crate) fn bare() -> Self {
        let directory = temp_dir("salectl");
        let database_url = format!("sqlite://{}", directory.path().join("sales.db").display());
        Self { prefix: unique("salectl"), database_url, directory, more: Vec::new() }
    }

    /// On SQLite, migrated.
    pub(crate) fn sqlite() -> Self {
        let stand = Self::bare();
        stand.ok(&["migrate"]);
        stand
    }

    /// On PostgreSQL, migrated.
    pub(crate) fn postgres() -> Self {
        let database_url = PostgresServer::shared().create_database();
        let stand = Self { database_url, ..Self::bare() };
        stand.ok(&["migrate"]);
        stand
    }

    /// With one more setting; a later one replaces an earlier one.
    pub(crate) fn with(mut self, variable: &str, value: &str) -> Self {
        self.more.push((variable.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn database_url(&self) -> &str {
        &self.database_url
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).expect("a file can be written");
        path.to_str().expect("is UTF-8").to_owned()
    }

    /// What a program of this deployment is started with.
    pub(crate) fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("FLASHSALE__REDIS__URL", RedisServer::shared().url()),
            ("FLASHSALE__REDIS__PREFIX", self.prefix.clone()),
            ("FLASHSALE__DATABASE__URL", self.database_url.clone()),
            ("FLASHSALE__AUTH__JWT_SECRET", SECRET.to_owned()),
        ]
    }

    /// The program with these arguments, ready to be called.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_salectl"));
        forget_settings(&mut command);
        command
            .args(arguments)
            .envs(self.variables())
            .envs(self.more.iter().cloned())
            .current_dir(self.directory.path());
        command
    }

    /// Calls the program.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments))
    }

    /// Calls the program, which must succeed in silence on standard error; returns what it printed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}: {ran:?}");
        ran.stdout
    }

    /// The same with `--json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.ok(&[&["--json"], arguments].concat());
        assert_eq!(printed.lines().count(), 1, "{printed}");
        serde_json::from_str(&printed).expect("is JSON")
    }

    /// Calls the program, which must refuse in one line with the exit code `code`; returns the line.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{arguments:?}: {ran:?}");
        let line = ran.stderr.strip_prefix("salectl: ").expect("says who speaks").trim_end();
        assert_eq!(line.lines().count(), 1, "{line}");
        line.to_owned()
    }

    /// Creates a sale of ten units that is open now, and returns its id.
    pub(crate) fn create(&self) -> String {
        let arguments = ["sale", "create", "--title", "Voucher", "--stock", "10", "--opens", "now"];
        let printed = self.ok(&[&arguments[..], &["--closes", "+1h"]].concat());
        printed.trim_end().to_owned()
    }

    /// Puts a dead letter into the first partition, in its stored form.
    pub(crate) fn set_dead_letter(&self, entry: &str, stored: &str) {
        let partition = Partition::new(0).expect("a partition");
        let client = redis::Client::open(RedisServer::shared().url()).expect("a URL of Redis");
        let mut connection = client.get_connection().expect("Redis answers");
        let () = redis::cmd("HSET")
            .arg(Keys::new(&self.prefix).dead(partition))
            .arg(entry)
            .arg(stored)
            .query(&mut connection)
            .expect("the hash takes it");
    }

    /// Admits a buyer as the gateway does; the order's id.
    pub(crate) fn admit(&self, sale: &str, buyer: &str) -> OrderId {
        let partition = Partition::new(0).expect("a partition");
        let sale: SaleId = sale.parse().expect("a sale's id");
        let user_id = UserId::new(buyer).expect("a buyer's id");
        let env = [
            ("FLASHSALE__REDIS__URL", RedisServer::shared().url()),
            ("FLASHSALE__REDIS__PREFIX", self.prefix.clone()),
        ];
        let env = env.map(|(key, value)| (key.to_owned(), value));
        let settings = Settings::from_sources(None, env).expect("valid settings");
        let redis = connect::redis(&settings).expect("a URL of Redis");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let admitted = runtime.expect("a runtime").block_on(async {
            let mut connection = redis.admission_connection().expect("a connection");
            let press = [AdmissionRequest { user_id, digest: None, traceparent: None }];
            connection.admit(partition, sale, &press).await.expect("answered").outcomes
        });
        admitted[0].as_ref().expect("admitted").order_id
    }

    /// The same, and takes the entry from the stream.
    pub(crate) fn admit_without_entry(&self, sale: &str, buyer: &str) -> String {
        let order_id = self.admit(sale, buyer);
        let key = Keys::new(&self.prefix).orders(order_id.partition());
        self.ask(&["XDEL", &key, &order_id.entry().to_string()]);
        order_id.to_string()
    }

    /// Takes a buyer's record away.
    pub(crate) fn forget_record(&self, sale: &str, buyer: &str) {
        let partition = Partition::new(0).expect("a partition");
        let sale: SaleId = sale.parse().expect("a sale's id");
        self.ask(&["HDEL", &Keys::new(&self.prefix).buyers(partition, sale), buyer]);
    }

    /// Asks Redis something that must change one thing.
    fn ask(&self, words: &[&str]) {
        let client = redis::Client::open(RedisServer::shared().url()).expect("a URL of Redis");
        let mut connection = client.get_connection().expect("Redis answers");
        let changed: i64 =
            redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).expect("Redis does it");
        assert_eq!(changed, 1, "{words:?}");
    }

    /// Moves units in Redis by hand, behind the scripts' backs.
    pub(crate) fn shift_stock(&self, sale: &str, delta: i64) {
        let partition = Partition::new(0).expect("a partition");
        let sale: SaleId = sale.parse().expect("a sale's id");
        let key = Keys::new(&self.prefix).sale(partition, sale);
        let client = redis::Client::open(RedisServer::shared().url()).expect("a URL of Redis");
        let mut connection = client.get_connection().expect("Redis answers");
        let () = redis::cmd("HINCRBY")
            .arg(key)
            .arg("stock")
            .arg(delta)
            .query(&mut connection)
            .expect("the hash takes it");
    }
}
