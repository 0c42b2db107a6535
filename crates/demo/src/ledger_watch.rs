//! The ledger while the crowd presses: read again and again, and balanced each time.

use crate::programs::Ledger;
use crate::report::grouped;
use crate::stack::Stack;

/// How often it is read.
const READINGS: usize = 20;
const A_LINE: usize = 4;

/// Reads the ledger twenty times in a row, beginning with the rush.
pub(crate) async fn watch(stack: &Stack, sale: &str) -> anyhow::Result<Vec<Ledger>> {
    let mut readings = Vec::with_capacity(READINGS);
    while readings.len() < READINGS {
        readings.push(stack.salectl().ledger(sale).await?);
    }
    Ok(readings)
}

/// What did not balance.
pub(crate) fn problems(readings: &[Ledger]) -> Vec<String> {
    let crooked = readings.iter().filter(|ledger| !ledger.balanced);
    crooked
        .map(|ledger| format!("the ledger during the rush: {}", ledger.problems.join("; ")))
        .collect()
}

/// The readings in figures.
pub(crate) fn table(readings: &[Ledger]) -> String {
    let cells: Vec<String> = readings
        .iter()
        .map(|ledger| {
            let held = ledger.redis.as_ref().map_or(0, |redis| redis.held);
            let rows = ledger.awaiting_payment;
            format!("{:>6} = {:>6} + {:<6}", grouped(held), grouped(rows), ledger.queued)
        })
        .collect();
    let lines: Vec<String> =
        cells.chunks(A_LINE).map(|cells| format!("  {}", cells.join("  ").trim_end())).collect();
    let balanced = readings.iter().filter(|ledger| ledger.balanced).count();
    format!(
        "the ledger, read {} times during the rush: {balanced} times balanced\n\
         (units that Redis holds = rows of the database + orders on the stream)\n{}\n",
        readings.len(),
        lines.join("\n")
    )
}
