//! Redis: what survives a stop, a kill and a pause, and what is left after a drop.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use flashsale_test_support::{RedisServer, eventually_blocking};

use crate::is_running;

/// One command in Redis's inline form; the first line of the answer.
fn ask(server: &RedisServer, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    if first.starts_with('$') && first != "$-1" {
        return Ok(lines.next().transpose()?.unwrap_or_default());
    }
    Ok(first)
}

fn answer(server: &RedisServer, command: &str) -> String {
    ask(server, command).expect("redis answers")
}

#[test]
fn the_server_that_is_named_is_the_one_that_runs() {
    let named = std::env::var_os("REDIS_SERVER_BIN").map(PathBuf::from);
    let on_path = || {
        let path = std::env::var_os("PATH").expect("a PATH");
        std::env::split_paths(&path).map(|folder| folder.join("redis-server")).find(|p| p.is_file())
    };
    let named = named.or_else(on_path).expect("a redis-server").canonicalize().expect("is there");
    let server = RedisServer::start();
    let runs = std::fs::read_link(format!("/proc/{}/exe", server.pid())).expect("it runs");
    assert_eq!(runs, named);
}

#[test]
fn a_killed_redis_comes_back_empty_on_the_same_port() {
    let server = RedisServer::start();
    assert_eq!(answer(&server, "SET stock 1"), "+OK");
    let (url, pid) = (server.url(), server.pid());

    server.kill_9();
    assert!(!is_running(pid));
    assert!(ask(&server, "PING").is_err());

    server.start_again();
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), pid);
    assert_eq!(answer(&server, "GET stock"), "$-1");
}

#[test]
fn a_stopped_redis_comes_back_with_its_data_as_long_as_its_append_only_file_is_there() {
    let server = RedisServer::builder().append_only(true).start();
    assert_eq!(answer(&server, "SET stock 7"), "+OK");
    server.stop();
    server.start_again();
    assert_eq!(answer(&server, "GET stock"), "7");
    server.stop();
    server.forget();
    server.start_again();
    assert_eq!(answer(&server, "GET stock"), "$-1");
}

#[test]
fn a_redis_above_its_memory_refuses_writes_and_evicts_nothing() {
    let server = RedisServer::builder().max_memory(1).start();
    assert!(answer(&server, "SET stock 1").starts_with("-OOM"));
    assert_eq!(answer(&server, "DBSIZE"), ":0");
}

#[test]
fn any_other_setting_can_be_given() {
    let server = RedisServer::builder().option("databases", "1").start();
    assert!(answer(&server, "SELECT 1").starts_with("-ERR"));
}

#[test]
fn a_paused_redis_is_silent_until_it_is_resumed() {
    let server = RedisServer::start();
    server.pause();
    assert!(ask(&server, "PING").is_err());
    server.resume();
    eventually_blocking(Duration::from_secs(10), "an answer after the pause", || {
        ask(&server, "PING").is_ok_and(|answer| answer == "+PONG")
    });
}

#[test]
fn a_paused_redis_can_be_stopped() {
    let server = RedisServer::start();
    server.pause();
    server.stop();
    assert!(!is_running(server.pid()));
}

#[test]
fn nothing_is_left_of_a_dropped_redis() {
    let server = RedisServer::start();
    let (pid, directory) = (server.pid(), server.directory().to_owned());
    assert!(is_running(pid) && directory.exists());
    drop(server);
    assert!(!is_running(pid));
    assert!(!directory.exists());
}

#[test]
fn the_shared_redis_outlives_the_thread_that_asked_for_it_first() {
    let pid =
        std::thread::spawn(|| RedisServer::shared().pid()).join().expect("the thread ends well");
    // A signal of the thread's death would arrive within this time; there is nothing to wait for.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(RedisServer::shared().pid(), pid);
    assert_eq!(answer(RedisServer::shared(), "PING"), "+PONG");
}

#[test]
fn a_wrong_setting_is_reported_with_what_redis_said() {
    let error = RedisServer::builder()
        .option("no-such-setting", "1")
        .try_start()
        .err()
        .expect("redis refuses an unknown setting");
    assert!(format!("{error:#}").contains("no-such-setting"), "{error:#}");
}
