//! What the settings accept, refuse, and never show.

use super::*;

const SECRET: &str = "hunter2-hunter2";

fn load(file: &str, env: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    Settings::from_sources(
        Some((PathBuf::from("/etc/flashsale.toml"), file.to_owned())),
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    )
}

fn accept(file: &str, env: &[(&str, &str)]) -> Settings {
    load(file, env).unwrap_or_else(|error| panic!("refused: {error}"))
}

fn refuse(file: &str, env: &[(&str, &str)]) -> SettingsError {
    load(file, env).expect_err("must be refused")
}

fn file_with(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("write");
    file
}

#[test]
fn the_defaults_are_complete_and_allowed() {
    let settings = Settings::from_sources(None, []).expect("the defaults");
    assert_eq!(settings.http.listen, "127.0.0.1:8080".parse().expect("an address"));
    assert_eq!(settings.http.keep_alive, Duration::from_secs(75));
    assert_eq!(settings.redis.prefix, "fs");
    assert_eq!(settings.database.url.expose_secret(), "sqlite://flashsale.db");
    assert_eq!(settings.catalogue.refresh, Duration::from_millis(300));
    assert_eq!(settings.worker.batch, 2000);
    assert_eq!(settings.log.format, LogFormat::Auto);
    assert_eq!(settings.tracing.otlp_endpoint, None);
    assert!((settings.tracing.sample_ratio - 0.01).abs() < f64::EPSILON);
    assert!(settings.payment.webhook_secret.is_none());
    assert!(!settings.auth.secret_is_weak());
    settings.auth.require().expect_err("no key by default");
}

#[test]
fn the_later_source_wins() {
    let file = "[worker]\nbatch = 7\nblock = \"1s\"\n[redis]\n";
    let settings = accept(file, &[("FLASHSALE__WORKER__BATCH", "9"), ("HOME", "/root")]);
    assert_eq!(settings.worker.batch, 9, "environment over file");
    assert_eq!(settings.worker.block, Duration::from_secs(1), "file over defaults");
    assert_eq!(settings.worker.max_deliveries, 5, "the default");
}

