//! The window by Redis's clock: `opens ≤ now < closes`, at its edges to the millisecond.

use std::time::Instant;

use flashsale_domain::{Window, WindowPhase};
use flashsale_storage_redis::AdmissionBatch;

use crate::support::{Deployment, FAR_AHEAD_MS, LONG_AGO_MS, Outcome, SOON, outcomes, press, sale};

/// How far ahead the edge is set, so that calls meet it from both sides.
const AHEAD_MS: i64 = 4;

fn expected(window: Window, batch: &AdmissionBatch) -> &'static str {
    match window.phase_at(batch.now_ms) {
        WindowPhase::NotStarted => "not started",
        WindowPhase::Open => "admitted",
        WindowPhase::Ended => "ended",
    }
}

fn told(batch: &AdmissionBatch) -> &'static str {
    match outcomes(batch)[0] {
        Outcome::NotStarted => "not started",
        Outcome::Admitted(_) => "admitted",
        Outcome::Ended => "ended",
        other => panic!("{other:?}"),
    }
}

/// Sets an edge a few milliseconds ahead and calls over it, again and again, until calls have fallen
/// into the last millisecond before it and into the first one of it. Every answer on the way must be
/// the one that its own clock asks for.
async fn cross(field: &str, window_with_edge: impl Fn(i64) -> Window) {
    let deployment = Deployment::selling(&sale(10_000_000)).await;
    let mut admission = deployment.admission();
    let sale_id = sale(1).id;
    let (mut just_before, mut just_at) = (0, 0);
    let started = Instant::now();
    let mut buyer = 0;
    while just_before == 0 || just_at == 0 {
        assert!(started.elapsed() < SOON, "hits: {just_before} before the edge, {just_at} at it");
        let (seconds, micros): (i64, i64) = deployment.ask(&["TIME"]).await;
        let edge_ms = seconds * 1000 + micros / 1000 + AHEAD_MS;
        deployment.set_field(&deployment.sale_key(), field, &edge_ms.to_string()).await;
        loop {
            buyer += 1;
            let request = [press(&format!("buyer-{buyer}"))];
            let batch =
                admission.admit(deployment.partition, sale_id, &request).await.expect("answered");
            assert_eq!(
                told(&batch),
                expected(window_with_edge(edge_ms), &batch),
                "{field} = {edge_ms}, now = {}",
                batch.now_ms
            );
            just_before += u32::from(batch.now_ms == edge_ms - 1);
            just_at += u32::from(batch.now_ms == edge_ms);
            if batch.now_ms > edge_ms {
                break;
            }
        }
    }
}

#[tokio::test]
async fn the_window_opens_in_its_first_millisecond_and_not_one_before() {
    cross("opens_ms", |edge| Window::new(edge, FAR_AHEAD_MS).expect("a window")).await;
}

#[tokio::test]
async fn the_window_is_open_to_its_last_millisecond_and_not_one_longer() {
    cross("closes_ms", |edge| Window::new(LONG_AGO_MS, edge).expect("a window")).await;
}
