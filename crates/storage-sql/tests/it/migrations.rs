//! The schema: every migration goes down and up again, and what the database refuses by itself.

use flashsale_domain::{OrderState, PaymentOutcome};
use flashsale_migrations::Migrator;
use sea_orm_migration::MigratorTrait as _;

use crate::support::{TestDatabase, is_row_state, new_sale, on_both};

/// Tables, indexes and constraints, as text to compare. The list of applied migrations is not ours.
async fn schema(database: &TestDatabase) -> Vec<String> {
    let sql = if database.is_postgres() {
        "SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default) \
           FROM information_schema.columns \
          WHERE table_schema = 'public' AND table_name <> 'seaql_migrations' \
         UNION ALL SELECT indexdef FROM pg_indexes \
          WHERE schemaname = 'public' AND tablename <> 'seaql_migrations' \
         UNION ALL SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint \
          WHERE connamespace = 'public'::regnamespace \
            AND conrelid <> 'seaql_migrations'::regclass \
         ORDER BY 1"
    } else {
        "SELECT sql FROM sqlite_schema \
          WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND tbl_name <> 'seaql_migrations' \
          ORDER BY 1"
    };
    database.column(sql).await
}

on_both!(every_migration_goes_up_down_and_up_again, async |database: TestDatabase| {
    let full = schema(&database).await;
    database.unmigrate().await.unwrap();
    assert_eq!(schema(&database).await, Vec::<String>::new());

    let migrations = Migrator::migrations().len();
    for pending in (0..migrations).rev() {
        assert_eq!(database.pending_migrations().await.unwrap(), pending + 1);
        let before = schema(&database).await;

        Migrator::up(&database.raw, Some(1)).await.unwrap();
        assert_eq!(database.pending_migrations().await.unwrap(), pending);
        let after = schema(&database).await;
        assert_ne!(after, before);

        Migrator::down(&database.raw, Some(1)).await.unwrap();
        assert_eq!(database.pending_migrations().await.unwrap(), pending + 1);
        assert_eq!(schema(&database).await, before);

        Migrator::up(&database.raw, Some(1)).await.unwrap();
        assert_eq!(schema(&database).await, after);
    }
    assert_eq!(schema(&database).await, full);
});

on_both!(migrating_twice_changes_nothing, async |database: TestDatabase| {
    let sale = database.insert_sale(&new_sale(3)).await.unwrap();
    let before = schema(&database).await;
    assert_eq!(database.pending_migrations().await.unwrap(), 0);

    database.migrate().await.unwrap();

    assert_eq!(schema(&database).await, before);
    assert_eq!(database.pending_migrations().await.unwrap(), 0);
    assert_eq!(database.find_sale(sale.id).await.unwrap(), Some(sale));
});

on_both!(a_migration_that_fails_half_way_can_be_run_again, async |database: TestDatabase| {
    let full = schema(&database).await;
    database.unmigrate().await.unwrap();
    // A relation in the place of each migration's last index makes its last statement fail.
    for obstacle in [
        "sales_by_change",
        "orders_by_user",
        "orders_due",
        "payments_open",
        "adjustments_one_pending",
        "events_due",
        "adjustments_by_request_key",
    ] {
        database.execute(&format!("CREATE TABLE {obstacle} (id BIGINT)")).await;
        database.migrate().await.unwrap_err();
        database.execute(&format!("DROP TABLE {obstacle}")).await;
        // On from the one that failed, so that the next obstacle's is the next to fail.
        Migrator::up(&database.raw, Some(1)).await.unwrap();
    }
    database.migrate().await.unwrap();
    assert_eq!(schema(&database).await, full);
});

#[test]
fn every_migration_file_is_in_the_list() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/src");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
        .filter(|name| name != "lib")
        .collect();
    files.sort();
    let listed: Vec<String> =
        Migrator::migrations().iter().map(|migration| migration.name().to_owned()).collect();
    assert_eq!(listed, files);
}