#[test]
fn the_named_file_must_be_there() {
    let named = file_with("[worker]\nbatch = 7");
    let read = |path: &str| layers::read_named_file(Some(path.into()));
    let (_, text) = read(named.path().to_str().expect("UTF-8")).expect("readable").expect("named");
    assert_eq!(text, "[worker]\nbatch = 7");
    assert!(read("").expect("not set").is_none());

    let message = read("/no/such/file").expect_err("missing").to_string();
    for part in ["FLASHSALE_CONFIG", "/no/such/file cannot be read", "a readable TOML file"] {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

#[test]
fn an_empty_variable_is_not_set() {
    let settings = accept(
        "[worker]\nbatch = 7",
        &[
            ("FLASHSALE__WORKER__BATCH", ""),
            ("FLASHSALE__WORKER__BATCH__FILE", ""),
            ("FLASHSALE__NO__SUCH", ""),
        ],
    );
    assert_eq!(settings.worker.batch, 7);
}

#[test]
fn secrets_stay_as_they_are_written() {
    for secret in ["0123", "1e3", "true", " x ", "a=b"] {
        let from_env = accept("", &[("FLASHSALE__AUTH__JWT_SECRET", secret)]);
        let mounted = file_with(&format!("{secret}\r\n"));
        let path = mounted.path().to_str().expect("UTF-8");
        let from_file = accept("", &[("FLASHSALE__AUTH__JWT_SECRET__FILE", path)]);
        for settings in [from_env, from_file] {
            let Ok(TokenKey::Secret(kept)) = settings.auth.require() else {
                panic!("{secret:?} was not taken")
            };
            assert_eq!(kept.expose_secret(), secret);
            assert!(settings.auth.secret_is_weak(), "it is short");
        }
    }
}

#[test]
fn a_key_file_is_a_key() {
    let settings = accept("[auth]\njwt_public_key_file = \"/k.pem\"", &[]);
    let Ok(TokenKey::PublicKeyFile(path)) = settings.auth.require() else { panic!("not taken") };
    assert_eq!(path, Path::new("/k.pem"));
}

/// Source → what the message must name: key, origin, problem, what is allowed.
#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        // unknown keys
        (
            "[http]\nlisten_on = \"x\"",
            &[],
            &[
                "http.listen_on (from /etc/flashsale.toml)",
                "did you mean http.listen?",
                "body_limit_bytes",
                "head_limit_bytes",
            ],
        ),
        (
            "[htp]\nlisten = \"x\"",
            &[],
            &["htp.listen", "did you mean http.listen?", "the sections admin"],
        ),
        ("[metrics]", &[], &["metrics (from", "no such setting", "the sections admin"]),
        ("http = 5", &[], &["http (from", "it is a section", "in section http:"]),
        (
            "",
            &[("FLASHSALE__HTTP__LISTEM", "x")],
            &["http.listem (from FLASHSALE__HTTP__LISTEM)", "did you mean http.listen?"],
        ),
        (
            "",
            &[("FLASHSALE__REDIS__PASSWORD__FILE", "x")],
            &["redis.password", "in section redis:"],
        ),
        // wrong types
        (
            "[worker]\nbatch = \"many\"",
            &[],
            &["worker.batch (from /etc/flashsale.toml)", "\"many\"", "1 to 5000"],
        ),
        (
            "[worker]\nbatch = 1.7",
            &[],
            &["worker.batch", "fraction", "whole number from 1 to 5000"],
        ),
        ("[worker]\nbatch = true", &[], &["worker.batch", "a boolean"]),
        ("[worker]\nblock = 2", &[], &["worker.block", "without quotes", "such as 300ms"]),
        (
            "",
            &[("FLASHSALE__WORKER__BLOCK", "2")],
            &["from FLASHSALE__WORKER__BLOCK", "\"2\"", "such as 300ms"],
        ),
        ("[http]\nlisten = \"8080\"", &[], &["http.listen", "\"8080\"", "127.0.0.1:8080"]),
        ("[log]\nformat = \"xml\"", &[], &["log.format", "\"xml\"", "json"]),
        ("[log]\nfilter = \"info,=\"", &[], &["log.filter", "does not parse", "sqlx=warn"]),
        // out of range
        (
            "[redis]\npartitions = 1024",
            &[],
            &["redis.partitions", "1024 is out of range", "1 to 1023"],
        ),
        ("[redis]\npartitions = 70000", &[], &["70000 is out of range"]),
        (
            "[admission]\nbatch_max = 0",
            &[],
            &["admission.batch_max", "0 is out of range", "1 to 1000"],
        ),
        ("[http]\nworkers = -1", &[], &["http.workers", "-1 is out of range"]),
        ("[http]\nbody_timeout = \"0s\"", &[], &["http.body_timeout", "out of range", "100ms"]),
        // To Redis, a wait of nothing is one without an end.
        ("[worker]\nblock = \"0s\"", &[], &["worker.block", "out of range", "10ms to 1m"]),
        ("[worker]\nlinger = \"2s\"", &[], &["worker.linger", "out of range", "0s to 1s"]),
        (
            "[catalogue]\nrefresh = \"2s\"",
            &[],
            &["catalogue.refresh", "\"2s\" is out of range", "to 1s"],
        ),
        ("[redis]\nprefix = \"FS:\"", &[], &["redis.prefix", "\"FS:\"", "1 to 32 characters"]),
        ("[redis]\nprefix = \"\"", &[], &["redis.prefix", "1 to 32 characters"]),
        // more than one key
        (
            "[auth]\njwt_secret = \"x\"\njwt_public_key_file = \"y\"",
            &[],
            &["auth.jwt_secret", "auth.jwt_public_key_file is set too", "one of the two"],
        ),
        (
            "[worker]\nreclaim_idle = \"20s\"",
            &[],
            &["worker.reclaim_idle", "20s is not more than twice", "(10s)", "slow but alive"],
        ),
        (
            "[worker]\nretry_min = \"6s\"",
            &[],
            &["worker.retry_min", "6s is more than worker.retry_max (5s)"],
        ),
        (
            "[admission]\nreplicas = 1\nreplicas_timeout = \"1001ms\"",
            &[],
            &["admission.replicas_timeout", "1s 1ms is more than half", "(2s)", "half of redis"],
        ),
        (
            "profile = \"test\"",
            &[],
            &["profile", "\"test\" is neither", "development or production"],
        ),
        (
            "allow_unsafe = [\"aof-off\", \"everything\"]",
            &[],
            &["allow_unsafe", "no \"everything\" to allow", "aof-off, eviction, acl-missing"],
        ),
        (
            "",
            &[("FLASHSALE__ALLOW_UNSAFE", "aof-off,sqlit")],
            &["allow_unsafe (from FLASHSALE__ALLOW_UNSAFE)", "no \"sqlit\" to allow"],
        ),
        ("allow_unsafe = [1]", &[], &["allow_unsafe", "one of them is a number"]),
        ("[drills]\nallowed = 1", &[], &["drills.allowed", "a number", "true or false"]),
        (
            "",
            &[("FLASHSALE__DRILLS__ALLOWED", "yes")],
            &["drills.allowed (from FLASHSALE__DRILLS__ALLOWED)", "\"yes\" is neither"],
        ),
        (
            "[admission]\nreplicas_confirm = \"tape\"",
            &[],
            &["admission.replicas_confirm", "\"tape\" is neither", "memory or disk"],
        ),
        (
            "[tracing]\notlp_endpoint = \"collector:4318\"",
            &[],
            &["tracing.otlp_endpoint", "there is no ://", "http:// or https://"],
        ),
        (
            "[tracing]\notlp_endpoint = \"grpc://collector:4317\"",
            &[],
            &["tracing.otlp_endpoint", "scheme", "such as http://collector:4318"],
        ),
        (
            "[tracing]\notlp_endpoint = \"https://u:hush@collector\"",
            &[],
            &["tracing.otlp_endpoint", "a user or a password"],
        ),
        (
            "[tracing]\nsample_ratio = 1.5",
            &[],
            &["tracing.sample_ratio", "1.5 is out of range", "from 0 to 1"],
        ),
        (
            "",
            &[("FLASHSALE__TRACING__SAMPLE_RATIO", "1%")],
            &[
                "tracing.sample_ratio (from FLASHSALE__TRACING__SAMPLE_RATIO)",
                "\"1%\" is not a number",
            ],
        ),
        (
            "",
            &[("FLASHSALE__TRACING__SAMPLE_RATIO", "NaN")],
            &["tracing.sample_ratio", "NaN is out of range"],
        ),
        (
            "[tracing]\nincoming_per_second = 10001",
            &[],
            &["tracing.incoming_per_second", "10001 is out of range", "0 to 10000"],
        ),
        // the same key twice, unusable files
        (
            "",
            &[("FLASHSALE__AUTH__JWT_SECRET", "x"), ("FLASHSALE__AUTH__JWT_SECRET__FILE", "/x")],
            &["auth.jwt_secret", "FLASHSALE__AUTH__JWT_SECRET is set too", "only one of"],
        ),
        (
            "",
            &[("FLASHSALE__AUTH__JWT_SECRET__FILE", "/no/such/file")],
            &["auth.jwt_secret (from FLASHSALE__AUTH__JWT_SECRET__FILE)", "cannot be read"],
        ),
        (
            "",
            &[("FLASHSALE__AUTH__JWT_SECRET__FILE", "/dev/null")],
            &["auth.jwt_secret", "is empty"],
        ),
        ("[worker\nbatch = 1", &[], &["/etc/flashsale.toml", "line 1", "--print-defaults"]),
    ];
    for (file, env, expected) in cases {
        let error = refuse(file, env);
        let message = error.to_string();
        assert_eq!(error.problems.len(), 1, "{message}");
        for part in *expected {
            assert!(message.contains(part), "no {part:?} in: {message}");
        }
    }
}

