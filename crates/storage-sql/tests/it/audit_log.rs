//! The audit log: lines are added, never changed, and some of them once only.

use crate::support::{TestDatabase, on_both};

on_both!(a_line_that_is_added_once_is_not_added_again, async |database: TestDatabase| {
    let once = async |actor: &str, action: &str, subject: &str| {
        database.insert_audit_once(actor, action, subject, "détail ' \" %").await.unwrap();
    };
    once("one", "entry.lost", "17").await;
    once("other", "entry.lost", "17").await;
    once("one", "entry.lost", "18").await;
    once("one", "entry.found", "17").await;
    database.insert_audit("one", "entry.lost", "18", "again").await.unwrap();
    let lines = database.list_audit(10).await.unwrap();
    let told: Vec<_> = lines
        .iter()
        .map(|line| (line.actor.as_str(), line.action.as_str(), line.subject.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("one", "entry.lost", "18"),
            ("one", "entry.found", "17"),
            ("one", "entry.lost", "18"),
            ("one", "entry.lost", "17"),
        ]
    );
    assert_eq!(lines[3].detail, "détail ' \" %");
    assert!(lines.iter().all(|line| line.at_ms > 1_700_000_000_000));
});