on_both!(a_sale_that_breaks_a_rule_is_refused_by_the_rules_name, async |database: TestDatabase| {
    let sale = database.insert_sale(&new_sale(5)).await.unwrap();
    let update = |set: &str| format!("UPDATE sales SET {set} WHERE id = {}", sale.id);
    let cases = [
        ("stock_left = -1", "sales_stock_not_negative"),
        ("stock_left = stock_total + 1", "sales_stock_within_total"),
        ("stock_total = stock_left - 1", "sales_stock_within_total"),
        ("closes_ms = opens_ms", "sales_window_in_order"),
        ("closes_ms = opens_ms - 1", "sales_window_in_order"),
        ("state = 'open'", "sales_state_known"),
        ("state = ''", "sales_state_known"),
        ("mode = 'both'", "sales_mode_known"),
        ("per_buyer = 0", "sales_per_buyer_positive"),
        ("late_payment = 'keep'", "sales_late_payment_known"),
        ("late_payment = ''", "sales_late_payment_known"),
    ];
    for (set, name) in cases {
        let refused = database.try_execute(&update(set)).await.unwrap_err().to_string();
        assert!(refused.contains(name), "{set}: {refused}");
    }
    for column in [
        "title",
        "mode",
        "state",
        "stock_total",
        "stock_left",
        "opens_ms",
        "closes_ms",
        "per_buyer",
        "price_amount",
        "price_currency",
        "payment_window_s",
        "late_payment",
        "epoch",
        "created_ms",
        "changed_ms",
    ] {
        let set = update(&format!("{column} = NULL"));
        let refused = database.try_execute(&set).await.unwrap_err().to_string();
        assert!(refused.contains(column), "{column}: {refused}");
    }
    assert_eq!(database.find_sale(sale.id).await.unwrap(), Some(sale.clone()));

    for set in ["stock_left = 0", "stock_left = stock_total", "closes_ms = opens_ms + 1"] {
        assert_eq!(database.execute(&update(set)).await, 1, "{set}");
    }
});

on_both!(
    an_order_in_an_unknown_state_or_without_a_slot_is_refused,
    async |database: TestDatabase| {
        let sale = database.insert_sale(&new_sale(5)).await.unwrap();
        for (slot, state, name) in [
            (0, "paid", "orders_slot_positive"),
            (-1, "paid", "orders_slot_positive"),
            (1, "lost", "orders_state_known"),
            (1, "", "orders_state_known"),
            (1, "PAID", "orders_state_known"),
        ] {
            let refused =
                database.try_insert_order(1, &sale, "user", slot, state).await.unwrap_err();
            assert!(refused.to_string().contains(name), "{slot} {state}: {refused}");
        }
        for state in OrderState::ALL {
            let result = database.try_insert_order(1, &sale, "user", 1, state.as_str()).await;
            match result {
                Ok(_) => assert!(is_row_state(state), "{state} must not become a row"),
                Err(refused) => {
                    assert!(!is_row_state(state), "{state}: {refused}");
                    assert!(refused.to_string().contains("orders_state_known"), "{refused}");
                }
            }
            database.execute("DELETE FROM orders").await;
        }
    }
);

on_both!(
    a_slot_is_held_by_one_row_in_a_state_that_the_code_calls_open,
    async |database: TestDatabase| {
        let sale = database.insert_sale(&new_sale(5)).await.unwrap();
        let states = || OrderState::ALL.into_iter().filter(|state| is_row_state(*state));
        for first in states() {
            for second in states() {
                database.insert_order(1, &sale, "user", 1, first).await;
                let again = database.try_insert_order(2, &sale, "user", 1, second.as_str()).await;
                if first.is_open() && second.is_open() {
                    let refused = again.expect_err("two open orders in one slot").to_string();
                    if database.is_postgres() {
                        assert!(refused.contains("orders_one_open_per_slot"), "{refused}");
                    } else {
                        let columns = "orders.sale_id, orders.user_id, orders.slot";
                        assert!(refused.contains(columns), "{refused}");
                    }
                } else {
                    assert_eq!(again, Ok(1), "{first} then {second}");
                }
                database.execute("DELETE FROM orders").await;
            }
        }
    }
);

