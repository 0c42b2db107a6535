//! What a database says of itself.

use std::collections::BTreeSet;

use crate::support::{TestDatabase, on_both};

on_both!(
    every_index_that_a_migration_makes_is_missed_when_it_is_gone,
    async |database: TestDatabase| {
        let sql = if database.is_postgres() {
            "SELECT i.relname::text FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid \
           JOIN pg_namespace n ON n.oid = i.relnamespace \
          WHERE n.nspname = 'public' AND NOT x.indisprimary"
        } else {
            "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        };
        assert!(database.missing_indexes().await.unwrap().is_empty());
        let made: BTreeSet<String> = database.column(sql).await.into_iter().collect();
        assert!(made.contains("orders_one_open_per_slot"), "{made:?}");
        for index in &made {
            database.execute(&format!("DROP INDEX {index}")).await;
        }
        let missing = database.missing_indexes().await.unwrap();
        assert_eq!(missing.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), made);
    }
);

on_both!(its_clock_is_the_one_that_orders_are_timed_by, async |database: TestDatabase| {
    let before = database.now_ms().await;
    let told = database.time_ms().await.unwrap();
    assert!((before..=database.now_ms().await).contains(&told), "{before} {told}");
});
