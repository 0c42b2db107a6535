//! Refused data and absent databases: the first is told from the second, nothing is half written, and
//! what was out of reach is used again as soon as it is back.

use std::sync::Arc;
use std::time::Duration;

use flashsale_domain::{NewOrder, NewSale, SaleMode, SaleState};
use flashsale_storage_sql::{
    BatchFailure, Commit, CommittedBatch, Database, DirectAnswer, SqlFault,
};
use flashsale_test_support::{PostgresServer, eventually, temp_dir};
use sea_orm::{
    ConnectionTrait as _, SqliteTransactionMode, TransactionOptions, TransactionTrait as _,
};
use tokio::task::JoinHandle;

use crate::support::{
    PATIENT, SOON, TestDatabase, connect, digest_of, new_sale, on_both, order_id, order_of,
    orders_of, user_id,
};

/// A patience that a test can afford to lose; a lock is waited for half as long.
const SHORT: Duration = Duration::from_millis(600);

fn infrastructure(result: Result<CommittedBatch, BatchFailure>) -> SqlFault {
    match result {
        Err(BatchFailure::Infrastructure(fault)) => fault,
        other => panic!("not infrastructure: {other:?}"),
    }
}

/// Waits until `sql` answers with true.
async fn until(database: &TestDatabase, what: &str, sql: &str) {
    eventually(SOON, what, async || database.value::<bool>(sql).await).await;
}

/// Commits a batch that somebody is in the way of; returns while it waits.
async fn commit_until_it_waits(
    database: &TestDatabase,
    batch: &[NewOrder],
) -> JoinHandle<Result<CommittedBatch, BatchFailure>> {
    let (asking, batch) = (Database::clone(database), batch.to_vec());
    let call = tokio::spawn(async move { asking.commit_orders(&batch).await });
    database.until_locked_out(1).await;
    call
}

async fn committed(database: &Database, batch: &[NewOrder]) -> Vec<Commit> {
    database.commit_orders(batch).await.expect("the database takes the batch").outcomes
}

on_both!(
    a_row_that_the_database_refuses_is_data_and_nothing_is_written,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(1_000)).await;
        database.refuse_poison().await;
        let mut batch = orders_of(&sale, 1..=500);
        batch[321].user_id = user_id("poison");

        let failure = database.commit_orders(&batch).await.unwrap_err();

        assert!(matches!(&failure, BatchFailure::Data(_)), "{failure:?}");
        assert!(failure.to_string().contains("no_poison"), "{failure}");
        assert_eq!(database.order_count().await, 0);
        assert_eq!(database.stock_left(&sale).await, 1_000);

        // The halves without it go in over the same connections.
        assert_eq!(committed(&database, &batch[..321]).await, vec![Commit::Inserted; 321]);
        assert_eq!(committed(&database, &batch[322..]).await, vec![Commit::Inserted; 178]);
        let alone = database.commit_orders(&batch[321..322]).await.unwrap_err();
        assert!(matches!(alone, BatchFailure::Data(_)), "{alone:?}");
        assert_eq!(database.order_count().await, 499);
        assert_eq!(database.stock_left(&sale).await, 501);
    }
);

on_both!(a_direct_order_that_the_database_refuses_takes_nothing, async |database: TestDatabase| {
    let sale = database.published(&NewSale { mode: SaleMode::Direct, ..new_sale(10) }).await;
    database.refuse_poison().await;
    let place = async |id, user| {
        database.place_direct_order(order_id(id), sale.id, &user_id(user), None, 20).await
    };
    let fault = place(1, "poison").await.unwrap_err();
    assert!(fault.is_data(), "{fault}");
    assert_eq!(database.stock_left(&sale).await, 10);
    assert!(matches!(place(1, "buyer").await.unwrap(), DirectAnswer::Placed(_)));
});

on_both!(a_missing_table_is_infrastructure, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    database.execute("ALTER TABLE orders RENAME TO elsewhere").await;
    infrastructure(database.commit_orders(&batch).await);
    assert_eq!(database.stock_left(&sale).await, 10);
    database.execute("ALTER TABLE elsewhere RENAME TO orders").await;
    assert_eq!(committed(&database, &batch).await, vec![Commit::Inserted; 3]);
});

