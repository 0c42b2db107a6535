//! Upgrades: what was published of the schema stays as it was, a migration only adds, and programs of the
//! version before go on with the schema of the one after. The rules are those of docs/upgrading.md.

use std::collections::BTreeSet;
use std::path::Path;

use flashsale_migrations::Migrator;
use sea_orm_migration::MigratorTrait as _;

use crate::support::{TestDatabase, on_both};

/// Migrations that take something away. Each is allowed in the release after the one whose programs no
/// longer use it, and no earlier.
const CONTRACTS: &[&str] = &[];

/// How the version that made each table writes a row of it, and which migration that is.
const OLD_WRITERS: &[(&str, &str, &str)] = &[
    (
        "m20261130_000001_create_sales",
        "sales",
        "(id, title, mode, state, stock_total, stock_left, opens_ms, closes_ms, per_buyer, \
         price_amount, price_currency, payment_window_s, partition, created_ms, changed_ms) \
         VALUES (1, 'Voucher', 'queued', 'published', 5, 4, 1, 2, 1, 9900, 'CNY', 900, 0, 1, 1)",
    ),
    (
        "m20261130_000002_create_orders",
        "orders",
        "(id, sale_id, user_id, slot, epoch, digest, state, price_amount, price_currency, \
         pay_by_ms, committed_ms) \
         VALUES (1, 1, 'buyer', 1, 1, NULL, 'awaiting_payment', 9900, 'CNY', 2, 1)",
    ),
    (
        "m20261130_000003_create_outbox",
        "outbox",
        "(id, sale_id, partition, order_id, user_id, generation, cause, returns_unit, created_ms) \
         VALUES (1, 1, 0, 1, 'buyer', 1, 'expired', TRUE, 1)",
    ),
    (
        "m20261130_000004_create_audit_log",
        "audit_log",
        "(id, at_ms, actor, action, subject, detail) VALUES (1, 1, 'me', 'sale.publish', '1', '')",
    ),
    (
        "m20261130_000007_create_payments",
        "payments",
        "(id, webhook_id, order_id, amount, currency, outcome, received_ms) \
         VALUES (1, 'message', 1, 9900, 'CNY', 'paid', 1)",
    ),
    (
        "m20261130_000008_create_adjustments",
        "adjustments",
        "(id, sale_id, delta, reason, actor, state, created_ms) \
         VALUES (1, 1, 5, 'a box', 'me', 'pending', 1)",
    ),
    (
        "m20261130_000009_create_events",
        "events",
        "(id, kind, order_id, sale_id, user_id, state, price_amount, price_currency, created_ms, \
         next_ms) VALUES (1, 'order.paid', 1, 1, 'buyer', 'paid', 9900, 'CNY', 1, 1)",
    ),
    (
        "m20261130_000010_create_answers",
        "answers",
        "(sale_id, outcome, count) VALUES (1, 'sold_out', 7)",
    ),
];

/// What the schema consists of, a line each: columns, constraints and indexes on PostgreSQL; on SQLite,
/// which keeps constraints with their table, the statements that make tables and indexes.
async fn objects(database: &TestDatabase) -> BTreeSet<String> {
    let sql = if database.is_postgres() {
        "SELECT concat('column ', table_name, '.', column_name, ' ', data_type, \
           CASE is_nullable WHEN 'NO' THEN ' not null' END, ' default ' || column_default) \
           FROM information_schema.columns \
          WHERE table_schema = 'public' AND table_name <> 'seaql_migrations' \
         UNION ALL SELECT concat('index ', tablename, '.', indexname, ' ', indexdef) \
           FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'seaql_migrations' \
         UNION ALL SELECT concat('constraint ', conrelid::regclass, '.', conname, ' ', \
             pg_get_constraintdef(oid)) \
           FROM pg_constraint WHERE connamespace = 'public'::regnamespace \
            AND contype <> 'n' AND conrelid <> 'seaql_migrations'::regclass"
    } else {
        "SELECT sql FROM sqlite_schema \
          WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND tbl_name <> 'seaql_migrations'"
    };
    database.column::<String>(sql).await.into_iter().collect()
}

