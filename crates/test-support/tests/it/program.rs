//! Programs: their log, their environment, their signals and their end.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use flashsale_test_support::{Program, binary, eventually_blocking};

use crate::is_running;

const SOON: Duration = Duration::from_secs(10);

fn shell(script: &str, envs: &[(&str, String)]) -> Program {
    Program::start("/bin/sh", envs, &["-c", script])
}

#[test]
fn output_and_errors_are_in_the_log_in_order() {
    let program = shell("echo one; echo $COLOUR >&2; exit 3", &[("COLOUR", "red".to_owned())]);
    let status = program.wait_exit(SOON).expect("the shell ends");
    assert_eq!(status.code(), Some(3));
    assert_eq!(program.exit_status(), Some(status));
    assert_eq!(program.log(), "one\nred\n");
}

#[test]
fn a_program_runs_in_a_folder_of_its_own() {
    let program = shell("pwd", &[]);
    program.wait_exit(SOON).expect("the shell ends");
    let folder = program.log().trim().to_owned();
    assert!(folder.contains("flashsale-test-"), "{folder}");
    drop(program);
    assert!(!std::path::Path::new(&folder).exists());
}

#[test]
fn a_program_can_be_asked_to_end() {
    let program = shell("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done", &[]);
    eventually_blocking(SOON, "the trap", || program.log().contains("up"));
    assert!(program.wait_exit(Duration::ZERO).is_none());
    program.terminate();
    assert!(program.wait_exit(SOON).expect("the shell ends").success());
    assert_eq!(program.log(), "up\nbye\n");
}

#[test]
fn a_paused_program_does_nothing_until_it_is_resumed() {
    let program = shell("while :; do echo tick; sleep 0.01; done", &[]);
    eventually_blocking(SOON, "the first tick", || !program.log().is_empty());
    program.pause();
    eventually_blocking(SOON, "the stop", || state(program.pid()) == Some('T'));
    let log = program.log();
    // Long enough for several ticks; that nothing happens cannot be waited for.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(program.log(), log);
    program.resume();
    eventually_blocking(SOON, "the next tick", || program.log() != log);
}

#[test]
fn a_killed_program_says_so_and_a_dropped_one_is_gone() {
    let program = shell("exec sleep 1000", &[]);
    program.kill_9();
    let status = program.exit_status().expect("it was killed");
    assert_eq!(status.signal(), Some(9));

    let program = shell("exec sleep 1000", &[]);
    let pid = program.pid();
    assert!(is_running(pid));
    drop(program);
    assert!(!is_running(pid));
}

#[test]
fn a_missing_program_is_an_error_and_not_a_line_in_a_log() {
    let error =
        Program::builder("/no/such/program").try_start().err().expect("there is no such program");
    assert_eq!(error.to_string(), "cannot start /no/such/program: no such file");
}

#[test]
#[should_panic(expected = "run `cargo build --workspace --bins")]
fn a_program_that_is_not_built_says_how_to_build_it() {
    binary("no-such-program");
}

fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}
