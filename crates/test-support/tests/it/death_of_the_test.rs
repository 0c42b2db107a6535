//! The hardest promise: a test process that is killed with SIGKILL leaves nothing behind.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flashsale_test_support::{
    Nginx, PostgresServer, Program, RedisServer, eventually_blocking, temp_dir,
};

use crate::{children_of, is_running};

/// Set for the process that is to be killed: this same test, started once more. It names the file
/// where that process writes what it started.
const VICTIM: &str = "TEST_SUPPORT_VICTIM";

#[test]
fn a_killed_test_process_leaves_no_server_and_no_folder() {
    if let Some(path) = std::env::var_os(VICTIM) {
        be_the_victim(&PathBuf::from(path));
    }

    let directory = temp_dir("victim");
    let report = directory.path().join("report");
    let test = std::env::current_exe().expect("a test has a path");
    let victim = Program::start(
        test,
        &[(VICTIM, report.display().to_string())],
        &[
            "--exact",
            "--nocapture",
            "death_of_the_test::a_killed_test_process_leaves_no_server_and_no_folder",
        ],
    );
    let started = eventually_blocking(Duration::from_secs(60), "the victim's servers", || {
        assert!(victim.exit_status().is_none(), "{}", victim.log());
        std::fs::read_to_string(&report).ok()
    });
    let mut lines = started.lines();
    let folder = PathBuf::from(lines.next().expect("the first line is the folder"));
    let pids: Vec<u32> = lines.map(|pid| pid.parse().expect("the other lines are pids")).collect();
    assert!(folder.exists());
    assert!(pids.len() > 5, "redis, a program, PostgreSQL and nginx with their children");
    assert!(pids.iter().all(|&pid| is_running(pid)));

    victim.kill_9();

    eventually_blocking(Duration::from_secs(30), "the end of all it started", || {
        pids.iter().all(|&pid| !is_running(pid))
    });
    eventually_blocking(Duration::from_secs(30), "the removal of its folder", || !folder.exists());
}

fn be_the_victim(report: &Path) -> ! {
    let program = Program::start("/bin/sleep", &[], &["1000"]);
    let redis = RedisServer::shared();
    let postgres = PostgresServer::shared();
    let shipped = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/nginx");
    let nginx = Nginx::builder(shipped).gateway("127.0.0.1:9").start();
    let folder = redis.directory().parent().expect("all folders lie below one of the process");

    let mut text = format!("{}\n", folder.display());
    let mut pids = vec![program.pid(), redis.pid(), postgres.pid(), nginx.pid()];
    pids.extend(children_of(postgres.pid()));
    pids.extend(children_of(nginx.pid()));
    for pid in pids {
        text.push_str(&format!("{pid}\n"));
    }
    // Renamed into place, so that the other process never reads half of it.
    let draft = report.with_extension("draft");
    std::fs::write(&draft, text).expect("the report can be written");
    std::fs::rename(&draft, report).expect("the report can be renamed");
    loop {
        std::thread::park();
    }
}