on_both!(a_dropped_call_leaves_nothing_behind, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10_000)).await;
    let batch = orders_of(&sale, 1..=2_000);
    for patience_us in [100, 1_000, 5_000, 10_000, 20_000] {
        let patience = Duration::from_micros(patience_us);
        let call = tokio::time::timeout(patience, database.commit_orders(&batch));
        let _unknown = call.await;
    }
    // Whatever became of those, the batch is written once, and no connection is lost to them.
    for _ in 0..10 {
        database.commit_orders(&batch).await.unwrap();
    }
    assert_eq!(database.order_count().await, 2_000);
    assert_eq!(database.stock_left(&sale).await, 8_000);
});

#[tokio::test]
async fn a_locked_sqlite_file_is_infrastructure_and_can_still_be_read() {
    let database = TestDatabase::sqlite().await;
    let impatient = database.connect(SHORT).await;
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    let immediate = TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    };
    let holder = database.raw.begin_with_options(immediate).await.unwrap();

    let began = tokio::time::Instant::now();
    let fault = infrastructure(impatient.commit_orders(&batch).await);
    let waited = began.elapsed();

    assert_eq!(fault.code().as_deref(), Some("5"), "{fault}");
    assert!(waited >= SHORT / 2, "the lock was waited for {waited:?} only");
    let refused = [
        impatient.insert_sale(&new_sale(1)).await.map(drop).unwrap_err(),
        impatient.set_sale_state(sale.id, SaleState::Paused).await.map(drop).unwrap_err(),
        impatient.begin_epoch(sale.id, sale.epoch).await.map(drop).unwrap_err(),
        impatient
            .place_direct_order(order_id(1), sale.id, &user_id("buyer"), None, 20)
            .await
            .map(drop)
            .unwrap_err(),
    ];
    for fault in refused {
        assert!(!fault.is_data(), "{fault}");
        assert_eq!(fault.code().as_deref(), Some("5"), "{fault}");
    }
    assert_eq!(impatient.find_sale(sale.id).await.unwrap(), Some(sale.clone()));

    holder.rollback().await.unwrap();
    assert_eq!(committed(&impatient, &batch).await, vec![Commit::Inserted; 3]);
    assert_eq!(database.stock_left(&sale).await, 7);
}

#[tokio::test]
async fn a_sqlite_writer_waits_for_a_lock_that_is_given_back() {
    let database = TestDatabase::sqlite().await;
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    let holder = database.raw.begin().await.unwrap();
    holder.execute_unprepared("UPDATE sales SET title = 'held'").await.unwrap();

    let mut waiting = tokio::spawn({
        let (database, batch) = (Database::clone(&database), batch.clone());
        async move { database.commit_orders(&batch).await }
    });
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err(), "it did not wait: {early:?}");
    holder.commit().await.unwrap();

    assert_eq!(waiting.await.unwrap().unwrap().outcomes, vec![Commit::Inserted; 3]);
}

#[tokio::test]
async fn sqlite_is_used_with_a_log_and_with_commits_that_are_on_the_disk() {
    let database = TestDatabase::sqlite().await;
    database
        .execute(
            "CREATE TABLE seen (journal TEXT, synchronous INTEGER, busy_ms INTEGER); \
             CREATE TRIGGER look AFTER INSERT ON sales BEGIN \
               INSERT INTO seen SELECT \
                 (SELECT journal_mode FROM pragma_journal_mode), \
                 (SELECT synchronous FROM pragma_synchronous), \
                 (SELECT timeout FROM pragma_busy_timeout); END",
        )
        .await;
    let elsewhere = database.connect(Duration::from_secs(7)).await;

    elsewhere.insert_sale(&new_sale(1)).await.unwrap();

    assert_eq!(database.value::<String>("SELECT journal FROM seen").await, "wal");
    assert_eq!(database.value::<i64>("SELECT synchronous FROM seen").await, 2);
    assert_eq!(database.value::<i64>("SELECT busy_ms FROM seen").await, 3_500);
}

