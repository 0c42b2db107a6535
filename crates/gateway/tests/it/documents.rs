//! What is written about the API, and what the operators' port says.

use std::collections::BTreeSet;

use flashsale_gateway::{api_document, operators_document};
use flashsale_test_support::eventually;
use serde_json::Value;

use crate::support::{SOON, TestApp};

#[tokio::test]
async fn the_document_is_served_and_names_exactly_the_routes_that_there_are() {
    let app = TestApp::spawn().await;
    let answer = app.get("/openapi.json").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.body, serde_json::to_value(api_document()).expect("is JSON"));
    let version = answer.body["openapi"].as_str().expect("has a version");
    assert!(version.starts_with("3.1."), "{version}");

    let paths = answer.body["paths"].as_object().expect("has paths");
    let methods = |item: &Value| -> Vec<String> {
        item.as_object().expect("has methods").keys().cloned().collect()
    };
    let named: Vec<(String, Vec<String>)> =
        paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect();
    let expected = [
        ("/api/v1/orders", "get"),
        ("/api/v1/orders/{order}", "get"),
        ("/api/v1/orders/{order}/cancel", "post"),
        ("/api/v1/orders/{order}/events", "get"),
        ("/api/v1/payments/webhook", "post"),
        ("/api/v1/sales", "get"),
        ("/api/v1/sales/{sale}", "get"),
        ("/api/v1/sales/{sale}/events", "get"),
        ("/api/v1/sales/{sale}/orders", "post"),
    ];
    let expected: Vec<_> =
        expected.map(|(path, method)| (path.to_owned(), vec![method.to_owned()])).into();
    assert_eq!(named, expected);
    for (path, methods) in named {
        let path = path.replace("{sale}", "1").replace("{order}", "1");
        let method = methods[0].to_uppercase().parse().expect("a method");
        let answer = crate::support::send(app.request(method, &path)).await;
        assert_ne!(answer.status, 405, "{path}");
        assert!(answer.status == 200 || answer.problem().1 != "not-found", "{path}");
    }
}

#[test]
fn every_problem_that_there_is_is_in_the_document() {
    let documents = [api_document(), operators_document()];
    let document = documents.map(|document| document.to_json().expect("is JSON")).concat();
    let is_slug_char = |c: char| c.is_ascii_lowercase() || c == '-';
    let words: BTreeSet<&str> = document.split(|c| !is_slug_char(c)).collect();
    let slugs = slugs_in_the_code();
    // A guard of the guard: these are surely there.
    for known in ["sold-out", "ended", "not-found", "outcome-unknown", "too-large"] {
        assert!(slugs.contains(known), "{known} was not found in the code: {slugs:?}");
    }
    let missing: Vec<_> = slugs.iter().filter(|slug| !words.contains(**slug)).collect();
    assert!(missing.is_empty(), "not in the document: {missing:?}");
}

/// The text literals in the code's table of problems that look like a slug: titles begin with a
/// capital letter or are Chinese.
fn slugs_in_the_code() -> BTreeSet<&'static str> {
    let code = include_str!("../../src/problem.rs");
    let start = code.find("const fn parts(").expect("the table of problems");
    let table = &code[start..start + code[start..].find("\n    }\n").expect("its end")];
    let literals = table.split('"').skip(1).step_by(2);
    literals.filter(|text| text.chars().all(|c| c.is_ascii_lowercase() || c == '-')).collect()
}

