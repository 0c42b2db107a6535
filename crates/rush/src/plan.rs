//! Who presses when: pure, and the same for the same seed.

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// How far, in presses, a repeat may be behind its buyer's first press. At 10,000 presses a second
/// this is a tenth of a second: an impatient thumb, after the first answer or before it.
const REPEAT_WITHIN: u64 = 1_000;

/// The buyers in the order in which they press: each `repeat` times, first presses shuffled.
///
/// Half of the repeats directly follow the press before, so that with several connections both
/// are in flight at once (a double press); the others are spread over the next
/// [`REPEAT_WITHIN`] presses.
pub(crate) fn presses(buyers: u32, repeat: u32, seed: u64) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut order: Vec<u32> = (0..buyers).collect();
    order.shuffle(&mut rng);
    if repeat == 1 {
        return order;
    }
    let mut presses: Vec<(u64, u32)> = Vec::new();
    for (place, &buyer) in (0_u64..).step_by(usize::try_from(repeat).unwrap_or(1)).zip(&order) {
        presses.push((place, buyer));
        for _ in 1..repeat {
            let behind = if rng.random() { 0 } else { rng.random_range(1..=REPEAT_WITHIN) };
            presses.push((place + behind, buyer));
        }
    }
    // Stable, so that the presses of one place stay together.
    presses.sort_by_key(|&(place, _)| place);
    presses.into_iter().map(|(_, buyer)| buyer).collect()
}

/// When press number `press` is due, in nanoseconds after the start.
///
/// Integers, from the number and not from the press before: an open loop must not drift.
pub(crate) fn due_ns(press: usize, per_s: u64) -> u64 {
    let press = u128::try_from(press).unwrap_or(u128::MAX);
    u64::try_from(press.saturating_mul(1_000_000_000) / u128::from(per_s)).unwrap_or(u64::MAX)
}

/// How many presses are due when `elapsed_ns` have passed: the first one at once.
pub(crate) fn due_count(elapsed_ns: u64, per_s: u64) -> usize {
    // The largest n with due_ns(n - 1) <= elapsed, where due_ns rounds down.
    let due = (u128::from(elapsed_ns) * u128::from(per_s) + u128::from(per_s) - 1) / 1_000_000_000;
    usize::try_from(due + 1).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_buyer_presses_as_often_as_told() {
        for repeat in [1, 2, 5] {
            let presses = presses(2_000, repeat, 7);
            let mut count = vec![0_u32; 2_000];
            for buyer in presses {
                count[usize::try_from(buyer).expect("fits")] += 1;
            }
            assert!(count.iter().all(|&n| n == repeat), "repeat {repeat}");
        }
    }

    #[test]
    fn a_seed_fixes_the_order_and_another_changes_it() {
        assert_eq!(presses(500, 3, 1), presses(500, 3, 1));
        assert_ne!(presses(500, 3, 1), presses(500, 3, 2));
        assert_ne!(presses(500, 1, 1), (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn repeats_are_near_and_many_are_double_presses() {
        let presses = presses(10_000, 2, 3);
        let mut first = vec![None; 10_000];
        let (mut adjacent, mut later) = (0, 0);
        for (at, buyer) in presses.into_iter().enumerate() {
            match first[usize::try_from(buyer).expect("fits")] {
                None => first[usize::try_from(buyer).expect("fits")] = Some(at),
                Some(before) if at - before <= 3 => adjacent += 1,
                Some(before) => {
                    later += 1;
                    assert!(at - before <= 2_000, "{} presses behind", at - before);
                }
            }
        }
        assert!(adjacent > 4_000, "{adjacent} double presses");
        assert!(later > 4_000, "{later} later presses");
    }

    #[test]
    fn what_is_due_agrees_with_when_it_is_due() {
        for per_s in [1, 3, 999, 30_000, 1_000_000] {
            for press in [0, 1, 2, 10, 12_345] {
                let due = due_ns(press, per_s);
                assert_eq!(due_count(due, per_s), press + 1, "press {press} at {per_s}/s");
                assert!(due == 0 || due_count(due - 1, per_s) <= press);
            }
        }
        assert_eq!(due_ns(30_000, 30_000), 1_000_000_000);
    }
}