#[tokio::test]
async fn a_missing_sqlite_file_is_made_and_a_missing_folder_is_told() {
    let directory = temp_dir("made");
    let url = format!("sqlite://{}", directory.path().join("new.db").display());
    let database = connect(&url, PATIENT).await;
    assert!(database.pending_migrations().await.unwrap() > 0);
    database.migrate().await.unwrap();
    database.ping().await.unwrap();
    database.close().await.unwrap();
    assert!(directory.path().join("new.db").exists());

    let config = flashsale_storage_sql::DatabaseConfig {
        url: format!("sqlite://{}", directory.path().join("no/such/folder.db").display()),
        max_connections: 1,
        connect_timeout: Duration::from_secs(5),
        statement_timeout: PATIENT,
    };
    let fault = Database::connect(&config).await.map(drop).unwrap_err();
    assert!(!fault.is_data(), "{fault}");
}

#[tokio::test]
async fn postgres_ends_what_takes_too_long_by_settings_that_are_in_force() {
    let database = TestDatabase::postgres().await;
    database
        .execute(
            "CREATE TABLE seen (name TEXT, value TEXT); \
             CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
               INSERT INTO seen SELECT name, setting || unit FROM pg_settings WHERE name IN \
                 ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout'); \
               RETURN NEW; END $$; \
             CREATE TRIGGER look BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION look()",
        )
        .await;
    let elsewhere = database.connect(Duration::from_secs(7)).await;

    elsewhere.insert_sale(&new_sale(1)).await.unwrap();

    let seen: Vec<String> =
        database.column("SELECT name || ' ' || value FROM seen ORDER BY name").await;
    assert_eq!(
        seen,
        [
            "idle_in_transaction_session_timeout 7000ms",
            "lock_timeout 3500ms",
            "statement_timeout 7000ms",
        ]
    );
}

#[tokio::test]
async fn a_row_locked_elsewhere_is_infrastructure() {
    let database = TestDatabase::postgres().await;
    let impatient = database.connect(SHORT).await;
    let sale = database.published(&NewSale { mode: SaleMode::Direct, ..new_sale(10) }).await;
    let batch = orders_of(&sale, 1..=3);
    let holder = database.raw.begin().await.unwrap();
    holder.execute_unprepared("SELECT 1 FROM sales FOR UPDATE").await.unwrap();

    let fault = infrastructure(impatient.commit_orders(&batch).await);

    assert_eq!(fault.code().as_deref(), Some("55P03"), "{fault}");
    let direct =
        impatient.place_direct_order(order_id(9), sale.id, &user_id("buyer"), None, 20).await;
    let fault = direct.unwrap_err();
    assert_eq!(fault.code().as_deref(), Some("55P03"), "{fault}");
    assert!(!fault.is_data());
    assert_eq!(database.order_count().await, 0);

    holder.rollback().await.unwrap();
    assert_eq!(committed(&impatient, &batch).await, vec![Commit::Inserted; 3]);
    assert_eq!(database.stock_left(&sale).await, 7);
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_infrastructure() {
    let database = TestDatabase::postgres().await;
    let impatient = database.connect(SHORT).await;
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    database
        .execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS \
               $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$; \
             CREATE TRIGGER dawdle BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION dawdle()",
        )
        .await;

    let fault = infrastructure(impatient.commit_orders(&batch).await);

    assert_eq!(fault.code().as_deref(), Some("57014"), "{fault}");
    database.execute("DROP TRIGGER dawdle ON orders").await;
    assert_eq!(committed(&impatient, &batch).await, vec![Commit::Inserted; 3]);
}

#[tokio::test]
async fn a_transaction_that_idles_is_ended_by_the_server() {
    let database = TestDatabase::postgres().await;
    let impatient = database.connect(Duration::from_secs(3)).await;
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    let holder = database.raw.begin().await.unwrap();
    holder.execute_unprepared("LOCK TABLE sales").await.unwrap();
    let mut call = Box::pin(impatient.commit_orders(&batch));
    // Driven until it has begun and waits for the lock, then never again: a process that hangs.
    let waiting = "SELECT pid FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let its_session =
        eventually(SOON, "a call that waits", async || database.column::<i32>(waiting).await.pop());
    let pid = tokio::select! {
        result = &mut call => panic!("it did not wait: {result:?}"),
        pid = its_session => pid,
    };
    holder.rollback().await.unwrap();
    let ended = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}");
    until(&database, "the end of its session", &ended).await;

    infrastructure(call.await);
    assert_eq!(committed(&impatient, &batch).await, vec![Commit::Inserted; 3]);
}

