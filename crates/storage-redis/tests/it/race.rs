//! Many buyers at once, each on a connection of their own: what is sold, to whom, and how often.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use flashsale_domain::{AdmissionRequest, EntryId};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{Deployment, Outcome, outcomes, press, press_with_key, sale, user};

/// Sends each list of requests over its own connection, one request after the other, all lists at
/// the same time. The outcomes come with the number of their list.
async fn press_at_once(
    deployment: &Deployment,
    lists: Vec<Vec<AdmissionRequest>>,
) -> Vec<(usize, Outcome)> {
    let start = Arc::new(Barrier::new(lists.len()));
    let mut tasks = JoinSet::new();
    for (i, list) in lists.into_iter().enumerate() {
        let start = Arc::clone(&start);
        let partition = deployment.partition;
        let mut admission = deployment.admission();
        tasks.spawn(async move {
            start.wait().await;
            let mut seen = Vec::with_capacity(list.len());
            for request in &list {
                let batch = admission.admit(partition, sale(1).id, [request]).await;
                seen.push((i, outcomes(&batch.expect("answered"))[0]));
            }
            seen
        });
    }
    tasks.join_all().await.concat()
}

fn admitted(outcomes: &[(usize, Outcome)]) -> Vec<EntryId> {
    outcomes
        .iter()
        .filter_map(|(_, outcome)| match outcome {
            Outcome::Admitted(id) => Some(*id),
            _ => None,
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_fifty_buyers_for_ten_units_exactly_ten_are_admitted() {
    let deployment = Deployment::selling(&sale(10)).await;
    let lists = (0..50).map(|i| vec![press(&format!("buyer-{i}"))]).collect();
    let outcomes = press_at_once(&deployment, lists).await;
    let mut ids = admitted(&outcomes);
    let sold_out = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::SoldOut).count();
    assert_eq!((ids.len(), sold_out), (10, 40));
    ids.sort_unstable();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 10, "ids are unique");
    assert_eq!(deployment.stream_ids().await, ids, "the answered ids are the entries' ids");
    assert_eq!(deployment.units().await, [0, 10]);
    let records: usize = deployment.ask(&["HLEN", &deployment.buyers_key()]).await;
    assert_eq!(records, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_buyers_who_press_six_times_get_three_each() {
    let mut three_each = sale(1000);
    three_each.per_buyer = 3;
    let deployment = Deployment::selling(&three_each).await;
    // Two connections a buyer, so that one buyer's presses meet as well.
    let lists = (0..100).map(|i| vec![press(&format!("buyer-{}", i / 2)); 3]).collect();
    let outcomes = press_at_once(&deployment, lists).await;

    let mut of_buyer: HashMap<usize, HashSet<EntryId>> = HashMap::new();
    for (list, outcome) in &outcomes {
        if let Outcome::Admitted(id) = outcome {
            assert!(of_buyer.entry(list / 2).or_default().insert(*id), "{id} was given twice");
        }
    }
    assert_eq!(of_buyer.len(), 50);
    for (list, outcome) in outcomes {
        let orders = &of_buyer[&(list / 2)];
        assert_eq!(orders.len(), 3, "buyer {}", list / 2);
        match outcome {
            Outcome::Admitted(_) => {}
            Outcome::AlreadyOrdered(id) => assert!(orders.contains(&id), "somebody else's order"),
            other => panic!("{other:?}"),
        }
    }
    for buyer in 0..50 {
        let user = user(&format!("buyer-{buyer}"));
        let record = deployment.redis.find_record(deployment.partition, three_each.id, &user).await;
        let record = record.expect("readable").expect("a record");
        let slots: Vec<_> = record.items.iter().map(|item| item.slot).collect();
        assert_eq!(slots, [1, 2, 3]);
    }
    assert_eq!(deployment.slots_of("buyer-0").await, [1, 2, 3]);
    assert_eq!(deployment.units().await, [850, 150]);
    assert_eq!(deployment.stream_ids().await.len(), 150);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_key_sent_twenty_times_at_once_is_one_order() {
    let mut three_each = sale(100);
    three_each.per_buyer = 3;
    let deployment = Deployment::selling(&three_each).await;
    let outcomes = press_at_once(&deployment, vec![vec![press_with_key("ann", "k")]; 20]).await;
    let orders = admitted(&outcomes);
    assert_eq!(orders.len(), 1);
    let replays =
        outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Replayed(orders[0])).count();
    assert_eq!(replays, 19);
    assert_eq!(deployment.stream_ids().await, orders);
    assert_eq!(deployment.units().await, [99, 1]);
}
