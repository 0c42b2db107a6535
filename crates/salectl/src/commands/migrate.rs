//! `salectl migrate`.

use flashsale_bootstrap::Settings;
use flashsale_operations::connect;
use serde::Serialize;

use crate::Verdict;
use crate::failure::Failure;
use crate::output::Output;

/// `{"applied":2}`: how many migrations were applied; 0 when the schema was up to date.
#[derive(Debug, Serialize)]
struct Migrated {
    applied: usize,
}

/// Brings the schema up to date.
pub(crate) async fn run(settings: &Settings, output: Output) -> Result<Verdict, Failure> {
    let database = connect::database(settings).await?;
    let applied = database.pending_migrations().await.map_err(anyhow::Error::from)?;
    database.migrate().await.map_err(anyhow::Error::from)?;
    let newer = !database.unknown_migrations().await.map_err(anyhow::Error::from)?.is_empty();
    output.print(&Migrated { applied }, || match applied {
        0 if newer => "the schema is a newer version's, with all that this one needs".to_owned(),
        0 => "the schema is up to date".to_owned(),
        1 => "applied 1 migration".to_owned(),
        _ => format!("applied {applied} migrations"),
    })?;
    Ok(Verdict::Good)
}