#[test]
fn the_documents_keep_the_rules_of_openapi_where_a_slip_is_easy() {
    for document in [api_document(), operators_document()] {
        let document = serde_json::to_value(document).expect("is JSON");
        let mut names = BTreeSet::new();
        for (path, item) in document["paths"].as_object().expect("has paths") {
            for (method, call) in item.as_object().expect("has methods") {
                let what = format!("{method} {path}");
                assert!(names.insert(call["operationId"].to_string()), "{what}: its name is taken");
                let parameters = call["parameters"].as_array().into_iter().flatten();
                let in_path = parameters.filter(|parameter| parameter["in"] == "path");
                let named: Vec<String> =
                    in_path.map(|parameter| parameter["name"].to_string()).collect();
                let wanted: Vec<String> = path
                    .split('/')
                    .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                    .map(|name| format!("{name:?}"))
                    .collect();
                assert_eq!(named, wanted, "{what}: what is not in the path is in the query");
                for (status, response) in call["responses"].as_object().expect("has responses") {
                    assert!(response["description"].is_string(), "{what}: {status}");
                    let is_problem = response["content"].get("application/problem+json").is_some();
                    assert_eq!(is_problem, status.starts_with(['4', '5']), "{what}: {status}");
                }
            }
        }
    }
}

#[test]
fn the_document_says_how_to_sign_in_and_where_one_must() {
    let document: Value = serde_json::to_value(api_document()).expect("is JSON");
    let scheme = &document["components"]["securitySchemes"]["bearer"];
    assert_eq!((&scheme["type"], &scheme["scheme"]), (&"http".into(), &"bearer".into()));
    for (path, item) in document["paths"].as_object().expect("has paths") {
        for (method, operation) in item.as_object().expect("has methods") {
            let signed_in = operation["security"].is_array();
            assert_eq!(signed_in, path.contains("orders"), "{method} {path}");
            // The webhook is signed in a way of its own.
            let has_401 = operation["responses"].get("401").is_some();
            assert_eq!(has_401, signed_in || path.ends_with("/webhook"), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_viewer_is_found_and_shows_the_document() {
    let app = TestApp::spawn().await;
    for path in ["/docs", "/docs/", "/"] {
        let answer = app.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        let kind = answer.header("content-type").expect("has a type");
        assert!(kind.starts_with("text/html"), "{path}: {kind}");
        assert!(answer.text.contains("swagger-ui"), "{path}");
    }
    let script = app.get("/docs/swagger-initializer.js").await;
    assert!(script.text.contains("/openapi.json"), "{script:?}");
}

#[tokio::test]
async fn the_operators_port_answers_probes_and_metrics() {
    let app = TestApp::spawn().await;
    let sale = app.sale(1).await;
    app.place(sale, "alice").await.receipt();
    assert_eq!(app.place(sale, "bob").await.problem(), (409, "sold-out"));
    assert_eq!(app.admin("/livez").await.status, 200);
    let ready = eventually(SOON, "ready", async || {
        let answer = app.admin("/readyz").await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(ready.body["checks"]["redis"], "ok", "{ready:?}");
    assert_eq!(ready.body["checks"]["catalogue"], "ok", "{ready:?}");

    let metrics = app.admin("/metrics").await;
    assert_eq!(metrics.status, 200);
    for outcome in ["admitted", "sold_out"] {
        let counter = |line: &&str| {
            line.starts_with("flashsale_admissions_total{")
                && line.contains(&format!("sale=\"{sale}\""))
                && line.contains(&format!("outcome=\"{outcome}\""))
        };
        let line = metrics.text.lines().find(counter);
        let count = line.and_then(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        assert!(count >= Some(1), "{outcome}: {line:?}");
    }
    for name in [
        "flashsale_admission_unconfirmed_batches_total",
        "flashsale_redis_pool_connections",
        "flashsale_database_pool_connections",
        "flashsale_admission_seconds_bucket",
        "flashsale_admission_batch_size_bucket",
        "flashsale_admission_queue_depth",
        "flashsale_build_info",
    ] {
        assert!(metrics.text.lines().any(|line| line.starts_with(name)), "{name}");
    }
    // Nothing of a buyer is in a metric.
    assert!(!metrics.text.contains("alice"));
    // And nothing of the buyers' side is on this port.
    assert_eq!(app.admin("/api/v1/sales").await.status, 404);
}
