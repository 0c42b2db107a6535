//! Ports for private servers.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Above what services of a machine usually listen on.
const PORT_MIN: u16 = 10_240;
/// Fewer candidates than this are not worth choosing from.
const CANDIDATES_MIN: u16 = 1_000;
const ATTEMPTS_MAX: u32 = 1_000;

/// A port of 127.0.0.1 that nobody listens on, given to one caller of this process only.
///
/// It lies below the range that the system gives to outgoing connections: a port from that range
/// may be taken by any client while its server is down, and a client that keeps trying to connect
/// to it can even end up connected to itself.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

    let mut guard = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = guard.get_or_insert_with(HashSet::new);
    let end = first_outgoing_port();
    for attempt in 0..ATTEMPTS_MAX {
        let wish = if end.saturating_sub(PORT_MIN) >= CANDIDATES_MIN {
            PORT_MIN + random_below(end - PORT_MIN, attempt)
        } else {
            0
        };
        let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, wish)) else {
            continue;
        };
        let port = listener.local_addr().expect("a bound socket has an address").port();
        if given.insert(port) {
            return port;
        }
    }
    panic!("found no free port on 127.0.0.1 in {ATTEMPTS_MAX} attempts");
}

fn first_outgoing_port() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

/// `RandomState` is seeded by the system, which is all the randomness that a port needs.
fn random_below(limit: u16, salt: u32) -> u16 {
    let hash = RandomState::new().hash_one(salt);
    u16::try_from(hash % u64::from(limit)).expect("a remainder of a u16 fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_and_each_can_be_listened_on() {
        let ports: HashSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
        for port in ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port is free");
        }
    }
}