#[test]
fn all_problems_come_at_once() {
    let error = refuse(
        "[http]\nworkers = \"all\"\nport = 1\n[worker]\nretry_min = \"6s\"\nreclaim_idle = \"never\"",
        &[("FLASHSALE__DATABASE__STATEMENT_TIMEOUT", "9m"), ("FLASHSALE__LOG__FORMAT", "xml")],
    );
    let keys: Vec<_> = error.problems.iter().map(|problem| problem.key.as_str()).collect();
    // Nothing is said of reclaim_idle against statement_timeout: the former is no duration at all.
    assert_eq!(
        keys,
        ["http.port", "http.workers", "worker.reclaim_idle", "log.format", "worker.retry_min"]
    );
    assert!(error.to_string().starts_with("5 wrong settings:\n  http.port"));
}

#[test]
fn secrets_are_never_shown() {
    let url = |scheme: &str| format!("{scheme}://user:{SECRET}@host");
    for file in [
        format!("[redis]\nurl = \"{}\"", url("rediss")),
        format!("[redis]\nurl = \"{}\"", url(SECRET)),
        format!("[redis]\nurl = \"{SECRET}\""),
        format!("[database]\nurl = \"{}\"", url("mysql")),
        format!("[auth]\njwt_secret = \"{SECRET}\"\njwt_public_key_file = \"x\""),
        format!("[auth]\njwt_secret = [\"{SECRET}\"]"),
        format!("[auth]\njwt_secret = {SECRET}"),
        format!("[auth]\njwt_secret = \"{SECRET}"),
        format!("[auth]\njwt_secret = \"{SECRET}\" {SECRET}"),
        format!("[auth]\njwt_secret = \"\"\"\n{SECRET}\n\\{SECRET}\n\"\"\""),
        format!("[auth]\njwt_secret = '|'\njwt_secret = \"{SECRET}\""),
        format!("[auth]\nsecret = \"{SECRET}\""),
        format!("[payment]\nwebhook_secret = \"whsec_{SECRET}!\""),
        format!("[webhooks]\nurl = \"ftp://user:{SECRET}@shop\"\nsecret = \"{SECRET}{SECRET}\""),
        format!("[webhooks]\nurl = \"http://user:{SECRET}@shop\""),
    ] {
        let error = refuse(&file, &[]);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let as_path = refuse("", &[("FLASHSALE__PAYMENT__WEBHOOK_SECRET__FILE", SECRET)]);
    assert!(!format!("{as_path} {as_path:?}").contains("hunter2"), "{as_path}");

    let settings = accept(
        "",
        &[
            ("FLASHSALE__REDIS__URL", &url("redis+sentinel")),
            ("FLASHSALE__DATABASE__URL", &url("postgres")),
            ("FLASHSALE__AUTH__JWT_SECRET", SECRET),
            ("FLASHSALE__PAYMENT__WEBHOOK_SECRET", &format!("{SECRET} {SECRET}{SECRET}")),
            ("FLASHSALE__WEBHOOKS__URL", &url("https")),
            ("FLASHSALE__WEBHOOKS__SECRET", &format!("{SECRET}{SECRET}")),
        ],
    );
    let shown = format!("{settings:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn what_is_to_be_borne_is_a_list_in_the_file_and_a_text_in_the_environment() {
    let in_file = "profile = \"production\"\nallow_unsafe = [\"sqlite\", \"aof-off\"]";
    let settings = accept(in_file, &[]);
    assert_eq!(settings.profile, Profile::Production);
    assert_eq!(settings.allow_unsafe, [Risk::Sqlite, Risk::AofOff]);
    let settings = accept("", &[("FLASHSALE__ALLOW_UNSAFE", "no-wal, eviction")]);
    assert_eq!(settings.profile, Profile::Development);
    assert_eq!(settings.allow_unsafe, [Risk::NoWal, Risk::Eviction]);
}

#[test]
fn every_risk_is_named_in_the_defaults() {
    for risk in Risk::ALL {
        assert!(DEFAULTS.contains(risk.name()), "{}", risk.name());
    }
}

#[test]
fn the_clusters_settings_are_allowed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/k8s");
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).expect("settings of a cluster");
    let base = read("base/settings.env");
    for (overlay, profile) in [("dev", Profile::Development), ("production", Profile::Production)] {
        let merged = format!("{base}\n{}", read(&format!("overlays/{overlay}/settings.env")));
        let lines = merged.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let env: Vec<_> = lines.map(|line| line.split_once('=').expect("name and value")).collect();
        assert_eq!(accept("", &env).profile, profile, "{overlay}");
    }
}