on_both!(another_slot_buyer_or_sale_is_not_in_the_way, async |database: TestDatabase| {
    let sale = database.insert_sale(&new_sale(5)).await.unwrap();
    let other = database.insert_sale(&new_sale(5)).await.unwrap();
    let open = OrderState::AwaitingPayment;
    database.insert_order(1, &sale, "user", 1, open).await;
    database.insert_order(2, &sale, "user", 2, open).await;
    database.insert_order(3, &sale, "User", 1, open).await;
    database.insert_order(4, &other, "user", 1, open).await;

    let closed = OrderState::Cancelled;
    database.insert_order(5, &sale, "user", 1, closed).await;
    // A closed order cannot be opened again while its slot is held.
    database.try_execute("UPDATE orders SET state = 'paid' WHERE id = 5").await.unwrap_err();
    database.execute("UPDATE orders SET state = 'expired' WHERE id = 1").await;
    assert_eq!(database.execute("UPDATE orders SET state = 'paid' WHERE id = 5").await, 1);
});

on_both!(a_sale_of_before_late_payments_takes_a_unit_again, async |database: TestDatabase| {
    let sale = database.insert_sale(&new_sale(5)).await.unwrap();
    let migrations = Migrator::migrations().len();
    let since = u32::try_from(migrations - 4).unwrap();
    Migrator::down(&database.raw, Some(since)).await.unwrap();
    database.migrate().await.unwrap();
    assert_eq!(database.find_sale(sale.id).await.unwrap(), Some(sale));
});

on_both!(
    a_payment_in_an_unknown_outcome_or_of_a_known_message_is_refused,
    async |database: TestDatabase| {
        let insert = |webhook: &str, outcome: &str| {
            format!(
                "INSERT INTO payments (webhook_id, order_id, amount, currency, outcome, received_ms) \
             VALUES ('{webhook}', 1, 9900, 'CNY', '{outcome}', 1)"
            )
        };
        for outcome in ["", "Paid", "lost"] {
            let refused =
                database.try_execute(&insert("m", outcome)).await.unwrap_err().to_string();
            assert!(refused.contains("payments_outcome_known"), "{outcome}: {refused}");
        }
        for outcome in PaymentOutcome::ALL {
            assert_eq!(database.execute(&insert(outcome.as_str(), outcome.as_str())).await, 1);
        }
        let refused = database.try_execute(&insert("paid", "paid")).await.unwrap_err().to_string();
        let name =
            if database.is_postgres() { "payments_one_per_webhook" } else { "payments.webhook_id" };
        assert!(refused.contains(name), "{refused}");
    }
);

on_both!(
    an_adjustment_that_breaks_a_rule_is_refused_by_the_rules_name,
    async |database: TestDatabase| {
        let insert = |sale: i64, delta: i64, state: &str| {
            format!(
                "INSERT INTO adjustments (sale_id, delta, reason, actor, state, created_ms) \
             VALUES ({sale}, {delta}, 'r', 'a', '{state}', 1)"
            )
        };
        for (delta, state, name) in [
            (0, "pending", "adjustments_delta_not_zero"),
            (1, "begun", "adjustments_state_known"),
            (1, "", "adjustments_state_known"),
        ] {
            let refused =
                database.try_execute(&insert(1, delta, state)).await.unwrap_err().to_string();
            assert!(refused.contains(name), "{delta} {state}: {refused}");
        }
        for (sale, state) in
            [(1, "done"), (1, "refused"), (1, "pending"), (2, "pending"), (1, "done")]
        {
            assert_eq!(database.execute(&insert(sale, -1, state)).await, 1, "{sale} {state}");
        }
        let refused = database.try_execute(&insert(1, 1, "pending")).await.unwrap_err().to_string();
        let name =
            if database.is_postgres() { "adjustments_one_pending" } else { "adjustments.sale_id" };
        assert!(refused.contains(name), "{refused}");
    }
);

on_both!(what_the_sweeps_look_for_has_an_index, async |database: TestDatabase| {
    let sql = if database.is_postgres() {
        "SELECT indexname::text FROM pg_indexes WHERE schemaname = 'public'"
    } else {
        "SELECT name FROM sqlite_schema WHERE type = 'index'"
    };
    let indexes: Vec<String> = database.column(sql).await;
    for name in [
        "orders_one_open_per_slot",
        "orders_by_user",
        "orders_due",
        "outbox_one_release_per_generation",
        "payments_one_per_webhook",
        "payments_by_order",
        "payments_open",
        "adjustments_one_pending",
        "events_due",
    ] {
        assert!(indexes.iter().any(|index| index == name), "{name} is not in {indexes:?}");
    }
});
