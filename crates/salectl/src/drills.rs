//! The drills: which alert each one rehearses, and how it ends. Which runbook names which drill is
//! compared by a test below.

use clap::ValueEnum;
use serde::Serialize;

/// What is drilled; named as its runbook is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DrillName {
    DeadLetters,
    EntriesLost,
    LedgerImbalance,
    OrdersWaiting,
    GateClosed,
    NoWorker,
    NoGateway,
    AofOff,
    RedisMayEvict,
}

/// How a drill goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// What it causes stays until `--undo`.
    Stays,
    /// It ends itself after `--for`; if it is killed, workers end it.
    EndsItself,
    /// Somebody else does it, as it says; it watches.
    Guided,
}

/// A drill.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Drill {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// What fires.
    pub(crate) alerts: &'static [&'static str],
    /// What is done; of a guided one, what to do, and what to do in the end.
    pub(crate) what: &'static str,
    pub(crate) back: &'static str,
    /// In how long the first alert fires.
    pub(crate) within: &'static str,
}

impl Drill {
    pub(crate) fn runbook(&self) -> String {
        format!("docs/runbooks/{}.md", self.name)
    }
}

const UNDO: &str = "--undo puts it right, or do as the runbook says, and --undo in the end";

impl DrillName {
    pub(crate) const fn drill(self) -> Drill {
        match self {
            Self::DeadLetters => Drill {
                name: "dead-letters",
                kind: Kind::Stays,
                alerts: &["FlashsaleDeadLetters"],
                what: "an entry of a sale of its own cannot become a row, and is set aside",
                back: UNDO,
                within: "a minute",
            },
            Self::EntriesLost => Drill {
                name: "entries-lost",
                kind: Kind::Stays,
                alerts: &["FlashsaleEntriesLost"],
                what: "an order of a sale of its own is admitted, and vanishes from the stream",
                back: "--undo puts it right, or do as the runbook says, and --undo in the end; the alert \
                       stays for half an hour",
                within: "a minute",
            },
            Self::LedgerImbalance => Drill {
                name: "ledger-imbalance",
                kind: Kind::Stays,
                alerts: &["FlashsaleLedgerImbalance"],
                what: "Redis holds a unit of a sale of its own that no order has",
                back: UNDO,
                within: "a minute",
            },
            Self::OrdersWaiting => Drill {
                name: "orders-waiting",
                kind: Kind::EndsItself,
                alerts: &["FlashsaleOrdersWaiting", "FlashsaleCommitLag"],
                what: "an order of a sale of its own is kept from the workers; when it ends, it becomes a \
                       row, and is late",
                back: "it ends itself",
                within: "two minutes",
            },
            Self::GateClosed => Drill {
                name: "gate-closed",
                kind: Kind::EndsItself,
                alerts: &["FlashsaleGateClosed", "FlashsaleAdmissionErrors"],
                what: "the gate of a partition without a sale that is on is closed, and a buyer is turned \
                       away each second",
                back: "it ends itself",
                within: "two minutes",
            },
            Self::NoWorker => Drill {
                name: "no-worker",
                kind: Kind::Guided,
                alerts: &["FlashsaleNoWorker"],
                what: "stop the order-workers: kubectl -n flashsale annotate scaledobject flashsale-worker \
                       autoscaling.keda.sh/paused-replicas=0",
                back: "start them again: kubectl -n flashsale annotate scaledobject flashsale-worker \
                       autoscaling.keda.sh/paused-replicas-",
                within: "two minutes",
            },
            Self::NoGateway => Drill {
                name: "no-gateway",
                kind: Kind::Guided,
                alerts: &["FlashsaleNoGateway"],
                what: "stop the gateways: kubectl -n flashsale scale deployment flashsale-gateway --replicas 0",
                back: "start them again: kubectl -n flashsale scale deployment flashsale-gateway --replicas 2",
                within: "two minutes",
            },
            Self::AofOff => Drill {
                name: "aof-off",
                kind: Kind::Guided,
                alerts: &["FlashsaleAofOff"],
                what: "on Redis: CONFIG SET appendonly no",
                back: "on Redis: CONFIG SET appendonly yes",
                within: "a minute",
            },
            Self::RedisMayEvict => Drill {
                name: "redis-may-evict",
                kind: Kind::Guided,
                alerts: &["FlashsaleRedisMayEvict"],
                what: "on Redis: CONFIG SET maxmemory-policy allkeys-lru",
                back: "on Redis: CONFIG SET maxmemory-policy noeviction",
                within: "a minute",
            },
        }
    }

    pub(crate) fn all() -> impl Iterator<Item = Drill> {
        Self::value_variants().iter().map(|name| name.drill())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Every alert with its runbook.
    fn alerts() -> BTreeSet<(String, String)> {
        let rules =
            fs::read_to_string(root().join("deploy/monitoring/alerts.yaml")).expect("rules");
        let parts = rules.split("- alert: ").skip(1);
        let alert = |part: &str| {
            let name = part.lines().next()?.trim().to_owned();
            let runbook = part.split_once("runbook_url: ")?.1.lines().next()?.trim().to_owned();
            Some((name, runbook))
        };
        let found: BTreeSet<_> = parts.map(|part| alert(part).expect("a runbook")).collect();
        assert!(found.len() >= 15, "the alerts are no longer found: {found:?}");
        found
    }

    #[test]
    fn every_alert_has_a_drill_in_its_runbook_or_the_reason_why_there_is_none() {
        let mut drilled = BTreeSet::new();
        for (alert, runbook) in alerts() {
            let text = fs::read_to_string(root().join(&runbook)).expect("a runbook");
            let (_, section) = text.split_once("\n## Drill\n").unwrap_or_else(|| {
                panic!("{runbook} has no section on its drill");
            });
            let named: Vec<&str> = section
                .lines()
                .filter_map(|line| line.trim().strip_prefix("salectl drill ")?.split(' ').next())
                .collect();
            if named.is_empty() {
                assert!(section.contains("No drill"), "{runbook}: neither a drill nor why not");
                continue;
            }
            for name in named {
                let drill = DrillName::all().find(|drill| drill.name == name);
                let drill = drill.unwrap_or_else(|| panic!("{runbook}: no drill {name}"));
                assert!(
                    drill.alerts.contains(&alert.as_str()),
                    "{runbook}: {name} causes no {alert}"
                );
                drilled.insert((name.to_owned(), alert.clone()));
            }
        }
        let promised: BTreeSet<_> = DrillName::all()
            .flat_map(|drill| {
                drill.alerts.iter().map(|alert| (drill.name.to_owned(), (*alert).to_owned()))
            })
            .collect();
        assert_eq!(drilled, promised, "the runbooks, and what the drills say that they cause");
    }

    #[test]
    fn a_drill_is_named_as_its_runbook_and_as_it_is_typed() {
        for name in DrillName::value_variants() {
            let typed = name.to_possible_value().expect("none is hidden");
            let drill = name.drill();
            assert_eq!(typed.get_name(), drill.name);
            assert!(root().join(drill.runbook()).is_file(), "{}", drill.runbook());
        }
    }
}
