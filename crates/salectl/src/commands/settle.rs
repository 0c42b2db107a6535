//! `salectl settle`.

use flashsale_bootstrap::Settings;
use flashsale_operations::{SettleAs, SettledOrder, Settling};
use serde::Serialize;

use super::ACTOR;
use crate::Verdict;
use crate::cli::{SettleArgs, SettleWord};
use crate::failure::Failure;
use crate::output::{Output, columns};
use crate::receipts;

/// ```json
/// {"dry_run":false,"outcomes":[{"order_id":"385644540322643969","user_id":"buyer","settled":true,
///   "what":"waits for payment now"}]}
/// ```
#[derive(Serialize)]
struct Outcomes {
    dry_run: bool,
    outcomes: Vec<SettledOrder>,
}

/// Settles what is lost of a sale. Exit code 1 when something that was to be settled is not.
pub(crate) async fn run(
    args: SettleArgs,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    let SettleArgs { sale, orders, settle_as, receipts, dry_run } = args;
    let receipts = receipts.as_deref().map(receipts::read).transpose()?.unwrap_or_default();
    let settle_as = match settle_as {
        SettleWord::Order => SettleAs::Order,
        SettleWord::Rejected => SettleAs::Rejected,
    };
    let settling = Settling { orders, settle_as, receipts };
    let operations = super::operations(settings).await?;
    let outcomes = operations.settle_lost(sale, &settling, ACTOR, dry_run).await?;
    let all_settled = outcomes.iter().all(|outcome| outcome.settled);
    let outcomes = Outcomes { dry_run, outcomes };
    output.print(&outcomes, || {
        if outcomes.outcomes.is_empty() {
            return format!("no order of sale {sale} is lost");
        }
        let text = |outcome: &SettledOrder| {
            let user = outcome.user_id.clone().unwrap_or_else(|| "-".to_owned());
            vec![outcome.order_id.to_string(), user, outcome.what.clone()]
        };
        columns(&outcomes.outcomes.iter().map(text).collect::<Vec<_>>())
    })?;
    Ok(if all_settled || dry_run { Verdict::Good } else { Verdict::Broken })
}