/// Cuts every connection to the database but the test's own.
async fn cut_connections(database: &TestDatabase) {
    let cut: Vec<bool> = database
        .column(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid() \
             AND backend_type = 'client backend'",
        )
        .await;
    assert!(!cut.is_empty() && cut.iter().all(|cut| *cut), "{cut:?}");
}

#[tokio::test]
async fn connections_cut_while_idle_are_replaced() {
    let database = TestDatabase::postgres().await;
    let sale = database.published(&new_sale(100)).await;
    for round in 0..5 {
        cut_connections(&database).await;
        let batch = orders_of(&sale, round * 3 + 1..=round * 3 + 3);
        eventually(SOON, "the batch", async || match database.commit_orders(&batch).await {
            Err(failure @ BatchFailure::Infrastructure(_)) => Err(failure),
            other => Ok(other.unwrap()),
        })
        .await;
    }
    assert_eq!(database.order_count().await, 15);
    assert_eq!(database.stock_left(&sale).await, 85);
}

#[tokio::test]
async fn a_connection_cut_within_the_transaction_is_infrastructure_and_leaves_nothing() {
    let database = TestDatabase::postgres().await;
    let elsewhere = database.connect(PATIENT).await;
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    let holder = database.raw.begin().await.unwrap();
    holder.execute_unprepared("SELECT 1 FROM sales FOR UPDATE").await.unwrap();
    let call = tokio::spawn({
        let (database, batch) = (elsewhere.clone(), batch.clone());
        async move { database.commit_orders(&batch).await }
    });
    let cut = "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity \
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until(&database, "a call that waits for the sale", cut).await;

    infrastructure(call.await.unwrap());

    holder.rollback().await.unwrap();
    assert_eq!(database.order_count().await, 0);
    assert_eq!(committed(&elsewhere, &batch).await, vec![Commit::Inserted; 3]);
    assert_eq!(database.stock_left(&sale).await, 7);
}

#[tokio::test]
async fn a_rebuild_under_a_batch_moves_it() {
    let database = TestDatabase::postgres().await;
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    // Another session is about to write the batch's second order, so the batch waits for it.
    let holder = database.raw.begin().await.unwrap();
    let insert = format!(
        "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
         price_currency, committed_ms) VALUES (2, {}, 'user-2', 1, 1, 'paid', 1, 'CNY', 1)",
        sale.id
    );
    holder.execute_unprepared(&insert).await.unwrap();
    let call = commit_until_it_waits(&database, &batch).await;
    let begun = database.begin_epoch(sale.id, sale.epoch).await.unwrap().unwrap();
    assert!(begun.orders.is_empty());
    holder.rollback().await.unwrap();

    let failure = call.await.unwrap().unwrap_err();

    assert!(matches!(failure, BatchFailure::Moved), "{failure:?}");
    assert_eq!(database.order_count().await, 0);
    assert_eq!(database.stock_left(&sale).await, 10);
}

#[tokio::test]
async fn a_deadlock_with_somebody_else_is_infrastructure() {
    let database = TestDatabase::postgres().await;
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    let insert = |id: i64| {
        format!(
            "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
             price_currency, committed_ms) VALUES ({id}, {}, 'other-{id}', 1, 1, 'paid', 1, 'CNY', 1)",
            sale.id
        )
    };
    let holder = database.raw.begin().await.unwrap();
    // Not this one is to be ended for it.
    holder.execute_unprepared("SET LOCAL deadlock_timeout = '10min'").await.unwrap();
    holder.execute_unprepared(&insert(2)).await.unwrap();
    let call = commit_until_it_waits(&database, &batch).await;
    // The batch has written this one, and now each waits for the other.
    holder.execute_unprepared(&insert(1)).await.unwrap();

    let fault = infrastructure(call.await.unwrap());

    assert_eq!(fault.code().as_deref(), Some("40P01"), "{fault}");
    holder.rollback().await.unwrap();
    assert_eq!(committed(&database, &batch).await, vec![Commit::Inserted; 3]);
    assert_eq!(database.stock_left(&sale).await, 7);
}

/// A server of the test's own, and a migrated database there.
async fn own_server() -> (Arc<PostgresServer>, TestDatabase) {
    let (server, url) = tokio::task::spawn_blocking(|| {
        let server = PostgresServer::start();
        let url = server.create_database();
        (Arc::new(server), url)
    })
    .await
    .expect("PostgreSQL starts");
    (server, TestDatabase::open(url, None).await)
}

