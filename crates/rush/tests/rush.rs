//! The program from outside: what it prints, and its exit code.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread;

const SECRET: &str = "a secret of at least thirty-two bytes";

fn rush(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rush"))
        .args(arguments)
        .env_remove("FLASHSALE_CONFIG")
        .env("FLASHSALE__AUTH__JWT_SECRET", SECRET)
        .output()
        .expect("the program starts")
}

/// Gives everybody the same order, which is right for one buyer and wrong for two.
fn serve_one_order() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("is bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            thread::spawn(move || {
                let body = r#"{"order_id":"41","sale_id":"7","state":"queued"}"#;
                let length = body.len();
                let answer = format!("HTTP/1.1 202 X\r\ncontent-length: {length}\r\n\r\n{body}");
                // A request comes in one piece here: it is smaller than any segment.
                while stream.read(&mut [0; 4_096]).is_ok_and(|bytes| bytes > 0) {
                    stream.write_all(answer.as_bytes()).expect("the client reads");
                }
            });
        }
    });
    address
}

#[test]
fn a_good_rush_is_one_json_object_and_exit_code_0() {
    let url = format!("http://{}", serve_one_order());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let receipts = folder.path().join("receipts.csv");
    let receipts_argument = receipts.to_str().expect("is UTF-8");
    let output = rush(&[
        "--url",
        &url,
        "--sale",
        "7",
        "--buyers",
        "1",
        "--buyer-prefix",
        "b",
        "--json",
        "--receipts",
        receipts_argument,
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    for (name, value) in [
        ("ok", true.into()),
        ("sale_id", "7".into()),
        ("requests", 1.into()),
        ("accepted", 1.into()),
        ("sold_out", 0.into()),
        ("confirmed", serde_json::Value::Null),
    ] {
        assert_eq!(report[name], value, "{name} in {report}");
    }
    assert!(report["latency_us"]["p999"].is_u64(), "{report}");
    let receipts = std::fs::read_to_string(receipts).expect("was written");
    assert_eq!(receipts, "order_id,buyer\n41,b0\n");
}

#[test]
fn a_contradiction_is_told_and_exit_code_1() {
    let url = format!("http://{}", serve_one_order());
    let output =
        rush(&["--url", &url, "--sale", "7", "--buyers", "2", "--buyer-prefix", "b", "--quiet"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let table = String::from_utf8(output.stdout).expect("is UTF-8");
    assert!(table.contains("the order of b"), "{table}");
    assert!(output.stderr.is_empty(), "quiet");
}

#[test]
fn what_cannot_start_says_why_with_exit_code_2() {
    for (arguments, reason) in [
        (&["--sale", "7"][..], "--url"),
        (&["--url", "https://a.test", "--sale", "7"], "http://"),
        (&["--url", "http://127.0.0.1:1", "--sale", "0"], "--sale"),
        (&["--url", "http://127.0.0.1:1", "--sale", "7"], "cannot connect"),
        (&["--url", "http://127.0.0.1:1", "--sale", "7", "--receipts", "/no/x"], "/no/x"),
    ] {
        let output = rush(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let problem = String::from_utf8(output.stderr).expect("is UTF-8");
        assert!(problem.contains(reason), "{problem}");
    }
}

#[test]
fn the_version_is_printed_with_its_commit() {
    let output = rush(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let version = String::from_utf8(output.stdout).expect("is UTF-8");
    assert!(version.starts_with(concat!("rush ", env!("CARGO_PKG_VERSION"), " (commit ")));
}

#[test]
fn the_built_in_settings_are_printed() {
    let output = rush(&["--print-defaults"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).expect("is UTF-8").contains("jwt_secret"));
}
