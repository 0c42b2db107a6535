//! The API's document, OpenAPI 3.1, made from the handlers and their types.

use utoipa::openapi::RefOr;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::operators;
use crate::problem::ProblemBody;
use crate::routes::{events, orders, payments, placing, sales};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Flashsale: buyers' API",
        description = "A limited stock, a crowd, a few seconds. Place an order, follow it, list \
                       your own. Ids are strings, times are RFC 3339 in UTC, money is minor units \
                       and an ISO 4217 currency. Problems are RFC 9457; their titles follow \
                       Accept-Language (en, zh-CN). Besides those listed with each call: a path \
                       that is none is answered `not-found` (404), a method that a path does not \
                       have `method-not-allowed` (405), and a request line with headers above the \
                       limit `too-large` (431).",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        sales::list,
        sales::show,
        events::sale,
        placing::place,
        orders::show,
        events::order,
        orders::list,
        orders::cancel,
        payments::webhook,
    ),
    modifiers(&Bearer, &Problems, &Names),
    tags(
        (name = "sales", description = "What is for sale, and when"),
        (name = "orders", description = "Placing, following and cancelling orders"),
        (name = "payments", description = "What the payment provider tells"),
    ),
)]
struct Api;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Flashsale: operators' API",
        description = "On the admin port, for a token with the role `admin`; by the same operations as \
                       `salectl`, whose `--json` says the same. Fields and parameters that are not \
                       known are refused, with those that there are. Each change is a line of the \
                       audit log with the token's `sub`. Besides the problems listed with each call: \
                       `not-found` (404) for a path that is none, and `method-not-allowed` (405).",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        operators::sales::list,
        operators::sales::create,
        operators::sales::show,
        operators::sales::edit,
        operators::states::publish,
        operators::states::pause,
        operators::states::resume,
        operators::states::close,
        operators::states::rebuild,
        operators::sales::stock,
        operators::reports::ledger,
        operators::reports::report,
        operators::orders::list,
        operators::dead_letters::list,
        operators::dead_letters::requeue,
        operators::dead_letters::reject,
        operators::workers::list,
        operators::audit_log::list,
    ),
    components(schemas(ProblemBody)),
    modifiers(&Bearer, &Problems, &Names),
    tags(
        (name = "sales", description = "What is sold, and where every unit is"),
        (name = "orders", description = "Orders of all buyers"),
        (name = "dead-letters", description = "Entries that are set aside until an operator decides"),
        (name = "workers", description = "Who makes rows of orders, and what waits for them"),
        (name = "audit-log", description = "Who did what"),
    ),
)]
struct OperatorsApi;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("JWT")
            .description(Some(
                "A token whose `sub` is the buyer, or the operator; `exp` is required",
            ))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

/// Problems are `application/problem+json`, which no handler has to say.
struct Problems;

impl Modify for Problems {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for item in document.paths.paths.values_mut() {
            let calls = [&mut item.get, &mut item.post, &mut item.patch].into_iter().flatten();
            for (status, response) in calls.flat_map(|call| &mut call.responses.responses) {
                if let RefOr::T(response) = response
                    && status.starts_with(['4', '5'])
                    && let Some(content) = response.content.shift_remove("application/json")
                {
                    response.content.insert("application/problem+json".to_owned(), content);
                }
            }
        }
    }
}

/// A call is named by its tag and its handler, because handlers of several tags have one name.
struct Names;

impl Modify for Names {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for item in document.paths.paths.values_mut() {
            for call in [&mut item.get, &mut item.post, &mut item.patch].into_iter().flatten() {
                if let (Some(tags), Some(name)) = (&call.tags, &call.operation_id) {
                    call.operation_id =
                        Some(format!("{}_{name}", tags.join("_")).replace('-', "_"));
                }
            }
        }
    }
}

/// The document of the buyers' API.
pub fn api_document() -> utoipa::openapi::OpenApi {
    Api::openapi()
}

/// The document of the operators' API.
pub fn operators_document() -> utoipa::openapi::OpenApi {
    OperatorsApi::openapi()
}
