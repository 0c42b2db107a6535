//! The operators' API: who may use it, a sale's life in it, and what it refuses.

use flashsale_gateway::operators_document;
use flashsale_test_support::eventually;
use jsonwebtoken::{Algorithm, EncodingKey};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, SECRET, SOON, TestApp, claims, send, sign, token};

pub(crate) fn operator() -> String {
    let key = EncodingKey::from_secret(SECRET.as_bytes()).expect("a secret");
    let mut claims = claims("an operator");
    claims["role"] = json!("admin");
    sign(Algorithm::HS256, &key, &claims)
}

/// Asks the operators' port, as an operator.
pub(crate) async fn ask(app: &TestApp, method: Method, path: &str, body: Option<Value>) -> Answer {
    ask_as(app, method, path, Some(&operator()), body).await
}

async fn ask_as(
    app: &TestApp,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Option<Value>,
) -> Answer {
    let mut request = app.client.request(method, format!("http://{}{path}", app.at.admin));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    send(match body {
        Some(body) => request.json(&body),
        None => request,
    })
    .await
}

pub(crate) async fn get(app: &TestApp, path: &str) -> Answer {
    ask(app, Method::GET, path, None).await
}

pub(crate) async fn post(app: &TestApp, path: &str, body: Value) -> Answer {
    ask(app, Method::POST, path, Some(body)).await
}

async fn stock(app: &TestApp, sale: &str, key: &str, body: Value) -> Answer {
    let path = format!("http://{}/admin/v1/sales/{sale}/stock", app.at.admin);
    let request = app.client.post(path).bearer_auth(operator()).header("Idempotency-Key", key);
    send(request.json(&body)).await
}

/// Every call of the operators' document.
fn calls() -> Vec<(Method, String)> {
    let document = serde_json::to_value(operators_document()).expect("is JSON");
    let paths = document["paths"].as_object().expect("has paths");
    let methods = |item: &Value| -> Vec<Method> {
        let names = item.as_object().expect("has methods").keys();
        names.map(|name| name.to_uppercase().parse().expect("a method")).collect()
    };
    let calls = paths.iter().flat_map(|(path, item)| {
        methods(item).into_iter().map(move |method| (method, path.clone()))
    });
    calls.collect()
}

