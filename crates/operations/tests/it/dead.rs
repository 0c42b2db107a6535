//! Dead letters: listed, tried again under their own id, given up with what they hold; and every action
//! in the audit log.

use flashsale_domain::{OrderId, Partition};
use flashsale_operations::DeadFilter;
use flashsale_storage_redis::{ReleaseRequest, Released};

use crate::support::{Stand, neighbour, on_both, only, press, refused, user_id};

const ALL: DeadFilter =
    DeadFilter { sale_id: None, reason: None, partition: None, entry: None, limit: 100 };

/// A sale with two good orders and two dead ones, whose ids these are.
async fn with_dead(stand: &Stand) -> (flashsale_domain::Sale, Vec<OrderId>) {
    stand.refuse_poison().await;
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 2).await;
    let dead = stand.admit(&sale, "poison", 2).await;
    assert_eq!(stand.work().await.dead, 2);
    (sale, dead)
}

on_both!(dead_letters_are_listed_by_what_is_asked_for, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    let list = async |filter: DeadFilter| -> Vec<Option<OrderId>> {
        let letters = stand.operations.list_dead(&filter).await.expect("a list");
        letters.into_iter().map(|letter| letter.order_id).collect()
    };
    let both = vec![Some(dead[0]), Some(dead[1])];
    assert_eq!(list(ALL).await, both);
    assert_eq!(list(DeadFilter { sale_id: Some(sale.id), ..ALL }).await, both);
    assert_eq!(list(DeadFilter { reason: Some("undecodable".into()), ..ALL }).await, []);
    assert_eq!(list(DeadFilter { limit: 1, ..ALL }).await, [Some(dead[0])]);
    let one = DeadFilter { entry: Some(dead[1].entry()), ..ALL };
    let shown = &stand.operations.list_dead(&one).await.expect("a list")[0];
    assert_eq!((shown.reason.as_str(), shown.attempts), ("data-refused", 1));
    assert_eq!(shown.user_id.as_deref(), Some("poison-1"));
    assert!(shown.code.is_some() && shown.first_ms > 0 && !shown.consumers.is_empty());
    let none = DeadFilter { entry: Some(sale_less_entry()), ..ALL };
    let nothing = refused(stand.operations.list_dead(&none).await);
    assert!(nothing.to_string().contains("no dead letter"), "{nothing}");
});

fn sale_less_entry() -> flashsale_domain::EntryId {
    "1764470400000-9".parse().expect("an entry id")
}

on_both!(a_letter_is_tried_again_under_its_own_id, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    let requeue = async |dry_run| {
        let done = stand.operations.requeue_dead(&ALL, "tester", dry_run).await.expect("tried");
        done.iter().filter(|outcome| outcome.settled).count()
    };
    assert_eq!(requeue(true).await, 0, "a dry run settles nothing");
    assert_eq!(requeue(false).await, 0, "the cause is still there");
    let letters = stand.operations.list_dead(&ALL).await.expect("a list");
    assert!(letters.iter().all(|letter| letter.attempts == 2), "the dry run is no attempt");
    stand.allow_poison().await;
    assert_eq!(requeue(false).await, 2);
    for id in dead {
        let row = stand.database.find_order(id).await.expect("answered").expect("a row");
        assert!(row.order.state.is_open());
    }
    assert!(stand.operations.list_dead(&ALL).await.expect("a list").is_empty());
    stand.assert_clean(&sale).await;
    let log = stand.database.list_audit(10).await.expect("answered");
    assert_eq!(log.iter().filter(|line| line.action == "dead.requeue").count(), 4);
});

on_both!(of_more_letters_than_are_asked_for_only_the_oldest_are_touched, async |stand: Stand| {
    let (_, dead) = with_dead(&stand).await;
    let oldest = DeadFilter { limit: 1, ..ALL };
    let tried = stand.operations.requeue_dead(&oldest, "tester", false).await.expect("tried");
    assert_eq!((tried.len(), tried[0].order_id), (1, Some(dead[0])));
    let letters = stand.operations.list_dead(&ALL).await.expect("a list");
    assert_eq!(letters.iter().map(|letter| letter.attempts).collect::<Vec<_>>(), [2, 1]);
    stand.allow_poison().await;
    let given_up = stand.operations.reject_dead(&oldest, "tester", false).await.expect("done");
    assert_eq!((given_up.len(), given_up[0].order_id), (1, Some(dead[0])));
    let left = stand.operations.list_dead(&ALL).await.expect("a list");
    assert_eq!(left.iter().map(|letter| letter.order_id).collect::<Vec<_>>(), [Some(dead[1])]);
});