async fn on(server: &Arc<PostgresServer>, act: impl FnOnce(&PostgresServer) + Send + 'static) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || act(&server)).await.expect("the server obeys");
}

#[tokio::test]
async fn a_stopped_or_killed_server_is_infrastructure_and_used_again_when_it_is_back() {
    let (server, database) = own_server().await;
    let sale = database.published(&new_sale(100)).await;
    let config = flashsale_storage_sql::DatabaseConfig {
        url: server.url(&database.value::<String>("SELECT current_database()::text").await),
        max_connections: 4,
        connect_timeout: Duration::from_secs(1),
        statement_timeout: PATIENT,
    };
    let impatient = Database::connect(&config).await.unwrap();
    assert_eq!(committed(&impatient, &orders_of(&sale, 1..=3)).await, vec![Commit::Inserted; 3]);

    for (round, end) in [PostgresServer::stop as fn(&PostgresServer), PostgresServer::kill_9]
        .into_iter()
        .enumerate()
    {
        let first = 4 + 3 * i64::try_from(round).unwrap();
        let batch = orders_of(&sale, first..=first + 2);
        on(&server, end).await;
        for _ in 0..2 {
            infrastructure(impatient.commit_orders(&batch).await);
        }
        assert!(!impatient.ping().await.unwrap_err().is_data());
        assert!(!impatient.find_order(order_id(1)).await.unwrap_err().is_data());
        assert!(!impatient.insert_sale(&new_sale(1)).await.unwrap_err().is_data());
        let direct =
            impatient.place_direct_order(order_id(99), sale.id, &user_id("buyer"), None, 20).await;
        assert!(!direct.unwrap_err().is_data());
        assert!(Database::connect(&config).await.is_err());

        on(&server, PostgresServer::start_again).await;
        let outcomes = eventually(SOON, "a database that is used again", async || match impatient
            .commit_orders(&batch)
            .await
        {
            Err(failure @ BatchFailure::Infrastructure(_)) => Err(failure),
            other => Ok(other.unwrap().outcomes),
        })
        .await;
        assert_eq!(outcomes, vec![Commit::Inserted; 3]);
    }
    assert_eq!(impatient.find_sale(sale.id).await.unwrap().unwrap().stock_left, 91);
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_when_it_is_sent_again() {
    let (server, database) = own_server().await;
    let sale = database.published(&new_sale(100)).await;
    let direct = flashsale_domain::NewSale { mode: SaleMode::Direct, ..new_sale(100) };
    let direct = database.published(&direct).await;
    let elsewhere = database.connect(PATIENT).await;
    let batch = [order_of(&sale, 1), order_of(&sale, 2)];
    // COMMIT is done, and then waits for a standby that never comes: cut there, its answer is lost.
    let standby = async |value: &str| {
        database.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{value}'")).await;
        database.execute("SELECT pg_reload_conf()").await;
        let set = format!("SELECT current_setting('synchronous_standby_names') = '{value}'");
        until(&database, "the new setting", &set).await;
    };
    let cut = "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity \
               WHERE datname = current_database() AND wait_event = 'SyncRep'";
    standby("nobody").await;

    let call = tokio::spawn({
        let (database, batch) = (elsewhere.clone(), batch.clone());
        async move { database.commit_orders(&batch).await }
    });
    until(&database, "a commit that waits for its standby", cut).await;
    infrastructure(call.await.unwrap());

    let digest = digest_of("key");
    let press = async |database: &Database, id| {
        let (user, digest) = (user_id("buyer"), Some(&digest));
        database.place_direct_order(order_id(id), direct.id, &user, digest, 20).await
    };
    let (pressed, ()) = tokio::join!(
        press(&elsewhere, 11),
        until(&database, "a direct order that waits for its standby", cut),
    );
    assert!(!pressed.unwrap_err().is_data());

    standby("").await;
    assert_eq!(committed(&elsewhere, &batch).await, vec![Commit::Redelivered; 2]);
    assert_eq!(database.stock_left(&sale).await, 98);
    match press(&elsewhere, 12).await.unwrap() {
        DirectAnswer::Replayed(order) => assert_eq!(order.id, order_id(11)),
        other => panic!("{other:?}"),
    }
    assert_eq!(database.stock_left(&direct).await, 99);
    drop(server);
}