#[tokio::test]
async fn the_operators_document_is_served_on_their_port_and_names_exactly_their_calls() {
    let app = TestApp::spawn().await;
    let document = app.admin("/openapi.json").await.body;
    assert_eq!(document, serde_json::to_value(operators_document()).expect("is JSON"));
    let told: Vec<String> =
        calls().iter().map(|(method, path)| format!("{method} {path}")).collect();
    let expected = [
        "GET /admin/v1/audit-log",
        "GET /admin/v1/dead-letters",
        "POST /admin/v1/dead-letters/{id}/reject",
        "POST /admin/v1/dead-letters/{id}/requeue",
        "GET /admin/v1/orders",
        "GET /admin/v1/sales",
        "POST /admin/v1/sales",
        "GET /admin/v1/sales/{id}",
        "PATCH /admin/v1/sales/{id}",
        "POST /admin/v1/sales/{id}/close",
        "GET /admin/v1/sales/{id}/ledger",
        "POST /admin/v1/sales/{id}/pause",
        "POST /admin/v1/sales/{id}/publish",
        "POST /admin/v1/sales/{id}/rebuild",
        "GET /admin/v1/sales/{id}/report",
        "POST /admin/v1/sales/{id}/resume",
        "POST /admin/v1/sales/{id}/stock",
        "GET /admin/v1/workers",
    ];
    assert_eq!(told, expected);
    for (path, item) in document["paths"].as_object().expect("has paths") {
        for (method, call) in item.as_object().expect("has methods") {
            assert!(call["security"].is_array(), "{method} {path}");
            for status in ["401", "403", "503"] {
                assert!(call["responses"].get(status).is_some(), "{method} {path}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn every_call_needs_an_operator_and_stands_on_his_port_alone() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    for (method, path) in calls() {
        let path = path.replace("{id}", &sale.to_string());
        let what = format!("{method} {path}");
        let ask =
            async |token: Option<&str>| ask_as(&app, method.clone(), &path, token, None).await;
        assert_eq!(ask(None).await.problem(), (401, "unauthorized"), "{what}");
        assert_eq!(ask(Some(&token("alice"))).await.problem(), (403, "forbidden"), "{what}");
        let buyers = app.request(method.clone(), &path).bearer_auth(operator());
        assert_eq!(send(buyers).await.status, 404, "{what}: the buyers' port has no such path");
        let other = ask_as(&app, Method::DELETE, &path, Some(&operator()), None).await;
        assert_eq!(other.problem(), (405, "method-not-allowed"), "{what}");
        let allowed = other.header("allow").expect("says what is allowed").to_owned();
        assert!(allowed.split(", ").any(|name| name == method.as_str()), "{what}: {allowed}");
    }
    assert_eq!(get(&app, "/admin/v1/sale").await.problem(), (404, "not-found"));
    assert_eq!(app.operations.get_sale(sale).await.expect("a sale").state.as_str(), "published");
    for unknown in ["4711", "x", "-1"] {
        for (method, path) in calls().into_iter().filter(|(_, path)| path.contains("sales/{id}")) {
            let path = path.replace("{id}", unknown);
            let answer = if path.ends_with("/stock") {
                stock(&app, unknown, "k", json!({ "delta": 1, "reason": "r" })).await
            } else {
                let body = (method == Method::PATCH).then(|| json!({ "title": "T" }));
                ask(&app, method.clone(), &path, body).await
            };
            assert_eq!(answer.problem(), (404, "sale-not-found"), "{method} {path}");
        }
    }
    let problem = ask_as(&app, Method::GET, "/admin/v1/workers", None, None);
    assert_eq!(problem.await.body["title"], "Please sign in");
    let chinese = app.client.get(format!("http://{}/admin/v1/workers", app.at.admin));
    let chinese = send(chinese.header("Accept-Language", "zh-CN")).await;
    assert_eq!(chinese.body["title"], "请先登录");
}

/// A description of a sale that is open now.
fn draft() -> Value {
    json!({ "title": "Ticket", "stock": 10, "opens_at": "2024-01-01T08:00:00+08:00",
            "closes_at": "2090-01-01T00:00:00Z" })
}

#[tokio::test]
async fn a_sale_goes_through_its_life_and_each_step_names_its_operator() {
    let app = TestApp::spawn().await;
    let _worker = app.start_worker().await;
    let created = post(&app, "/admin/v1/sales", draft()).await;
    assert_eq!(created.status, 201, "{created:?}");
    let id = created.body["sale_id"].as_str().expect("an id").to_owned();
    assert_eq!(
        created.body,
        json!({ "sale_id": id, "title": "Ticket", "mode": "queued", "state": "draft",
                "stock_total": 10, "stock_left": 10, "opens_at": "2024-01-01T00:00:00.000Z",
                "closes_at": "2090-01-01T00:00:00.000Z", "per_buyer": 1,
                "price": { "amount": 0, "currency": "CNY" }, "payment_window_s": 900,
                "late_payment": "reacquire", "partition": null, "epoch": 1 })
    );
    let at = created.header("location").expect("says where").to_owned();
    assert_eq!(at, format!("/admin/v1/sales/{id}"));
    assert_eq!(get(&app, &at).await.body, created.body);
    assert_eq!(get(&app, "/admin/v1/sales").await.body["sales"][0], created.body);
    assert_eq!(app.get(&format!("/api/v1/sales/{id}")).await.status, 404, "buyers see no draft");

    let edit = json!({ "title": "Voucher", "closes_at": "2089-01-01T00:00:00Z", "per_buyer": 2,
                       "price": { "amount": 9900, "currency": "EUR" }, "payment_window_s": 60,
                       "late_payment": "refund" });
    let edited = ask(&app, Method::PATCH, &at, Some(edit.clone())).await.body;
    for (field, value) in edit.as_object().expect("an object") {
        let value = if field == "closes_at" { &json!("2089-01-01T00:00:00.000Z") } else { value };
        assert_eq!(edited[field], *value, "{field}");
    }
    assert_eq!(edited["opens_at"], "2024-01-01T00:00:00.000Z");

    let step = async |what: &str, state: &str| {
        let answer = ask(&app, Method::POST, &format!("{at}/{what}"), None).await;
        assert_eq!(
            (answer.status, &answer.body["state"]),
            (200, &json!(state)),
            "{what}: {answer:?}"
        );
    };
    step("publish", "published").await;
    step("publish", "published").await;
    for _ in 0..2 {
        let grown = stock(&app, &id, "key-1", json!({ "delta": 5, "reason": "more came" })).await;
        assert_eq!((grown.status, &grown.body["stock_total"]), (200, &json!(15)), "{grown:?}");
    }
    let retitled = ask(&app, Method::PATCH, &at, Some(json!({ "title": "Last tickets" }))).await;
    assert_eq!(retitled.body["title"], "Last tickets");
    eventually(SOON, "buyers read the new title", async || {
        app.get(&format!("/api/v1/sales/{id}")).await.body["title"] == "Last tickets"
    })
    .await;
    step("pause", "paused").await;
    step("resume", "published").await;
    let epoch = get(&app, &at).await.body["epoch"].as_i64().expect("a number");
    let rebuilt = ask(&app, Method::POST, &format!("{at}/rebuild"), None).await;
    assert_eq!((rebuilt.status, &rebuilt.body["partition"]), (200, &json!(0)), "{rebuilt:?}");
    assert_eq!(
        rebuilt.body["sales"],
        json!([{ "sale_id": id, "epoch": epoch + 1, "stock": 15, "held": 0 }])
    );
    let ledger = get(&app, &format!("{at}/ledger")).await.body;
    assert_eq!((&ledger["total"], &ledger["imbalance"]), (&json!(15), &json!(0)));
    step("close", "closed").await;
    step("close", "closed").await;

    let log = get(&app, &format!("/admin/v1/audit-log?subject={id}&actor=an%20operator")).await;
    let lines = log.body["lines"].as_array().expect("lines");
    let told: Vec<&str> = lines.iter().rev().filter_map(|line| line["action"].as_str()).collect();
    assert_eq!(
        told,
        [
            "sale.create",
            "sale.edit",
            "sale.publish",
            "sale.publish",
            "sale.stock",
            "sale.edit",
            "sale.pause",
            "sale.resume",
            "sale.rebuild",
            "sale.close",
            "sale.close",
        ],
        "{log:?}"
    );
    assert_eq!(lines[6]["detail"], "+5 units: more came");

    // The log is read page by page, and by what was done.
    let page = get(&app, "/admin/v1/audit-log?action=sale.close&limit=1").await.body;
    assert_eq!(page["lines"].as_array().map(Vec::len), Some(1));
    let cursor = page["next_cursor"].as_str().expect("one more");
    let next = format!("/admin/v1/audit-log?action=sale.close&limit=1&cursor={cursor}");
    let rest = get(&app, &next).await.body;
    assert_eq!((rest["lines"].as_array().map(Vec::len), rest.get("next_cursor")), (Some(1), None));
    assert_ne!(rest["lines"][0]["id"], page["lines"][0]["id"]);
}

#[tokio::test]
async fn what_is_not_understood_is_told_what_is_allowed() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await.to_string();
    let refuses = |answer: Answer, what: &str| {
        assert_eq!(answer.problem(), (400, "invalid-request"), "{what}: {answer:?}");
        let detail = answer.body["detail"].as_str().expect("says what");
        assert!(detail.contains(what), "{what}: {detail}");
    };
    for (field, value, what) in [
        ("stok", json!(1), "expected one of `title`, `stock`"),
        ("stock", json!("10"), "expected i64"),
        ("stock", json!(0), "stock is a number from 1"),
        ("title", json!(" "), "a title has 1 to 200"),
        ("opens_at", json!("tomorrow"), "opens_at is a time of RFC 3339"),
        ("closes_at", json!("2023-01-01T00:00:00Z"), "a sale closes after it opens"),
        ("mode", json!("both"), "expected `queued` or `direct`"),
        ("price", json!({ "amount": 1, "currency": "cny" }), "three capital letters"),
        ("per_buyer", json!(21), "the limit per buyer"),
    ] {
        let mut body = draft();
        body[field] = value;
        refuses(post(&app, "/admin/v1/sales", body).await, what);
    }
    refuses(post(&app, "/admin/v1/sales", json!({})).await, "missing field `title`");
    let at = format!("/admin/v1/sales/{sale}");
    let patch = async |body: Value| ask(&app, Method::PATCH, &at, Some(body)).await;
    refuses(patch(json!({ "stock": 5 })).await, "expected one of `title`, `opens_at`");
    refuses(patch(json!({})).await, "name at least one field");
    for (body, what) in [
        (json!({ "delta": 0, "reason": "r" }), "other than 0"),
        (json!({ "delta": 1, "reason": "" }), "1 to 200 characters"),
        (json!({ "delta": 1 }), "missing field `reason`"),
        (json!({ "delta": 1, "reason": "r", "key": "k" }), "expected `delta` or `reason`"),
    ] {
        refuses(stock(&app, &sale, "k", body).await, what);
    }
    let keyless = post(&app, &format!("{at}/stock"), json!({ "delta": 1, "reason": "r" })).await;
    refuses(keyless, "send an Idempotency-Key");
    refuses(post(&app, &format!("{at}/pause"), json!({ "until": 1 })).await, "unknown field");
    for (query, what) in [
        ("sales?state=draft", "unknown field"),
        ("workers?partition=0", "unknown field"),
        ("orders?user=a", "expected one of `sale`, `state`, `buyer`"),
        ("orders?limit=1001", "limit is a number from 1 to 1000"),
        ("orders?state=open", "an order's state is one of"),
        ("orders?format=xml", "json or csv"),
        ("orders?format=csv&limit=0", "1 or more"),
        ("orders?sale=x", "a sale's id is a decimal number"),
        ("audit-log?cursor=x", "invalid digit"),
        ("audit-log?actor=%00", "without control characters"),
        ("dead-letters?id=x", "an order's id"),
        ("dead-letters?partition=5000", "no such partition"),
    ] {
        refuses(get(&app, &format!("/admin/v1/{query}")).await, what);
    }
    let form = app.client.patch(format!("http://{}{at}", app.at.admin)).bearer_auth(operator());
    let form = send(form.body("title=T").header("Content-Type", "text/plain")).await;
    assert_eq!(form.problem(), (415, "unsupported-media-type"));
    let long = ask(&app, Method::PATCH, &at, Some(json!({ "title": "x".repeat(20_000) }))).await;
    assert_eq!(long.problem(), (413, "too-large"));
    let lines = get(&app, "/admin/v1/audit-log?actor=an%20operator").await.body;
    assert_eq!(lines, json!({ "lines": [] }), "nothing was changed");
}

#[tokio::test]
async fn what_a_state_does_not_allow_is_refused_with_the_reason() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await.to_string();
    let at = format!("/admin/v1/sales/{sale}");
    let refuses = |answer: Answer, slug: &str, what: &str| {
        assert_eq!(answer.problem(), (409, slug), "{answer:?}");
        let detail = answer.body["detail"].as_str().expect("says why");
        assert!(detail.contains(what), "{detail}");
    };
    let price = json!({ "price": { "amount": 1, "currency": "CNY" } });
    let edited = ask(&app, Method::PATCH, &at, Some(price)).await;
    refuses(edited, "refused", "only the title can be changed");
    let window = json!({ "closes_at": "2089-01-01T00:00:00Z" });
    let edited = ask(&app, Method::PATCH, &at, Some(window)).await;
    refuses(edited, "refused", "only the title can be changed");
    let fewer = stock(&app, &sale, "k", json!({ "delta": -11, "reason": "r" })).await;
    refuses(fewer, "refused", "only 10 units left");
    assert_eq!(stock(&app, &sale, "k", json!({ "delta": -1, "reason": "r" })).await.status, 200);
    let reused = stock(&app, &sale, "k", json!({ "delta": -2, "reason": "r" })).await;
    refuses(reused, "idempotency-key-reused", "take a new key");
    assert_eq!(post(&app, &format!("{at}/close"), json!({})).await.status, 200);
    for what in ["publish", "pause", "resume"] {
        let answer = post(&app, &format!("{at}/{what}"), json!({})).await;
        refuses(answer, "refused", "is closed, and stays so");
    }
    let direct = app.direct_sale(1).await;
    let rebuilt = post(&app, &format!("/admin/v1/sales/{direct}/rebuild"), json!({})).await;
    refuses(rebuilt, "refused", "nothing in Redis to rebuild");
}
