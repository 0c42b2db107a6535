//! A pool of connections with one EVALSHA a request: the same script, the same check of the token, the
//! same answer as the gateway's; only the way to Redis is the one of most services.

use std::net::SocketAddr;

use actix_web::http::header::{CACHE_CONTROL, LOCATION};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use anyhow::Context as _;
use deadpool_redis::{Config, Pool, Runtime};
use flashsale_bootstrap::Settings;
use flashsale_domain::{EntryId, IdempotencyKey, OrderId, OrderState, Partition, SaleId};
use flashsale_storage_redis::Keys;
use redis::Value;
use secrecy::ExposeSecret as _;
use serde::Serialize;

use super::script;
use super::token::Tokens;

/// Connections: trials with 8, 16 and 32 were alike.
const POOL_MAX: usize = 32;

#[derive(Clone)]
struct State {
    pool: Pool,
    keys: Keys,
    tokens: Tokens,
}

#[derive(Serialize)]
struct Receipt {
    order_id: OrderId,
    sale_id: SaleId,
    state: OrderState,
}

pub(super) async fn serve(listen: SocketAddr, workers: usize) -> anyhow::Result<()> {
    let settings = Settings::load()?;
    let pool = Config::from_url(settings.redis.url.expose_secret())
        .builder()?
        .max_size(POOL_MAX)
        .runtime(Runtime::Tokio1)
        .build()?;
    script::ADMIT.load_async(&mut pool.get().await?).await?;
    let keys = Keys::new(settings.redis.prefix.clone());
    let state = State { pool, keys, tokens: Tokens::new(&settings)? };
    HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(state.clone()))
            .route("/api/v1/sales/{sale}/orders", web::post().to(place))
    })
    .workers(workers)
    .bind(listen)?
    .run()
    .await?;
    Ok(())
}

async fn place(
    request: HttpRequest,
    sale: web::Path<SaleId>,
    state: web::Data<State>,
) -> HttpResponse {
    let Some(user) = state.tokens.buyer(&request) else {
        return HttpResponse::Unauthorized().finish();
    };
    let key = request.headers().get("Idempotency-Key").and_then(|key| key.to_str().ok());
    let digest = key.and_then(|key| IdempotencyKey::new(key).ok()).map(|key| key.digest());
    let digest = digest.as_ref().map_or("", |digest| digest.as_str());
    match admit(&state, *sale, user.as_str(), digest).await {
        Ok(Some(order_id)) => HttpResponse::Accepted()
            .insert_header((LOCATION, format!("/api/v1/orders/{order_id}")))
            .insert_header((CACHE_CONTROL, "no-store"))
            .json(Receipt { order_id, sale_id: *sale, state: OrderState::Queued }),
        // Measured is who gets an order: all other answers are one here.
        Ok(None) => HttpResponse::Conflict().finish(),
        Err(_) => HttpResponse::ServiceUnavailable().finish(),
    }
}

async fn admit(
    state: &State,
    sale: SaleId,
    user: &str,
    digest: &str,
) -> anyhow::Result<Option<OrderId>> {
    let partition = Partition::new(0).context("the only partition")?;
    let mut redis = state.pool.get().await?;
    let reply: Vec<Value> = redis::cmd("EVALSHA")
        .arg(script::head(&state.keys, partition, sale))
        .arg(&script::request(user, digest))
        .query_async(&mut redis)
        .await?;
    let [_, _, _, _, Value::Int(1), entry] = reply.as_slice() else { return Ok(None) };
    let entry: String = redis::from_redis_value(entry.clone())?;
    let entry: EntryId = entry.parse()?;
    Ok(Some(OrderId::from_entry(partition, entry)?))
}
