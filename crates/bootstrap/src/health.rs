//! Whether the program of these settings that runs on this machine is ready, asked from outside it: for
//! whoever starts containers and has no HTTP client in them.
//!
//! Rule: it is one question, answered within [`ANSWER_WITHIN`] or no.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What `/readyz` says in its own words, on the admin listener.
///
/// # Errors
/// When it is not ready, or nobody answers: what to tell the operator.
pub(crate) fn ask(admin_listen: SocketAddr) -> Result<String, String> {
    let address = reachable(admin_listen);
    let (head, body) = get_readyz(address)
        .map_err(|error| format!("nobody answers on {address} (admin.listen): {error}"))?;
    if head.starts_with("HTTP/1.1 200 ") { Ok(body) } else { Err(format!("not ready: {body}")) }
}

/// Who listens on every address is reached on the machine's own.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn get_readyz(address: SocketAddr) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok((head.to_owned(), body.to_owned()))
}

#[cfg(test)]
mod tests {
    use actix_web::web::ServiceConfig;

    use super::*;
    use crate::{AdminServer, Readiness, Shutdown, telemetry};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_is_what_the_admin_listener_says() {
        let readiness = Readiness::new();
        readiness.register("redis");
        let server = AdminServer::bind(
            SocketAddr::from(([0, 0, 0, 0], 0)),
            readiness.clone(),
            telemetry::init_metrics().expect("recorder"),
            |_: &mut ServiceConfig| {},
        )
        .expect("bind");
        let address = server.local_addr();
        let shutdown = Shutdown::new();
        let running = tokio::spawn(server.run(shutdown.clone()));
        let question = || tokio::task::block_in_place(|| ask(address));

        let refused = question().expect_err("it is not ready");
        assert!(refused.contains("not ready") && refused.contains("not checked yet"), "{refused}");
        readiness.set_ok("redis");
        assert_eq!(question(), Ok(r#"{"ready":true,"checks":{"redis":"ok"}}"#.to_owned()));

        shutdown.request();
        running.await.expect("no panic").expect("a clean end");
        let refused = question().expect_err("nobody is there");
        assert!(refused.contains("admin.listen"), "{refused}");
    }
}
