//! `salectl rebuild`.

use std::io::Write as _;
use std::sync::Arc;

use flashsale_domain::SaleId;
use flashsale_operations::{RebuildStep, Rebuilt};
use serde_json::json;

use super::ACTOR;
use crate::Verdict;
use crate::failure::Failure;
use crate::output::{Output, columns};
use crate::remote::Access;

/// Loads the sale's partition from the database again, and prints what was loaded:
///
/// ```json
/// {"partition":0,"sales":[{"sale_id":"1","epoch":1,"stock":990,"held":10}]}
/// ```
pub(crate) async fn run(
    sale: SaleId,
    access: &Access<'_>,
    output: Output,
) -> Result<Verdict, Failure> {
    let rebuilt: Rebuilt = match access {
        Access::Stores(settings) => {
            let operations = super::operations(settings).await?;
            let operations = operations.watched_by(Arc::new(|step| Box::pin(say(step))));
            operations.by(ACTOR).rebuild_sale(sale).await?
        }
        Access::Gateway(remote) => remote.post(format!("sales/{sale}/rebuild"), &json!({})).await?,
    };
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
