//! The limit of an HTTP server here: the same library, as many threads, and an answer of the same size
//! that nothing was done for.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use actix_web::{App, HttpResponse, HttpServer, web};

/// Order ids differ, because `rush` would take the same one twice for a contradiction.
static NEXT: AtomicU64 = AtomicU64::new(385_646_094_744_289_281);

pub(super) async fn serve(listen: SocketAddr, workers: usize) -> anyhow::Result<()> {
    HttpServer::new(|| App::new().route("/api/v1/sales/{sale}/orders", web::post().to(answer)))
        .workers(workers)
        .bind(listen)?
        .run()
        .await?;
    Ok(())
}

async fn answer() -> HttpResponse {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    HttpResponse::Accepted()
        .content_type("application/json")
        .body(format!(r#"{{"order_id":"{id}","sale_id":"1","state":"queued"}}"#))
}