/// Every migration by its name, with the schema before and after it.
async fn steps(database: &TestDatabase) -> Vec<(String, BTreeSet<String>, BTreeSet<String>)> {
    database.unmigrate().await.expect("an empty database");
    let mut steps = Vec::new();
    for migration in Migrator::migrations() {
        let before = objects(database).await;
        Migrator::up(&database.raw, Some(1)).await.expect("a migration");
        steps.push((migration.name().to_owned(), before, objects(database).await));
    }
    steps
}

/// A database that was migrated by the published one is not migrated again: a change of it would reach
/// only new databases.
async fn published_migrations_do_what_they_did(database: TestDatabase, golden: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(golden);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut published: Vec<(&str, &str)> =
        text.split("\n== ").skip(1).filter_map(|section| section.split_once('\n')).collect();
    let mut unknown = String::new();
    for (name, before, after) in steps(&database).await {
        let gone = before.difference(&after).map(|line| format!("- {line}\n"));
        let new = after.difference(&before).map(|line| format!("+ {line}\n"));
        let does: String = gone.chain(new).collect();
        match published.iter().position(|(known, _)| *known == name) {
            None => unknown.push_str(&format!("\n== {name}\n{does}")),
            Some(place) => {
                let (_, did) = published.remove(place);
                let changed = "has changed: what is published stays, write a new one";
                assert_eq!(does.trim_end(), did.trim_end(), "{name} {changed}");
            }
        }
    }
    assert!(published.is_empty(), "these migrations are gone: {published:?}");
    assert!(unknown.is_empty(), "a new one? Append to tests/golden/{golden}:\n{unknown}");
}

#[tokio::test]
async fn a_published_migration_never_changes_on_sqlite() {
    published_migrations_do_what_they_did(TestDatabase::sqlite().await, "schema-sqlite.txt").await;
}

#[tokio::test]
async fn a_published_migration_never_changes_on_postgres() {
    let database = TestDatabase::postgres().await;
    published_migrations_do_what_they_did(database, "schema-postgres.txt").await;
}

/// The table of a line of `objects`, of PostgreSQL.
fn table_of(line: &str) -> &str {
    let (_, rest) = line.split_once(' ').expect("a kind");
    rest.split_once('.').expect("table.name").0
}

/// What of a migration programs of the version before would stumble over.
fn breaches(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    let tables: BTreeSet<&str> = before.iter().map(|line| table_of(line)).collect();
    let mut found: Vec<String> =
        before.difference(after).map(|line| format!("takes away or changes: {line}")).collect();
    let added = || after.difference(before).filter(|line| tables.contains(table_of(line)));
    let name = |line: &&String| line.split(['.', ' ']).nth(2).expect("a name").to_owned();
    let columns: Vec<String> =
        added().filter(|line| line.starts_with("column ")).map(|line| name(&line)).collect();
    for line in added() {
        let is_filled = !line.contains(" not null") || line.contains(" default ");
        let is_rule = line.starts_with("constraint ") || line.contains(" UNIQUE ");
        let words = || line.split(|c: char| !(c.is_alphanumeric() || c == '_')).skip(3);
        if line.starts_with("column ") && !is_filled {
            found.push(format!("cannot be left out: {line}"));
        } else if is_rule && !words().any(|word| columns.iter().any(|column| column == word)) {
            found.push(format!("forbids what was allowed: {line}"));
        }
    }
    found
}

#[tokio::test]
async fn a_migration_only_adds_and_nothing_that_an_older_program_would_have_to_fill() {
    let database = TestDatabase::postgres().await;
    for (name, before, after) in steps(&database).await {
        let breaches = breaches(&before, &after);
        if !CONTRACTS.contains(&name.as_str()) {
            assert!(breaches.is_empty(), "{name}:\n{}", breaches.join("\n"));
        }
    }
}

