//! Names that no other test uses, for key prefixes, databases and users.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// The longest name, so that it is accepted wherever a key prefix is.
const LENGTH_MAX: usize = 32;

/// 36^7 ns are 78 s: enough to tell apart two processes that were given the same pid.
const NANOS_RANGE: u128 = 36_u128.pow(7);

/// `prefix` made unique: at most 32 characters of `[a-z0-9_]`, starting with a letter. A prefix that
/// does not fit is shortened.
pub fn unique(prefix: &str) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);

    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let suffix = format!(
        "_{}_{}_{}",
        base36(u128::from(std::process::id())),
        base36(u128::from(counter)),
        base36(nanos % NANOS_RANGE),
    );

    let mut name: String = prefix
        .chars()
        .map(|character| match character.to_ascii_lowercase() {
            kept @ ('a'..='z' | '0'..='9') => kept,
            _ => '_',
        })
        .collect();
    if !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        name.insert(0, 't');
    }
    name.truncate(LENGTH_MAX.saturating_sub(suffix.len()).max(1));
    name + &suffix
}

fn base36(mut number: u128) -> String {
    let mut digits = Vec::new();
    loop {
        let digit = usize::try_from(number % 36).expect("a remainder of 36 fits");
        digits.push(DIGITS[digit]);
        number /= 36;
        if number == 0 {
            break;
        }
    }
    digits.iter().rev().map(|&digit| char::from(digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_differ_and_fit_wherever_a_prefix_is_accepted() {
        let prefixes = ["fs", "", "9 Lives", "a very long prefix that cannot be kept", "ünïque"];
        let mut seen = HashSet::new();
        for prefix in prefixes.into_iter().cycle().take(1_000) {
            let name = unique(prefix);
            assert!(name.len() <= LENGTH_MAX, "{name} is too long");
            assert!(name.starts_with(|first: char| first.is_ascii_lowercase()), "{name}");
            assert!(
                name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')),
                "{name}"
            );
            assert!(seen.insert(name.clone()), "{name} was given twice");
        }
    }
}
