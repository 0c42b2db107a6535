//! The admin listener: probes, metrics, and whatever else a program puts beside them.
//!
//! Rule: it has a thread of its own, so that it still answers when the program is at its limit, and
//! it is never published: the probes and metrics ask for no token.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{App, HttpResponse, HttpServer};
use anyhow::Context;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::{Readiness, Shutdown, telemetry};

/// Probes and scrapes take milliseconds; nobody should wait for a stuck one.
const DRAIN_SECONDS: u64 = 1;

/// A bound admin listener that does not answer yet.
pub struct AdminServer {
    listener: TcpListener,
    local_addr: SocketAddr,
    readiness: Readiness,
    metrics: PrometheusHandle,
    configure: Arc<dyn Fn(&mut ServiceConfig) + Send + Sync>,
}

impl AdminServer {
    /// Binds, so that a taken port stops the start. `configure` adds routes; `|_| ()` adds none.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn bind(
        listen: SocketAddr,
        readiness: Readiness,
        metrics: PrometheusHandle,
        configure: impl Fn(&mut ServiceConfig) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(listen)
            .with_context(|| format!("admin.listen: cannot listen on {listen}"))?;
        let local_addr = listener.local_addr().context("admin.listen: no local address")?;
        Ok(Self { listener, local_addr, readiness, metrics, configure: Arc::new(configure) })
    }

    /// Where it listens; tells the port when port 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Answers until `shutdown` is requested. To be probed and scraped during a drain, hand in a
    /// [`Shutdown`] that is requested only after the drain.
    ///
    /// # Errors
    /// The server cannot start, or its thread broke down.
    pub async fn run(self, shutdown: Shutdown) -> anyhow::Result<()> {
        let Self { listener, readiness, metrics, configure, local_addr } = self;
        let upkeep = telemetry::keep_up(metrics.clone());
        let server = HttpServer::new(move || {
            App::new()
                .app_data(Data::new(readiness.clone()))
                .app_data(Data::new(metrics.clone()))
                .route("/livez", web::get().to(livez))
                .route("/readyz", web::get().to(readyz))
                .route("/metrics", web::get().to(render_metrics))
                .configure(|routes| configure(routes))
        })
        .workers(1)
        .shutdown_timeout(DRAIN_SECONDS)
        .disable_signals()
        .listen(listener)
        .with_context(|| format!("admin.listen: cannot listen on {local_addr}"))?
        .run();

        // Not `HttpServer::shutdown_signal`: it also stops an actix `System` that others may share.
        let handle = server.handle();
        let stop = async {
            shutdown.requested().await;
            handle.stop(true).await;
            // What ends `run` is the server, once its connections are done.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = server => ended.context("the admin listener broke down"),
            () = stop => Ok(()),
            () = upkeep => Ok(()),
        }
    }
}

async fn livez() -> &'static str {
    "ok"
}

async fn readyz(readiness: Data<Readiness>) -> HttpResponse {
    let report = readiness.report();
    let mut answer =
        if report.ready { HttpResponse::Ok() } else { HttpResponse::ServiceUnavailable() };
    answer.json(report)
}

async fn render_metrics(metrics: Data<PrometheusHandle>) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/plain; version=0.0.4; charset=utf-8")
        .body(metrics.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    }

    #[tokio::test]
    async fn it_answers_until_shutdown() {
        let readiness = Readiness::new();
        readiness.register("redis");
        let server = AdminServer::bind(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            readiness.clone(),
            telemetry::init_metrics().expect("recorder"),
            |routes| {
                routes.route("/extra", web::get().to(async || "extra"));
            },
        )
        .expect("bind");
        let address = server.local_addr();
        let shutdown = Shutdown::new();
        let running = tokio::spawn(server.run(shutdown.clone()));

        let not_ready = get(address, "/readyz").await;
        readiness.set_ok("redis");
        let ready = get(address, "/readyz").await;
        for (answer, status, body) in [
            (get(address, "/livez").await, "200", "ok"),
            (not_ready, "503", r#"{"ready":false,"checks":{"redis":"not checked yet"}}"#),
            (ready, "200", r#"{"ready":true,"checks":{"redis":"ok"}}"#),
            (get(address, "/metrics").await, "200", "flashsale_build_info{"),
            (get(address, "/extra").await, "200", "extra"),
            (get(address, "/other").await, "404", ""),
        ] {
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(answer.contains(body), "{answer}");
        }

        shutdown.request();
        running.await.expect("no panic").expect("a clean end");
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    }
}