#[test]
fn a_migration_that_older_programs_would_stumble_over_is_found() {
    let set = |lines: &[&str]| lines.iter().map(|it| (*it).to_owned()).collect::<BTreeSet<_>>();
    let old = ["column sales.id bigint not null", "column sales.title text"];
    let with = |more: &[&str]| breaches(&set(&old), &set(&[&old, more].concat()));
    for good in [
        "column sales.note text",
        "column sales.kind text not null default 'a'::text",
        "column shops.id bigint not null",
        "constraint shops.shops_id CHECK ((id > 0))",
        "index sales.sales_by_title CREATE INDEX sales_by_title ON public.sales (title)",
    ] {
        assert_eq!(with(&[good]), Vec::<String>::new());
    }
    let unique = "index sales.by_note CREATE UNIQUE INDEX by_note ON public.sales (note)";
    assert_eq!(with(&["column sales.note text", unique]), Vec::<String>::new());
    for bad in [
        "column sales.note text not null",
        "constraint sales.sales_title CHECK ((title <> ''))",
        "index sales.by_title CREATE UNIQUE INDEX by_title ON public.sales (title)",
        unique,
    ] {
        assert_eq!(with(&[bad]).len(), 1, "{bad}");
    }
    assert_eq!(breaches(&set(&old), &set(&old[..1])).len(), 1);
    let changed = [old[0], "column sales.title text not null"];
    assert_eq!(breaches(&set(&old), &set(&changed)).len(), 2);
}

on_both!(rows_of_older_programs_are_taken_by_every_later_schema, async |database: TestDatabase| {
    database.unmigrate().await.unwrap();
    for migration in Migrator::migrations() {
        let name = migration.name().to_owned();
        let old: Vec<_> = OLD_WRITERS.iter().filter(|(since, ..)| **since < *name).collect();
        for (_, table, row) in &old {
            database.execute(&format!("INSERT INTO {table} {row}")).await;
        }
        Migrator::up(&database.raw, Some(1)).await.unwrap();
        for (_, table, row) in old {
            let kept = database.execute(&format!("DELETE FROM {table}")).await;
            assert_eq!(kept, 1, "{name}: a row of {table} that was there before");
            database.execute(&format!("INSERT INTO {table} {row}")).await;
            database.execute(&format!("DELETE FROM {table}")).await;
        }
    }
    // A table that nobody writes here would not be watched.
    for (name, ..) in OLD_WRITERS {
        assert!(Migrator::migrations().iter().any(|it| it.name() == *name), "{name}");
    }
    for migration in Migrator::migrations() {
        let makes_table = migration.name().contains("_create_");
        let is_watched = OLD_WRITERS.iter().any(|(name, ..)| *name == migration.name());
        assert_eq!(makes_table, is_watched, "{} and OLD_WRITERS", migration.name());
    }
});

on_both!(a_schema_of_a_newer_version_is_taken_as_it_is, async |database: TestDatabase| {
    assert_eq!(database.unknown_migrations().await.unwrap(), Vec::<String>::new());
    let newer = "m20990101_000001_add_what_nobody_knows";
    let applied = format!("INSERT INTO seaql_migrations VALUES ('{newer}', 1)");
    database.execute(&applied).await;
    assert_eq!(database.unknown_migrations().await.unwrap(), [newer]);
    assert_eq!(database.pending_migrations().await.unwrap(), 0);
    database.migrate().await.unwrap();
    // Two histories that went apart are not put together.
    let last = Migrator::migrations().last().expect("there are some").name().to_owned();
    database.execute(&format!("DELETE FROM seaql_migrations WHERE version = '{last}'")).await;
    assert_eq!(database.pending_migrations().await.unwrap(), 1);
    let refused = database.migrate().await.unwrap_err().to_string();
    assert!(refused.contains(newer), "{refused}");
});

on_both!(a_database_without_a_schema_is_asked_and_left_alone, async |database: TestDatabase| {
    database.unmigrate().await.unwrap();
    database.execute("DROP TABLE seaql_migrations").await;
    let all = Migrator::migrations().len();
    assert_eq!(database.pending_migrations().await.unwrap(), all);
    assert_eq!(database.unknown_migrations().await.unwrap(), Vec::<String>::new());
    database.try_execute("SELECT 1 FROM seaql_migrations").await.unwrap_err();
    database.migrate().await.unwrap();
    assert_eq!(database.pending_migrations().await.unwrap(), 0);
});
