//! Spans of what is asked of the database, under the span of whoever asks: only where there is one, so
//! that what is not traced costs next to nothing.

use std::time::SystemTime;

use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue, global};
use sea_orm::metric::Info;
use sea_orm::{DatabaseConnection, DbBackend};

/// As in `flashsale_bootstrap::traces`, which this layer does not know.
const TRACER: &str = "flashsale";

/// How much of a statement a span shows, in bytes. Statements hold no values, only their places.
const TEXT_MAX: usize = 1000;

/// Has a span made of each statement that is asked through this connection from now on.
pub(crate) fn watch(connection: &mut DatabaseConnection) {
    connection.set_metric_callback(record);
}

fn record(asked: &Info<'_>) {
    if !is_traced() {
        return;
    }
    let ended = SystemTime::now();
    let sql = asked.statement.sql.as_str();
    let mut span = start(summary(sql), ended - asked.elapsed);
    span.set_attribute(KeyValue::new("db.system.name", system(asked.statement.db_backend)));
    span.set_attribute(KeyValue::new("db.query.text", beginning(sql)));
    if asked.failed {
        span.set_status(Status::error("the statement failed"));
    }
    span.end_with_timestamp(ended);
}

/// Does what is no statement, such as a COMMIT, under a span of its own.
pub(crate) async fn under<T, E>(
    name: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    if !is_traced() {
        return work.await;
    }
    let mut span = start(name.to_owned(), SystemTime::now());
    let done = work.await;
    if done.is_err() {
        span.set_status(Status::error("it failed"));
    }
    span.end();
    done
}

fn is_traced() -> bool {
    Context::map_current(|context| context.span().is_recording())
}

fn start(name: String, began: SystemTime) -> global::BoxedSpan {
    let tracer = global::tracer(TRACER);
    let span = tracer.span_builder(name).with_kind(SpanKind::Client).with_start_time(began);
    span.start(&tracer)
}

const fn system(backend: DbBackend) -> &'static str {
    match backend {
        DbBackend::Postgres => "postgresql",
        DbBackend::MySql => "mysql",
        DbBackend::Sqlite => "sqlite",
        _ => "other_sql",
    }
}

/// What a statement does and to which table, as in `INSERT orders`; for others, the verb alone.
fn summary(sql: &str) -> String {
    let mut words = sql.split_ascii_whitespace();
    let verb = words.next().unwrap_or("STATEMENT").to_ascii_uppercase();
    let table = match verb.as_str() {
        "UPDATE" => words.next(),
        "INSERT" => after(words, "INTO"),
        "SELECT" | "DELETE" => after(words, "FROM"),
        _ => None,
    };
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let table = table.map(|word| word.trim_matches(|c: char| !is_of_name(c)));
    match table {
        Some(table) if !table.is_empty() && table.chars().all(is_of_name) => {
            format!("{verb} {table}")
        }
        _ => verb,
    }
}

/// The word after this one, which does not count within parentheses: `extract(epoch from …)`.
fn after<'a>(words: impl Iterator<Item = &'a str>, wanted: &str) -> Option<&'a str> {
    let (mut opened, mut closed, mut is_next) = (0, 0, false);
    for word in words {
        if is_next {
            return Some(word);
        }
        is_next = opened == closed && word.eq_ignore_ascii_case(wanted);
        opened += word.matches('(').count();
        closed += word.matches(')').count();
    }
    None
}

/// On one line.
fn beginning(sql: &str) -> String {
    let mut text = String::with_capacity(TEXT_MAX.min(sql.len()));
    for word in sql.split_ascii_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(word);
        if text.len() >= TEXT_MAX {
            break;
        }
    }
    text.truncate(text.floor_char_boundary(TEXT_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_named_by_what_it_does_to_which_table() {
        for (sql, name) in [
            (r#"INSERT INTO "orders" ("id") VALUES ($1)"#, "INSERT orders"),
            ("insert into orders(id) select 1", "INSERT"),
            (r#"SELECT "id", "epoch" FROM "sales" WHERE "id" IN ($1)"#, "SELECT sales"),
            (r#"SELECT floor(extract(epoch from now()) * 1) AS "n" FROM "sales""#, "SELECT sales"),
            (r#"UPDATE "sales" SET "stock_left" = 1"#, "UPDATE sales"),
            ("DELETE\n FROM outbox", "DELETE outbox"),
            ("SELECT 1", "SELECT"),
            ("PRAGMA foreign_keys", "PRAGMA"),
            ("", "STATEMENT"),
        ] {
            assert_eq!(summary(sql), name, "{sql}");
        }
    }

    #[test]
    fn a_long_statement_is_cut_off_and_stands_on_one_line() {
        assert_eq!(beginning("SELECT\n    1\n"), "SELECT 1");
        assert_eq!(beginning(&"ä".repeat(600)).len(), TEXT_MAX);
        assert_eq!(beginning(&"ab ".repeat(600)).len(), TEXT_MAX);
    }
}
