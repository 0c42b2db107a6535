//! `docs/api.md` against the documents that are made from the handlers: each names the calls that the
//! other one does, with the same parameters.

use std::collections::{BTreeMap, BTreeSet};

use flashsale_gateway::{api_document, operators_document};
use serde_json::Value;

/// A call as `GET /api/v1/orders/{}`, and what may stand in its query.
type Calls = BTreeMap<String, BTreeSet<String>>;

#[test]
fn every_call_of_the_documents_is_written_down_and_no_other() {
    let text = include_str!("../../../../docs/api.md");
    let written = written_calls(text);
    let mut made = Calls::new();
    for document in [api_document(), operators_document()] {
        let document = serde_json::to_value(document).expect("is JSON");
        for (path, item) in document["paths"].as_object().expect("has paths") {
            for (method, call) in item.as_object().expect("has methods") {
                let parameters = call["parameters"].as_array().into_iter().flatten();
                let in_query = parameters.filter(|parameter| parameter["in"] == "query");
                let names = in_query.filter_map(|parameter| parameter["name"].as_str());
                let call = format!("{} {}", method.to_uppercase(), without_names(path));
                made.insert(call, names.map(str::to_owned).collect());
            }
        }
    }
    assert!(made.len() >= 25, "{made:?}");
    let calls = |of: &Calls| of.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(calls(&written), calls(&made), "docs/api.md and the OpenAPI documents");
    for (call, parameters) in made {
        assert_eq!(written[&call], parameters, "the query of {call} in docs/api.md");
    }
}

/// `{sale}` and `{id}` are the same place.
fn without_names(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// The calls that stand between backticks. In one line, `GET`, `PATCH /a/{id}` are two calls of a path,
/// and `POST /a/{id}/pause`, `/resume` are two paths side by side.
fn written_calls(text: &str) -> Calls {
    let mut calls = Calls::new();
    for line in text.lines() {
        let (mut methods, mut last) = (Vec::new(), None::<(String, String)>);
        for span in line.split('`').skip(1).step_by(2) {
            let (first, rest) = span.split_once(' ').unwrap_or((span, ""));
            let is_method = ["GET", "POST", "PATCH"].contains(&first);
            if is_method && rest.is_empty() {
                methods.push(first.to_owned());
            } else if is_method && (rest.starts_with("/api/v1/") || rest.starts_with("/admin/v1/"))
            {
                let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
                let path = without_names(path);
                methods.push(first.to_owned());
                for method in methods.drain(..) {
                    let names = query.split('&').filter_map(|pair| pair.split('=').next());
                    let names = names.filter(|name| !name.is_empty()).map(str::to_owned);
                    calls.entry(format!("{method} {path}")).or_default().extend(names);
                }
                last = Some((first.to_owned(), path));
            } else if let (Some(side), Some((method, path))) = (span.strip_prefix('/'), &last)
                && let Some((parent, _)) = path.rsplit_once('/')
                && !side.contains('/')
                && path.starts_with("/admin/")
            {
                calls.entry(format!("{method} {parent}/{side}")).or_default();
            }
        }
    }
    calls
}

#[test]
fn calls_are_found_however_they_are_written() {
    let text = "`GET /api/v1/a?x=&y=1..3` and `/problems/`, `GET /openapi.json`\n\
                | `GET`, `PATCH /admin/v1/a/{id}`, `POST /admin/v1/a/{id}/stop`, `/go` | `x` |";
    let found: Vec<_> = written_calls(text)
        .into_iter()
        .map(|(call, query)| format!("{call} {}", query.into_iter().collect::<Vec<_>>().join(",")))
        .collect();
    let expected = [
        "GET /admin/v1/a/{} ",
        "GET /api/v1/a x,y",
        "PATCH /admin/v1/a/{} ",
        "POST /admin/v1/a/{}/go ",
        "POST /admin/v1/a/{}/stop ",
    ];
    assert_eq!(found, expected);
    let nothing: Value = serde_json::json!(written_calls("no `POST` at all"));
    assert_eq!(nothing, serde_json::json!({}));
}
