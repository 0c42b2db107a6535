//! `salectl rebuild` from outside: it says what it waits for, and is quiet when there is nothing.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::stand::Stand;

#[test]
fn a_rebuild_that_waits_says_so_on_standard_error() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    stand.ok(&["sale", "publish", &sale]);
    stand.ok(&["rebuild", &sale]);
    stand.admit(&sale, "alice");
    stand.admit(&sale, "bob");
    let mut command = stand.command(&["rebuild", &sale]);
    let mut rebuild = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut line = String::new();
    let stderr = rebuild.stderr.take().expect("it is piped");
    BufReader::new(stderr).read_line(&mut line).expect("it says something");
    // No worker runs, so that it would wait for its minute.
    rebuild.kill().expect("it still waits");
    rebuild.wait().expect("it ends");
    assert_eq!(line, "salectl: waiting for 2 entries to be applied\n");
}
