//! The classic tutorial: a script decides, the order goes into a bounded queue in this process, and one
//! task behind it writes a row in a transaction of its own. Whoever was told yes and is still in the
//! queue when the process dies, is forgotten.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use flashsale_bootstrap::Settings;
use redis::Script;
use redis::aio::MultiplexedConnection;
use sea_orm::{
    ConnectionTrait as _, Database, DatabaseConnection, Statement, TransactionTrait as _,
};
use secrecy::ExposeSecret as _;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::token::Tokens;

/// Orders that may wait, as in the tutorials.
const QUEUE_MAX: usize = 1_024 * 1_024;

/// Stock and buyers, and nothing of the order itself.
static DECIDE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if (tonumber(redis.call('GET', KEYS[1])) or 0) < 1 then return 1 end
         if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return 2 end
         redis.call('INCRBY', KEYS[1], -1)
         redis.call('SADD', KEYS[2], ARGV[1])
         return 0",
    )
});

/// The tables, which the bench makes.
pub(crate) const TABLES: &str = "
    CREATE TABLE queue_sales (id bigint PRIMARY KEY, stock bigint NOT NULL CHECK (stock >= 0));
    CREATE TABLE queue_orders (id bigint PRIMARY KEY, sale_id bigint NOT NULL, user_id text NOT NULL,
        created timestamptz NOT NULL DEFAULT now(), UNIQUE (sale_id, user_id))";

/// Where the script finds the stock of a sale.
pub(crate) fn stock_key(sale: i64) -> String {
    format!("queue:stock:{sale}")
}

struct Order {
    id: i64,
    sale: i64,
    user: String,
}

#[derive(Clone)]
struct State {
    redis: MultiplexedConnection,
    tokens: Tokens,
    queue: Sender<Order>,
    next_id: Arc<AtomicI64>,
}

pub(super) async fn serve(listen: SocketAddr, workers: usize) -> anyhow::Result<()> {
    let settings = Settings::load()?;
    let client = redis::Client::open(settings.redis.url.expose_secret())?;
    let database = Database::connect(settings.database.url.expose_secret()).await?;
    let (queue, orders) = mpsc::channel(QUEUE_MAX);
    let state = State {
        redis: client.get_multiplexed_async_connection().await?,
        tokens: Tokens::new(&settings)?,
        queue,
        next_id: Arc::new(AtomicI64::new(1)),
    };
    actix_web::rt::spawn(write_rows(database, orders));
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
    sale: web::Path<i64>,
    state: web::Data<State>,
) -> HttpResponse {
    let Some(user) = state.tokens.buyer(&request) else {
        return HttpResponse::Unauthorized().finish();
    };
    let mut redis = state.redis.clone();
    let decided = DECIDE
        .key(stock_key(*sale))
        .key(format!("queue:buyers:{sale}"))
        .arg(user.as_str())
        .invoke_async::<i64>(&mut redis)
        .await;
    match decided {
        Ok(0) => {}
        Ok(_) => return HttpResponse::Conflict().finish(),
        Err(_) => return HttpResponse::ServiceUnavailable().finish(),
    }
    let id = state.next_id.fetch_add(1, Ordering::Relaxed);
    let order = Order { id, sale: *sale, user: user.as_str().to_owned() };
    if state.queue.send(order).await.is_err() {
        return HttpResponse::ServiceUnavailable().finish();
    }
    HttpResponse::Accepted()
        .content_type("application/json")
        .body(format!(r#"{{"order_id":"{id}","sale_id":"{sale}","state":"queued"}}"#))
}

async fn write_rows(database: DatabaseConnection, mut orders: Receiver<Order>) {
    while let Some(order) = orders.recv().await {
        if let Err(error) = write_row(&database, &order).await {
            eprintln!("order {} is lost: {error:#}", order.id);
        }
    }
}

async fn write_row(database: &DatabaseConnection, order: &Order) -> anyhow::Result<()> {
    let backend = database.get_database_backend();
    let transaction = database.begin().await?;
    let take = "UPDATE queue_sales SET stock = stock - 1 WHERE id = $1 AND stock > 0";
    transaction
        .execute_raw(Statement::from_sql_and_values(backend, take, [order.sale.into()]))
        .await?;
    let insert = "INSERT INTO queue_orders (id, sale_id, user_id) VALUES ($1, $2, $3)";
    let values = [order.id.into(), order.sale.into(), order.user.as_str().into()];
    transaction.execute_raw(Statement::from_sql_and_values(backend, insert, values)).await?;
    Ok(transaction.commit().await?)
}
