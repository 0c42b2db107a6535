//! `salectl dead`.

use flashsale_operations::{DeadFilter, DeadOrder, DeadOutcome};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ACTOR;
use crate::Verdict;
use crate::cli::{DeadActionArgs, DeadCommand, DeadFilterArgs};
use crate::failure::Failure;
use crate::output::{Output, columns, fields};
use crate::remote::Access;
use crate::when::rfc3339;

/// ```json
/// {"dead":[{"partition":0,"entry_id":"1764470400000-0","order_id":"...","sale_id":"1",
///   "user_id":"buyer","reason":"data-refused","detail":"...","code":"23514","attempts":1,
///   "consumers":["host-1-0a0b0c0d"],"first_ms":1764470400000,"last_ms":1764470400000,
///   "fields":[["v","1"]]}]}
/// ```
#[derive(Serialize, Deserialize)]
struct Letters {
    dead: Vec<DeadOrder>,
}

/// ```json
/// {"dry_run":false,"outcomes":[{"entry_id":"1764470400000-0","order_id":"...","settled":true,
///   "what":"is a row now"}]}
/// ```
#[derive(Serialize, Deserialize)]
struct Outcomes {
    dry_run: bool,
    outcomes: Vec<DeadOutcome>,
}

/// Lists, shows, tries again or gives up. Exit code 1 when something that was to be settled is not.
pub(crate) async fn run(
    command: DeadCommand,
    access: &Access<'_>,
    output: Output,
) -> Result<Verdict, Failure> {
    match command {
        DeadCommand::List(args) => {
            let letters = find(&filter_of(&args), access).await?;
            output.print(&letters, || list_text(&letters.dead))?;
            Ok(Verdict::Good)
        }
        DeadCommand::Show { id } => {
            let letters = find(&DeadFilter::from(id), access).await?;
            output.print(&letters, || letters.dead.iter().map(show_text).collect())?;
            Ok(Verdict::Good)
        }
        DeadCommand::Requeue(args) => conclude(act(Action::Requeue, &args, access).await?, output),
        DeadCommand::Reject(args) => conclude(act(Action::Reject, &args, access).await?, output),
    }
}

async fn find(filter: &DeadFilter, access: &Access<'_>) -> Result<Letters, Failure> {
    match access {
        Access::Stores(settings) => {
            let operations = super::operations(settings).await?;
            Ok(Letters { dead: operations.list_dead(filter).await? })
        }
        Access::Gateway(remote) => {
            let text = |value: Option<&dyn ToString>| value.map(ToString::to_string);
            let partition = filter.partition.map(|partition| partition.number());
            let parameters = [
                ("id", text(filter.entry.as_ref().map(|entry| entry as _))),
                ("partition", text(partition.as_ref().map(|number| number as _))),
                ("sale", text(filter.sale_id.as_ref().map(|sale| sale as _))),
                ("reason", filter.reason.clone()),
                ("limit", Some(filter.limit.to_string())),
            ];
            remote.get("dead-letters", &parameters).await
        }
    }
}

/// What becomes of letters.
#[derive(Debug, Clone, Copy)]
enum Action {
    Requeue,
    Reject,
}

async fn act(
    action: Action,
    args: &DeadActionArgs,
    access: &Access<'_>,
) -> Result<Outcomes, Failure> {
    let (filter, dry_run) = (action_filter(args), args.dry_run);
    let remote = match access {
        Access::Gateway(remote) => remote,
        Access::Stores(settings) => {
            let operations = super::operations(settings).await?;
            let outcomes = match action {
                Action::Requeue => operations.requeue_dead(&filter, ACTOR, dry_run).await?,
                Action::Reject => operations.reject_dead(&filter, ACTOR, dry_run).await?,
            };
            return Ok(Outcomes { dry_run, outcomes });
        }
    };
    let name = match action {
        Action::Requeue => "requeue",
        Action::Reject => "reject",
    };
    let mut all = Outcomes { dry_run, outcomes: Vec::new() };
    for letter in find(&filter, access).await?.dead {
        let order = letter.order_id.as_ref().map(ToString::to_string);
        let id = order.unwrap_or(letter.entry_id);
        let path = format!("dead-letters/{id}/{name}");
        let one: Outcomes = remote.post(path, &json!({ "dry_run": dry_run })).await?;
        all.outcomes.extend(one.outcomes);
    }
    Ok(all)
}

fn filter_of(args: &DeadFilterArgs) -> DeadFilter {
    let (sale_id, reason) = (args.sale, args.reason.clone());
    DeadFilter { sale_id, reason, limit: args.limit, ..DeadFilter::default() }
}

fn action_filter(args: &DeadActionArgs) -> DeadFilter {
    let (partition, entry) = (args.id.and_then(|id| id.partition), args.id.map(|id| id.entry));
    DeadFilter { partition, entry, ..filter_of(&args.filter) }
}

fn conclude(outcomes: Outcomes, output: Output) -> Result<Verdict, Failure> {
    let all_settled = outcomes.outcomes.iter().all(|outcome| outcome.settled);
    output.print(&outcomes, || {
        if outcomes.outcomes.is_empty() {
            return "no dead letter is named by this".to_owned();
        }
        let rows: Vec<Vec<String>> = outcomes
            .outcomes
            .iter()
            .map(|outcome| vec![name_of(outcome), outcome.what.clone()])
            .collect();
        columns(&rows)
    })?;
    Ok(if all_settled || outcomes.dry_run { Verdict::Good } else { Verdict::Broken })
}

fn name_of(outcome: &DeadOutcome) -> String {
    let order = outcome.order_id.as_ref().map(ToString::to_string);
    order.unwrap_or_else(|| outcome.entry_id.clone())
}

fn list_text(letters: &[DeadOrder]) -> String {
    if letters.is_empty() {
        return "no dead letters".to_owned();
    }
    let head = ["order", "entry", "sale", "buyer", "reason", "since", "detail"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(letters.iter().map(|letter| {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        vec![
            text(letter.order_id.as_ref().map(ToString::to_string)),
            letter.entry_id.clone(),
            text(letter.sale_id.as_ref().map(ToString::to_string)),
            text(letter.user_id.clone()),
            letter.reason.clone(),
            rfc3339(letter.first_ms),
            letter.detail.clone(),
        ]
    }));
    columns(&rows)
}

fn show_text(letter: &DeadOrder) -> String {
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let mut shown = fields([
        ("entry", letter.entry_id.clone()),
        ("partition", letter.partition.to_string()),
        ("order", text(letter.order_id.as_ref().map(ToString::to_string))),
        ("sale", text(letter.sale_id.as_ref().map(ToString::to_string))),
        ("buyer", text(letter.user_id.clone())),
        ("reason", letter.reason.clone()),
        ("detail", letter.detail.clone()),
        ("code", text(letter.code.clone())),
        ("attempts", letter.attempts.to_string()),
        ("tried by", letter.consumers.join(", ")),
        ("since", rfc3339(letter.first_ms)),
        ("last tried", rfc3339(letter.last_ms)),
    ]);
    for (name, value) in &letter.fields {
        shown.push_str(&format!("  {name:?} = {value:?}\n"));
    }
    shown
}
