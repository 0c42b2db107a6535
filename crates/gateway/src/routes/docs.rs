//! The API's document, and its viewer.

use std::sync::{Arc, LazyLock};

use actix_web::http::header::{CONTENT_ENCODING, ContentEncoding};
use actix_web::web::{self, Redirect};
use actix_web::{HttpResponse, Responder};
use utoipa::openapi::OpenApi;
use utoipa_swagger_ui::Config;

use crate::openapi::api_document;
use crate::problem::Problem;

static DOCUMENT: LazyLock<OpenApi> = LazyLock::new(api_document);

/// The document in JSON.
pub(crate) async fn document() -> HttpResponse {
    HttpResponse::Ok().json(&*DOCUMENT)
}

/// Leads to the viewer.
pub(crate) async fn to_viewer() -> impl Responder {
    Redirect::to("/docs/")
}

/// A file of the viewer. Served by us and not by the library, whose 404 is no problem body.
pub(crate) async fn viewer(path: web::Path<String>) -> Result<HttpResponse, Problem> {
    let config = Arc::new(Config::from("/openapi.json"));
    let file = utoipa_swagger_ui::serve(&path, config).expect("the viewer's own files are sound");
    let file = file.ok_or(Problem::NotFound)?;
    let mut response = HttpResponse::Ok();
    if file.gzpipped {
        response.insert_header((CONTENT_ENCODING, ContentEncoding::Gzip));
    }
    Ok(response.content_type(file.content_type).body(file.bytes.into_owned()))
}
