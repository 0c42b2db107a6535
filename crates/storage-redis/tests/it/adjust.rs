//! Adjustments of a stock while the sale runs: each carried out once, in the memory it was meant for.

use flashsale_storage_redis::{Adjusted, RedisFault};
use flashsale_test_support::eventually;

use crate::support::{Deployment, Outcome, SOON, crowd, press, sale};

const EPOCH: i64 = 7;

async fn try_adjust(
    deployment: &Deployment,
    number: i64,
    delta: i64,
    epoch: i64,
) -> Result<Adjusted, RedisFault> {
    let id = sale(1).id;
    deployment.redis.adjust_stock(deployment.partition, id, number, delta, epoch).await
}

async fn adjust(deployment: &Deployment, number: i64, delta: i64) -> Adjusted {
    try_adjust(deployment, number, delta, EPOCH).await.expect("answered")
}

/// `[stock, held, total, returns, reopen_ms]`.
async fn fields(deployment: &Deployment) -> [i64; 5] {
    let key = deployment.sale_key();
    deployment.ask(&["HMGET", &key, "stock", "held", "total", "returns", "reopen_ms"]).await
}

#[tokio::test]
async fn an_adjustment_is_carried_out_once() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.admit(&crowd(4)).await;
    for _ in 0..3 {
        assert_eq!(adjust(&deployment, 5, 3).await, Adjusted::Done);
        assert_eq!(fields(&deployment).await, [9, 4, 13, 1, 0]);
    }
    for _ in 0..3 {
        assert_eq!(adjust(&deployment, 6, -9).await, Adjusted::Done);
        assert_eq!(fields(&deployment).await, [0, 4, 4, 1, 0], "nothing came back");
    }
    // An older one that was on its way for long.
    assert_eq!(adjust(&deployment, 5, 3).await, Adjusted::Done);
    assert_eq!(fields(&deployment).await, [0, 4, 4, 1, 0]);
    assert_eq!(deployment.admit_one(press("late")).await, Outcome::SoldOut);
}

#[tokio::test]
async fn what_buyers_hold_is_not_taken_away() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.admit(&crowd(4)).await;
    let before = fields(&deployment).await;
    for delta in [-7, -10, -100_000_000] {
        assert_eq!(adjust(&deployment, 5, delta).await, Adjusted::Refused, "{delta}");
        assert_eq!(fields(&deployment).await, before);
    }
    assert_eq!(adjust(&deployment, 6, -6).await, Adjusted::Done);
    assert_eq!(fields(&deployment).await, [0, 4, 4, 0, 0]);
}

#[tokio::test]
async fn a_refusal_stays_though_units_come_back() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.admit(&crowd(10)).await;
    assert_eq!(adjust(&deployment, 5, -1).await, Adjusted::Refused);
    // Somebody may have told the database so, and begun the next.
    assert_eq!(adjust(&deployment, 6, 4).await, Adjusted::Done);
    let before = fields(&deployment).await;
    assert_eq!(adjust(&deployment, 5, -1).await, Adjusted::Done, "older than the last one");
    assert_eq!(fields(&deployment).await, before);

    let deployment = Deployment::selling(&sale(10)).await;
    deployment.admit(&crowd(10)).await;
    assert_eq!(adjust(&deployment, 5, -1).await, Adjusted::Refused);
    deployment.set_field(&deployment.sale_key(), "stock", "3").await;
    let before = fields(&deployment).await;
    assert_eq!(adjust(&deployment, 5, -1).await, Adjusted::Refused);
    assert_eq!(fields(&deployment).await, before);
    assert_eq!(adjust(&deployment, 6, -1).await, Adjusted::Done);
}