on_both!(a_dry_run_does_nothing_of_what_would_be_done, async |stand: Stand| {
    let (_, dead) = with_dead(&stand).await;
    // Nothing is in the way any more: what is not done is not done because it is a dry run.
    stand.allow_poison().await;
    let letters = stand.redis.list_dead_letters(only()).await.expect("a list");
    let tried = stand.operations.requeue_dead(&ALL, "tester", true).await.expect("answered");
    let given_up = stand.operations.reject_dead(&ALL, "tester", true).await.expect("answered");
    for (outcomes, what) in [(tried, "would be tried again"), (given_up, "would be rejected")] {
        assert_eq!(outcomes.len(), dead.len());
        assert!(outcomes.iter().all(|it| !it.settled && it.what == what), "{outcomes:?}");
    }
    for id in dead {
        assert_eq!(stand.database.find_order(id).await.expect("answered"), None);
    }
    assert_eq!(stand.redis.list_dead_letters(only()).await.expect("a list"), letters);
    let log = stand.database.list_audit(10).await.expect("answered");
    assert!(log.iter().all(|line| !line.action.starts_with("dead.")), "{log:?}");
});

on_both!(a_letter_that_stays_says_why_it_was_refused_the_last_time, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    let first = stand.redis.list_dead_letters(only()).await.expect("a list").remove(0);
    stand.allow_poison().await;
    // Another cause than the first one: the database was set back behind the order's epoch.
    stand.execute(&format!("UPDATE sales SET epoch = 0 WHERE id = {}", sale.id)).await;
    let one = DeadFilter { entry: Some(dead[0].entry()), ..ALL };
    for tries in 2..=3 {
        let done = stand.operations.requeue_dead(&one, "tester", false).await.expect("tried");
        assert!(!done[0].settled, "{done:?}");
        let stayed = stand.operations.list_dead(&one).await.expect("a list").remove(0);
        assert_eq!((stayed.reason.as_str(), stayed.code), ("epoch-ahead", None));
        assert_eq!(stayed.detail, done[0].what);
        assert_eq!(stayed.attempts, tries);
        assert_eq!(stayed.consumers, [&first.consumers[0], "tester"], "each once");
        assert_eq!(stayed.first_ms, first.first_ms);
        assert!(stayed.last_ms >= first.last_ms);
    }
    // And the other way: refused data has a code again.
    stand.execute(&format!("UPDATE sales SET epoch = {} WHERE id = {}", sale.epoch, sale.id)).await;
    stand.refuse_poison().await;
    stand.operations.requeue_dead(&one, "tester", false).await.expect("tried");
    let stayed = stand.operations.list_dead(&one).await.expect("a list").remove(0);
    assert_eq!((stayed.reason.as_str(), stayed.code), ("data-refused", first.code));
});

on_both!(a_letter_that_a_rebuild_does_not_hold_is_memory_lost, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    // Somebody else has the second one's slot by now, and no unit is left but one for the first.
    let other = neighbour(dead[1], 1);
    stand.allow_poison().await;
    stand.insert_row(other, &sale, "poison-1", "awaiting_payment").await;
    stand.execute(&format!("UPDATE sales SET stock_left = 17 WHERE id = {}", sale.id)).await;
    let rebuilt = stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    assert_eq!((rebuilt.sales[0].stock, rebuilt.sales[0].held), (16, 4), "three rows, one letter");
    // The row that was in the way goes: only the epoch keeps the letter from a unit now.
    stand.execute(&format!("DELETE FROM orders WHERE id = {other}")).await;
    stand.execute(&format!("UPDATE sales SET stock_left = 18 WHERE id = {}", sale.id)).await;
    let done = stand.operations.requeue_dead(&ALL, "tester", false).await.expect("tried");
    assert!(done.iter().all(|outcome| outcome.settled), "{done:?}");
    let state = async |id: OrderId| {
        let row = stand.database.find_order(id).await.expect("answered").expect("a row");
        (row.order.state.is_open(), row.order.reason)
    };
    assert_eq!(state(dead[0]).await, (true, None));
    assert_eq!(state(dead[1]).await, (false, Some("memory-lost".to_owned())));
});

