//! The buyers' API on one screen.

use actix_web::web::{self, ServiceConfig};
use chrono::{DateTime, SecondsFormat, Utc};

use crate::problem::Problem;

pub(crate) mod docs;
pub(crate) mod events;
pub(crate) mod orders;
pub(crate) mod payments;
pub(crate) mod placing;
pub(crate) mod sales;

/// Every path; a method that a path does not have is told which it has.
pub(crate) fn configure(config: &mut ServiceConfig) {
    config
        .service(
            web::resource("/api/v1/sales/{sale}/orders")
                .route(web::post().to(placing::place))
                .default_service(web::to(|| only("POST"))),
        )
        .service(
            web::resource("/api/v1/sales")
                .route(web::get().to(sales::list))
                .route(web::head().to(sales::list))
                .default_service(web::to(|| only("GET, HEAD"))),
        )
        .service(
            web::resource("/api/v1/sales/{sale}")
                .route(web::get().to(sales::show))
                .route(web::head().to(sales::show))
                .default_service(web::to(|| only("GET, HEAD"))),
        )
        .service(
            web::resource("/api/v1/orders")
                .route(web::get().to(orders::list))
                .default_service(web::to(|| only("GET"))),
        )
        .service(
            web::resource("/api/v1/orders/{order}")
                .route(web::get().to(orders::show))
                .default_service(web::to(|| only("GET"))),
        )
        .service(
            web::resource("/api/v1/orders/{order}/events")
                .route(web::get().to(events::order))
                .default_service(web::to(|| only("GET"))),
        )
        .service(
            web::resource("/api/v1/orders/{order}/cancel")
                .route(web::post().to(orders::cancel))
                .default_service(web::to(|| only("POST"))),
        )
        .service(
            web::resource("/api/v1/payments/webhook")
                .route(web::post().to(payments::webhook))
                .default_service(web::to(|| only("POST"))),
        )
        .service(
            web::resource("/api/v1/sales/{sale}/events")
                .route(web::get().to(events::sale))
                .default_service(web::to(|| only("GET"))),
        )
        .service(
            web::resource("/openapi.json")
                .route(web::get().to(docs::document))
                .route(web::head().to(docs::document))
                .default_service(web::to(|| only("GET, HEAD"))),
        )
        .service(
            web::resource("/docs/{path:.*}")
                .route(web::get().to(docs::viewer))
                .route(web::head().to(docs::viewer))
                .default_service(web::to(|| only("GET, HEAD"))),
        )
        .service(
            web::resource(["/", "/docs"])
                .route(web::get().to(docs::to_viewer))
                .route(web::head().to(docs::to_viewer))
                .default_service(web::to(|| only("GET, HEAD"))),
        )
        .default_service(web::to(|| async { Err::<&str, _>(Problem::NotFound) }));
}

/// What a path says to a method that it does not have.
pub(crate) async fn only(methods: &'static str) -> Result<&'static str, Problem> {
    Err(Problem::MethodNotAllowed(methods))
}

/// A time as the API writes it: RFC 3339, UTC, milliseconds.
pub(crate) fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// A stored time; out of range only if somebody wrote nonsense into the database.
pub(crate) fn time_of(ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(ms).unwrap_or(DateTime::UNIX_EPOCH)
}