#[tokio::test]
async fn stock_that_rises_from_nothing_is_held_back_until_the_leases_have_run_out() {
    let deployment = Deployment::selling(&sale(2)).await;
    deployment.admit(&crowd(2)).await;
    assert_eq!(deployment.admit_one(press("late")).await, Outcome::SoldOut);
    assert_eq!(adjust(&deployment, 1, 5).await, Adjusted::Done);
    let [stock, held, total, returns, reopen_ms] = fields(&deployment).await;
    assert_eq!([stock, held, total, returns], [5, 2, 7, 1]);

    let now_ms = async || deployment.try_admit(&[press("buyer-0")]).await.unwrap().now_ms;
    let ahead = reopen_ms - now_ms().await;
    assert!((1..=500).contains(&ahead), "{ahead} ms");
    let admitted = eventually(SOON, "the new units on sale", async || {
        let batch = deployment.try_admit(&[press("late")]).await.expect("answered");
        match crate::support::outcomes(&batch)[0] {
            Outcome::Admitted(_) => Some(batch.now_ms),
            Outcome::SoldOut => {
                assert!(batch.now_ms < reopen_ms, "sold out though the leases have run out");
                None
            }
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert!(admitted >= reopen_ms, "admitted while a gateway may still refuse");

    // A repeat holds nothing back anew; nor does growth of what is not gone, nor shrinking.
    assert_eq!(adjust(&deployment, 1, 5).await, Adjusted::Done);
    assert_eq!(adjust(&deployment, 2, 5).await, Adjusted::Done);
    assert_eq!(adjust(&deployment, 3, -1).await, Adjusted::Done);
    assert_eq!(fields(&deployment).await, [8, 3, 11, 2, reopen_ms]);
    deployment.admit_one(press("another")).await.admitted();
}

#[tokio::test]
async fn an_adjustment_of_another_epoch_waits() {
    let deployment = Deployment::selling(&sale(10)).await;
    let before = deployment.contents().await;
    for epoch in [EPOCH - 1, EPOCH + 1, 0] {
        for delta in [1, -1] {
            let answer = try_adjust(&deployment, 5, delta, epoch).await.unwrap();
            assert_eq!(answer, Adjusted::NotLoaded, "{epoch}");
        }
    }
    assert_eq!(deployment.contents().await, before);
    // Also one that was carried out: the memory it was carried out in is another one.
    assert_eq!(adjust(&deployment, 5, 1).await, Adjusted::Done);
    assert_eq!(try_adjust(&deployment, 5, 1, EPOCH + 1).await.unwrap(), Adjusted::NotLoaded);
}

#[tokio::test]
async fn an_adjustment_waits_while_the_sale_is_not_loaded() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.set_field(&deployment.gate_key(), "replid", "of another server").await;
    let before = deployment.contents().await;
    assert_eq!(adjust(&deployment, 5, 1).await, Adjusted::NotLoaded);
    assert_eq!(deployment.contents().await, before);
    deployment.redis.fence(deployment.partition).await.unwrap();
    assert_eq!(adjust(&deployment, 5, 1).await, Adjusted::NotLoaded);
    let empty = Deployment::empty().await;
    assert_eq!(adjust(&empty, 5, 1).await, Adjusted::NotLoaded);
    empty.open_gate().await;
    assert_eq!(adjust(&empty, 5, 1).await, Adjusted::NotLoaded);
    let left: i64 = empty.ask(&["EXISTS", &empty.sale_key()]).await;
    assert_eq!(left, 0, "asking creates nothing");
}

#[tokio::test]
async fn a_load_forgets_what_was_adjusted_before() {
    let deployment = Deployment::selling(&sale(10)).await;
    let partition = deployment.partition;
    assert_eq!(adjust(&deployment, 5, -4).await, Adjusted::Done);
    assert_eq!(adjust(&deployment, 6, -9).await, Adjusted::Refused);
    let fence = deployment.redis.fence(partition).await.unwrap();
    let loaded = flashsale_domain::Sale { epoch: EPOCH + 1, ..sale(10) };
    assert!(deployment.redis.load_sale(&fence, &loaded, 10, 0, &[]).await.unwrap());
    let last_id = fence.last_id;
    assert!(deployment.redis.open_gate(fence, last_id).await.unwrap());
    // The database did not know of either, and asks again.
    for number in [5, 6] {
        let answer = try_adjust(&deployment, number, -4, EPOCH + 1).await.unwrap();
        assert_eq!(answer, Adjusted::Done, "{number}");
    }
    assert_eq!(deployment.units().await, [2, 0]);
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_before_any_unit_moves() {
    let deployment = Deployment::selling(&sale(10)).await;
    for key in [deployment.gate_key(), deployment.sale_key()] {
        let aside = format!("{key}-aside");
        deployment.ask::<()>(&["RENAME", &key, &aside]).await;
        deployment.ask::<()>(&["SET", &key, "a string"]).await;
        let before = deployment.contents().await;
        let fault = try_adjust(&deployment, 5, 1, EPOCH).await.unwrap_err();
        assert!(fault.to_string().contains("WRONGTYPE"), "{key}: {fault}");
        assert_eq!(deployment.contents().await, before, "{key}");
        deployment.ask::<()>(&["RENAME", &aside, &key]).await;
    }
    // A field that is no number.
    for field in ["adjusted", "not_adjusted"] {
        deployment.set_field(&deployment.sale_key(), field, "many").await;
        let before = deployment.contents().await;
        try_adjust(&deployment, 5, 1, EPOCH).await.unwrap_err();
        assert_eq!(deployment.contents().await, before, "{field}");
        deployment.ask::<()>(&["HDEL", &deployment.sale_key(), field]).await;
    }
    assert_eq!(adjust(&deployment, 5, 1).await, Adjusted::Done);
}

#[tokio::test]
async fn fifty_calls_at_once_adjust_once() {
    let deployment = Deployment::selling(&sale(10)).await;
    let calls = (0..50).map(|_| adjust(&deployment, 5, -7));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer, Adjusted::Done);
    }
    assert_eq!(fields(&deployment).await, [3, 0, 3, 0, 0]);
}