on_both!(letters_beyond_the_stock_take_no_unit_after_a_rebuild, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    stand.allow_poison().await;
    // The sale has shrunk to its two rows and one unit more.
    let shrink = "UPDATE sales SET stock_total = 3, stock_left = 1 WHERE id = ";
    stand.execute(&format!("{shrink}{}", sale.id)).await;
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    let [stock, held, _] = stand.units(&sale).await;
    assert_eq!((stock, held), (0, 3));
    // Tried alone, the second one would be given the unit that is the first one's.
    let second = DeadFilter { entry: Some(dead[1].entry()), ..ALL };
    let done = stand.operations.requeue_dead(&second, "tester", false).await.expect("tried");
    assert_eq!((done[0].settled, done[0].what.as_str()), (true, "is rejected: memory-lost"));
    let done = stand.operations.requeue_dead(&ALL, "tester", false).await.expect("tried");
    assert_eq!((done.len(), done[0].what.as_str()), (1, "is a row now"));
    stand.assert_clean(&sale).await;
});

on_both!(without_a_filter_the_oldest_letters_are_listed, async |stand: Stand| {
    let (_, dead) = with_dead(&stand).await;
    let listed = stand.operations.list_dead(&DeadFilter::default()).await.expect("a list");
    assert_eq!(listed.len(), dead.len());
});

on_both!(a_letter_outlives_a_rebuild_and_can_be_requeued_after_it, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    stand.allow_poison().await;
    let done = stand.operations.requeue_dead(&ALL, "tester", false).await.expect("tried");
    assert!(done.iter().all(|outcome| outcome.settled), "{done:?}");
    let row = stand.database.find_order(dead[0]).await.expect("answered").expect("a row");
    assert_eq!((row.order.state.is_open(), row.order.reason), (true, None), "not memory-lost");
    stand.assert_clean(&sale).await;
});

on_both!(a_letter_that_is_given_up_gives_unit_and_slot_back, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    stand.allow_poison().await;
    let done = stand.operations.reject_dead(&ALL, "tester", false).await.expect("done");
    assert!(done.iter().all(|outcome| outcome.settled), "{done:?}");
    let row = stand.database.find_order(dead[0]).await.expect("answered").expect("a row");
    assert_eq!(row.order.reason.as_deref(), Some("operator"));
    let releases = stand.database.list_releases(0, 10).await.expect("answered");
    assert_eq!(releases.len(), 2);
    for release in &releases {
        let request = ReleaseRequest {
            partition: release.partition,
            sale_id: release.sale_id,
            user_id: &release.user_id,
            entry: release.order_id.entry(),
            generation: release.generation,
            returns_unit: release.returns_unit,
            instead: None,
        };
        assert_eq!(stand.redis.release(&request).await.expect("answered"), Released::Done);
    }
    let ids: Vec<i64> = releases.iter().map(|release| release.id).collect();
    stand.database.delete_releases(&ids).await.expect("deleted");
    let record = stand.redis.find_record(only(), sale.id, &user_id("poison-0")).await;
    assert!(!record.expect("answered").expect("kept").holds(dead[0].entry()));
    // With his old key he is told of the order that was given up; it is for him to press anew.
    let again = stand.press(&sale, &[press("poison-0")]).await;
    assert!(again[0].is_ok_and(|yes| yes.replayed && yes.order_id == dead[0]));
    stand.assert_clean(&sale).await;
});

on_both!(a_letter_whose_row_is_there_is_settled_and_the_row_stays, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    stand.allow_poison().await;
    // Committed, and then the program died: the letters are still there.
    for letter in stand.redis.list_dead_letters(only()).await.expect("a list") {
        let order = letter.order(only()).expect("an order");
        stand.database.commit_orders(&[order]).await.expect("committed");
    }
    let first = DeadFilter { entry: Some(dead[0].entry()), ..ALL };
    let done = stand.operations.requeue_dead(&first, "tester", false).await.expect("tried");
    assert_eq!((done[0].settled, done[0].what.as_str()), (true, "was a row already"));
    let done = stand.operations.reject_dead(&ALL, "tester", false).await.expect("done");
    assert_eq!((done.len(), done[0].settled, done[0].order_id), (1, true, Some(dead[1])));
    assert!(done[0].what.contains("stays as it is"), "{}", done[0].what);
    let row = stand.database.find_order(dead[1]).await.expect("answered").expect("a row");
    assert!(row.order.state.is_open());
    assert_eq!(stand.database.count_releases(sale.id).await.expect("answered"), 0);
    assert!(stand.operations.list_dead(&ALL).await.expect("a list").is_empty());
    stand.assert_clean(&sale).await;
});

