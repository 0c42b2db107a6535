//! `salectl doctor`: what it prints, and its exit code.

use crate::stand::Stand;

#[test]
fn the_doctor_names_what_is_wrong_and_exits_1() {
    let stand = Stand::sqlite();
    // SQLite, and a Redis without a file.
    let ran = stand.run(&["--json", "doctor"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    let found: serde_json::Value = serde_json::from_str(&ran.stdout).expect("is JSON");
    assert_eq!(found["healthy"], false);
    let checks = found["checks"].as_array().expect("a list");
    let find = |name: &str| checks.iter().find(|check| check["name"] == name).expect("is there");
    assert_eq!(
        (&find("aof")["status"], &find("aof")["unsafe"]),
        (&"failure".into(), &"aof-off".into())
    );
    assert_eq!(find("database")["unsafe"], "sqlite");
    assert_eq!(find("acl")["status"], "ok");
    assert_eq!(find("acl")["unsafe"], serde_json::Value::Null);

    let ran = stand.run(&["doctor"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("set appendonly yes [aof-off]"), "{}", ran.stdout);
    assert!(ran.stdout.lines().count() == checks.len(), "one line each: {}", ran.stdout);
}

#[test]
fn warnings_alone_exit_0_and_a_store_that_is_away_shows_no_password() {
    let server = flashsale_test_support::RedisServer::builder().append_only(true).start();
    let stand = Stand::postgres().with("FLASHSALE__REDIS__URL", &server.url());
    let printed = stand.ok(&["doctor"]);
    assert!(printed.contains("WARNING") && !printed.contains("FAILURE"), "{printed}");

    let away = Stand::sqlite().with("FLASHSALE__REDIS__URL", "redis://:hush@127.0.0.1:1");
    let ran = away.run(&["doctor"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("see that it runs") && !ran.stdout.contains("hush"), "{ran:?}");
}
