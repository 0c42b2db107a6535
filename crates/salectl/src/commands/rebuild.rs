//! `salectl rebuild`.

use std::io::Write as _;
use std::sync::Arc;

use flashsale_bootstrap::Settings;
use flashsale_domain::SaleId;
use flashsale_operations::RebuildStep;

use super::ACTOR;
use crate::Verdict;
use crate::failure::Failure;
use crate::output::{Output, columns};

/// Loads the sale's partition from the database again, and prints what was loaded:
///
/// ```json
/// {"partition":0,"sales":[{"sale_id":"1","epoch":1,"stock":990,"held":10}]}
/// ```
pub(crate) async fn run(
    sale: SaleId,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    let operations = super::operations(settings).await?;
    let operations = operations.watched_by(Arc::new(|step| Box::pin(say(step))));
    let rebuilt = operations.by(ACTOR).rebuild_sale(sale).await?;
    output.print(&rebuilt, || {
        let mut rows = vec![["sale", "epoch", "for sale", "held"].map(str::to_owned).to_vec()];
        rows.extend(rebuilt.sales.iter().map(|sale| {
            vec![
                sale.sale_id.to_string(),
                sale.epoch.to_string(),
                sale.stock.to_string(),
                sale.held.to_string(),
            ]
        }));
        format!("partition {} is rebuilt and open\n{}", rebuilt.partition, columns(&rows))
    })?;
    Ok(Verdict::Good)
}

/// Says on standard error what is waited for.
async fn say(step: RebuildStep) {
    if let RebuildStep::Waiting { entries, .. } = step {
        let _reader_gone =
            writeln!(std::io::stderr(), "salectl: waiting for {entries} entries to be applied");
    }
}