on_both!(a_letter_that_finds_no_unit_is_rejected_as_a_worker_would, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    stand.allow_poison().await;
    stand.execute(&format!("UPDATE sales SET stock_left = 0 WHERE id = {}", sale.id)).await;
    let done = stand.operations.requeue_dead(&ALL, "tester", false).await.expect("tried");
    assert!(done.iter().all(|outcome| outcome.settled), "{done:?}");
    for id in dead {
        let row = stand.database.find_order(id).await.expect("answered").expect("a row");
        assert_eq!(row.order.reason.as_deref(), Some("stock-gone"));
    }
    let releases = stand.database.list_releases(0, 10).await.expect("answered");
    assert_eq!(releases.iter().map(|release| release.returns_unit).collect::<Vec<_>>(), [false; 2]);
    assert!(stand.operations.list_dead(&ALL).await.expect("a list").is_empty());
});

on_both!(what_cannot_be_read_stays_until_it_is_discarded, async |stand: Stand| {
    let (sale, dead) = with_dead(&stand).await;
    let id: String =
        stand.ask(&["XADD", &stand.keys.orders(only()), "*", "v", "1", "note", "kept"]).await;
    assert_eq!(stand.work().await.dead, 1);
    let undecodable = DeadFilter { reason: Some("undecodable".into()), ..ALL };
    let shown = &stand.operations.list_dead(&undecodable).await.expect("a list")[0];
    assert_eq!((&shown.entry_id, shown.sale_id, shown.user_id.as_ref()), (&id, None, None));
    assert!(shown.fields.contains(&("note".into(), "kept".into())), "{:?}", shown.fields);
    let of_sale = DeadFilter { sale_id: Some(sale.id), ..ALL };
    assert_eq!(stand.operations.list_dead(&of_sale).await.expect("a list").len(), dead.len());

    let done = stand.operations.requeue_dead(&undecodable, "tester", false).await.expect("tried");
    assert!(!done[0].settled && done[0].what.contains("cannot be read"), "{done:?}");
    let before = stand.redis.list_dead_letters(only()).await.expect("a list");
    let done = stand.operations.reject_dead(&ALL, "tester", true).await.expect("said");
    assert_eq!((done.len(), done.iter().any(|outcome| outcome.settled)), (3, false));
    assert_eq!(stand.redis.list_dead_letters(only()).await.expect("a list"), before);
    let units = stand.units(&sale).await;
    let done = stand.operations.reject_dead(&undecodable, "tester", false).await.expect("done");
    assert!(done.len() == 1 && done[0].settled && done[0].what.contains("discarded"), "{done:?}");
    assert_eq!(stand.operations.list_dead(&ALL).await.expect("a list").len(), dead.len());
    assert_eq!(stand.units(&sale).await, units, "it held nothing that is known of");
    stand.assert_clean(&sale).await;

    let log = stand.database.list_audit(10).await.expect("answered");
    let lines: Vec<_> =
        log.iter().map(|line| (line.actor.as_str(), line.action.as_str())).collect();
    assert_eq!(lines, [("tester", "dead.reject"), ("tester", "dead.requeue")]);
    assert_eq!(log[0].detail, done[0].what);
});

on_both!(a_letter_of_a_sale_that_does_not_exist_can_be_given_up, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let forged = ["v", "1", "s", "4711", "u", "somebody", "b", "1", "e", "1"];
    let key = stand.keys.orders(only());
    stand.ask::<String>(&[&["XADD", &key, "*"][..], &forged].concat()).await;
    assert_eq!(stand.work().await.dead, 1);
    let done = stand.operations.reject_dead(&ALL, "tester", false).await.expect("done");
    assert!(done[0].settled && done[0].what.contains("sale 4711"), "{done:?}");
    assert_eq!(stand.operations.list_dead(&ALL).await.expect("a list").len(), 0);
    stand.assert_clean(&sale).await;
});

on_both!(a_partition_that_is_named_is_the_only_one_looked_into, async |stand: Stand| {
    let (_, dead) = with_dead(&stand).await;
    let entry = Some(dead[0].entry());
    let here = DeadFilter { partition: Some(only()), entry, ..ALL };
    assert_eq!(stand.operations.list_dead(&here).await.expect("a list").len(), 1);
    let elsewhere = DeadFilter { partition: Partition::new(1), entry, ..ALL };
    refused(stand.operations.reject_dead(&elsewhere, "tester", false).await);
    assert_eq!(stand.operations.list_dead(&ALL).await.expect("a list").len(), dead.len());
});
