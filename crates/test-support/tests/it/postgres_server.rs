//! PostgreSQL: databases of one's own, a kill with recovery, and what is left after a drop.

use std::net::TcpStream;
use std::time::Duration;

use flashsale_test_support::{PostgresServer, eventually_blocking};

use crate::{children_of, is_running};

fn listens(server: &PostgresServer) -> bool {
    TcpStream::connect(("127.0.0.1", server.port())).is_ok()
}

#[test]
fn every_test_gets_a_database_of_its_own_on_the_shared_server() {
    let server = PostgresServer::shared();
    let (first, second) = (server.create_database(), server.create_database());
    assert_ne!(first, second);
    let prefix = server.url("");
    for url in [first, second] {
        assert!(url.starts_with(&prefix), "{url} is not on {prefix}");
    }
}

#[test]
fn a_killed_or_stopped_postgres_comes_back_and_a_dropped_one_leaves_nothing() {
    let server = PostgresServer::start();
    let killed = server.pid();
    let children = children_of(killed);
    assert!(!children.is_empty());

    server.kill_9();
    assert!(!is_running(killed));
    eventually_blocking(Duration::from_secs(5), "the end of the children", || {
        children.iter().all(|&child| !is_running(child))
    });
    assert!(!listens(&server));

    server.start_again();
    assert_ne!(server.pid(), killed);
    server.create_database();

    server.pause();
    server.resume();
    server.create_database();

    server.stop();
    assert!(!listens(&server));
    server.start_again();
    server.create_database();

    let (pid, children) = (server.pid(), children_of(server.pid()));
    drop(server);
    assert!(!is_running(pid));
    assert!(children.iter().all(|&child| !is_running(child)));
}
