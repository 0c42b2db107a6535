//! A rehearsal's sale is one like any other, until it is cleaned up: then nothing is left of it, and
//! nobody else's sale is touched.

use flashsale_domain::{Sale, SaleState};
use flashsale_operations::{DeadFilter, Refused};
use flashsale_storage_sql::{AuditFilter, Erasure};

use crate::support::{Stand, new_sale, on_both, only, refused, user_id};

const WHO: &str = "drill-sergeant";

async fn begin(stand: &Stand, stock: i64) -> Sale {
    stand.operations.by(WHO).begin_rehearsal(&new_sale(stock)).await.expect("begun")
}

/// Keys of Redis that are the sale's.
async fn keys_of(stand: &Stand, sale: &Sale) -> i64 {
    let keys = [stand.keys.sale(only(), sale.id), stand.keys.buyers(only(), sale.id)];
    stand.ask(&["EXISTS", &keys[0], &keys[1]]).await
}

on_both!(a_rehearsal_leaves_nothing_behind, async |stand: Stand| {
    let neighbour = stand.publish(10).await;
    stand.admit(&neighbour, "real", 3).await;
    let sale = begin(&stand, 5).await;
    assert_eq!((sale.state, sale.rehearsal), (SaleState::Published, true));
    let ids = stand.admit(&sale, "rehearsal:x", 5).await;
    let clean_up = async || stand.operations.by(WHO).clean_up_rehearsal(sale.id).await;

    // Orders are on their way; and it is closed, so that no more come.
    let busy = refused(clean_up().await);
    assert!(matches!(busy, Refused::RehearsalBusy { what: 5, .. }), "{busy}");
    assert_eq!(stand.operations.get_sale(sale.id).await.expect("there").state, SaleState::Closed);
    stand.work().await;
    stand.operations.cancel_order(ids[0], &user_id("rehearsal:x-0")).await.expect("cancelled");
    let busy = refused(clean_up().await);
    assert!(matches!(busy, Refused::RehearsalBusy { what: 1, .. }), "{busy}");
    stand.relay().await;
    stand.assert_clean(&sale).await;
    assert_eq!(keys_of(&stand, &sale).await, 2);

    clean_up().await.expect("cleaned up");
    assert_eq!(keys_of(&stand, &sale).await, 0);
    let unknown = refused(stand.operations.report(sale.id).await);
    assert!(matches!(unknown, Refused::SaleNotFound(_)), "{unknown}");
    assert_eq!(stand.operations.list_rehearsals().await.expect("listed"), []);
    let again = refused(clean_up().await);
    assert!(matches!(again, Refused::SaleNotFound(_)), "{again}");

    // Its neighbour has what it had, and a rebuild misses nothing.
    stand.assert_clean(&neighbour).await;
    let rebuilt = stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    assert_eq!(rebuilt.sales.iter().map(|sale| sale.sale_id).collect::<Vec<_>>(), [neighbour.id]);
    stand.assert_clean(&neighbour).await;

    let filter = AuditFilter { actor: Some(WHO.to_owned()), limit: 10, ..AuditFilter::default() };
    let lines = stand.operations.list_audit_log(&filter).await.expect("a log");
    let actions: Vec<&str> = lines.iter().map(|line| line.action.as_str()).collect();
    assert_eq!(actions, ["rehearsal.clean-up", "rehearsal.begin"]);
});

on_both!(a_rehearsals_dead_letters_go_with_it, async |stand: Stand| {
    let neighbour = stand.publish(10).await;
    let sale = begin(&stand, 5).await;
    stand.refuse_poison().await;
    stand.admit(&sale, "poison", 1).await;
    let theirs = stand.admit(&neighbour, "poison", 1).await;
    assert_eq!(stand.work().await.dead, 2);
    stand.operations.by(WHO).clean_up_rehearsal(sale.id).await.expect("cleaned up");
    let all = DeadFilter::default();
    let left = stand.operations.list_dead(&all).await.expect("listed");
    assert_eq!(left.iter().map(|dead| dead.order_id).collect::<Vec<_>>(), [Some(theirs[0])]);
});

on_both!(a_sale_of_everybody_is_never_cleaned_up, async |stand: Stand| {
    let real = stand.publish(10).await;
    stand.admit(&real, "real", 2).await;
    stand.work().await;
    let spared = refused(stand.operations.by(WHO).clean_up_rehearsal(real.id).await);
    assert!(matches!(spared, Refused::NotARehearsal(_)), "{spared}");
    let after = stand.operations.get_sale(real.id).await.expect("there");
    assert_eq!(after.state, SaleState::Published);
    stand.assert_clean(&real).await;
});

on_both!(a_clean_up_that_was_interrupted_goes_on, async |stand: Stand| {
    let sale = begin(&stand, 5).await;
    stand.admit(&sale, "rehearsal:x", 2).await;
    stand.work().await;
    stand.operations.close_sale(sale.id).await.expect("closed");
    let erased = stand.database.erase_rehearsal(sale.id).await.expect("answered");
    assert_eq!(erased, Erasure::Done);
    // Nobody misses in Redis what has no home, and an audit of all sales finds nothing.
    let audits = stand.operations.audit_all().await.expect("audited");
    assert!(audits.audits.iter().all(|audit| audit.is_clean()), "{audits:?}");

    let found = stand.operations.list_rehearsals().await.expect("listed");
    assert_eq!(found.iter().map(|sale| sale.id).collect::<Vec<_>>(), [sale.id]);
    stand.operations.by(WHO).clean_up_rehearsal(sale.id).await.expect("cleaned up");
    assert_eq!(keys_of(&stand, &sale).await, 0);
    assert_eq!(stand.operations.list_rehearsals().await.expect("listed"), []);
});
