//! `salectl doctor`.

use flashsale_bootstrap::Settings;
use flashsale_operations::doctor::{Check, Status, examine};
use serde::Serialize;

use crate::Verdict;
use crate::failure::{Failure, without_urls};
use crate::output::{Output, columns};

/// ```json
/// {"healthy":false,"checks":[
///   {"name":"aof","status":"failure","what":"Redis keeps no append-only file, …","unsafe":"aof-off"},
///   {"name":"groups","status":"ok","what":"every partition has its consumer group","unsafe":null}]}
/// ```
/// Healthy when nothing fails; `unsafe` is the name in `allow_unsafe` of what a production start refuses.
#[derive(Debug, Serialize)]
struct Examination {
    healthy: bool,
    checks: Vec<Check>,
}

/// Looks at settings, Redis and database.
pub(crate) async fn run(settings: &Settings, output: Output) -> Result<Verdict, Failure> {
    let mut checks = examine(settings).await;
    for check in &mut checks {
        check.what = without_urls(std::mem::take(&mut check.what), settings);
    }
    let healthy = checks.iter().all(|check| check.status != Status::Failure);
    let examination = Examination { healthy, checks };
    output.print(&examination, || text(&examination.checks))?;
    Ok(if healthy { Verdict::Good } else { Verdict::Broken })
}

fn text(checks: &[Check]) -> String {
    let row = |check: &Check| {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Warning => "WARNING",
            Status::Failure => "FAILURE",
        };
        let name = check.risk.map(|risk| format!(" [{}]", risk.name())).unwrap_or_default();
        vec![status.to_owned(), check.name.to_owned(), format!("{}{name}", check.what)]
    };
    columns(&checks.iter().map(row).collect::<Vec<_>>())
}
