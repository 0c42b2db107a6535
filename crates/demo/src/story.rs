//! The demo from its first to its last step.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::time::sleep;

use crate::aftermath;
use crate::ledger_watch;
use crate::options::{DatabaseKind, Options};
use crate::programs::Ledger;
use crate::report::{Outcome, grouped, say};
use crate::rush::{REPEAT, rush};
use crate::stack::{CATALOGUE_REFRESH, PAYMENT_WINDOW, RECLAIM_IDLE, STATEMENT_TIMEOUT, Stack};

/// Enough for a killed worker's orders to come back several times over.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Units of the sale that is left open for the person at the keyboard.
const SECOND_STOCK: u64 = 10;
/// Longer than anybody looks at a demo.
const TOKEN_TTL: &str = "12h";

/// What is there when the story has been told.
pub(crate) struct Told {
    /// All that runs.
    pub(crate) stack: Stack,
    sale: String,
    problems: Vec<String>,
}

impl Told {
    /// Whether the sale came out exactly right.
    pub(crate) fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Starts everything, runs the sale, and prints what came out.
pub(crate) async fn tell(options: &Options) -> anyhow::Result<Told> {
    say(&format!(
        "Flashsale: {} buyers press {REPEAT} times each for {} units\n",
        grouped(options.buyers),
        grouped(options.stock)
    ))?;
    let database = match options.database {
        DatabaseKind::Sqlite => "an SQLite file",
        DatabaseKind::Postgres => "a private PostgreSQL",
    };
    say(&format!("starting a private Redis, {database}, a gateway and two order-workers"))?;
    let stack = Stack::start(options).await?;
    introduce(&stack)?;
    if options.kill_worker {
        say(&format!(
            "one worker will be killed; so that its orders come back soon, the demo sets \
             worker.reclaim_idle={RECLAIM_IDLE}\nand database.statement_timeout={STATEMENT_TIMEOUT}, \
             and catalogue.refresh={CATALOGUE_REFRESH} to see the right moment"
        ))?;
    }

    let sale = stack.salectl().open_sale("Demo voucher", options.stock, PAYMENT_WINDOW).await?;
    stack.wait_until_shown(&sale).await?;
    say(&format!("sale {sale} is open: {} units\n", grouped(options.stock)))?;
    let receipts = stack.file("receipts.csv");
    let (rushed, readings) = tokio::try_join!(
        rush(&stack, &sale, options, &receipts),
        ledger_watch::watch(&stack, &sale)
    )?;
    let ledger = wait_until_written(&stack, &sale).await?;
    let receipts_path =
        receipts.to_str().context("the temporary folder's path is not UTF-8")?.to_owned();
    let audit = stack.salectl().audit(&sale, &receipts_path).await?;

    let [first, second] = &stack.workers;
    let outcome = Outcome {
        options,
        rushed,
        ledger,
        audit,
        worker_killed: options.kill_worker && second.ended().is_some(),
        reclaimed: stack.reclaimed().await,
    };
    let mut problems = outcome.problems();
    let must_live =
        [&stack.gateway, first].into_iter().chain((!options.kill_worker).then_some(second));
    problems.extend(
        must_live.filter(|member| member.ended().is_some()).map(|member| member.how_it_ended()),
    );
    problems.extend(ledger_watch::problems(&readings));
    say(&outcome.table())?;
    say(&ledger_watch::table(&readings))?;
    let orders = outcome.rushed.orders;
    let after = aftermath::live_through(&stack, &sale, options, &receipts).await?;
    problems.extend(after.problems(orders));
    say(&after.table())?;
    if problems.is_empty() {
        say(&format!("good: {}", outcome.verdict()))?;
    } else {
        say(&format!("NOT GOOD:\n  {}", problems.join("\n  ")))?;
    }
    Ok(Told { stack, sale, problems })
}

fn introduce(stack: &Stack) -> anyhow::Result<()> {
    say(&format!("  redis           {}", stack.redis.url()))?;
    say(&format!("  database        {}", stack.database_url))?;
    for member in stack.members() {
        say(&format!("  {:<14}  pid {}", member.name, member.program.pid()))?;
    }
    Ok(())
}

/// Waits until nothing is queued any more, and returns the ledger of that moment.
pub(crate) async fn wait_until_written(stack: &Stack, sale: &str) -> anyhow::Result<Ledger> {
    let started = Instant::now();
    loop {
        let ledger = stack.salectl().ledger(sale).await?;
        if ledger.queued == 0 {
            return Ok(ledger);
        }
        ensure!(
            started.elapsed() < WRITTEN_WITHIN,
            "{} orders were still queued {WRITTEN_WITHIN:?} after the rush",
            ledger.queued
        );
        sleep(POLL).await;
    }
}

/// Opens a second sale, and says what to do with it and with the rest.
pub(crate) async fn tell_how_to_go_on(told: &Told) -> anyhow::Result<()> {
    let Told { stack, sale, .. } = told;
    let salectl = stack.salectl();
    let second = salectl.open_sale("Yours to buy", SECOND_STOCK, "15m").await?;
    stack.wait_until_shown(&second).await?;
    let buyer = salectl.token("you", &["--ttl", TOKEN_TTL]).await?;
    let operator = salectl.token("operator", &["--admin", "--ttl", TOKEN_TTL]).await?;
    let (url, admin_url) = (&stack.gateway.url, &stack.gateway.admin_url);
    let logs: Vec<String> = stack
        .members()
        .map(|member| format!("  {:<14}  {}", member.name, member.program.log_path().display()))
        .collect();
    say(&format!(
        "
all of it stays up until Ctrl-C:
  API documents   {url}/docs, {url}/openapi.json
  metrics         {admin_url}/metrics

order one of the {SECOND_STOCK} units of sale {second}:
  curl -i -X POST {url}/api/v1/sales/{second}/orders -H 'Idempotency-Key: my-first' \\
    -H 'Authorization: Bearer {buyer}'

an operator's token:
  {operator}

look at it from the command line (salectl lies beside this program):
  export FLASHSALE__REDIS__URL={redis} FLASHSALE__DATABASE__URL={database}
  salectl sale list; salectl ledger {sale}; salectl audit

logs:
{logs}",
        redis = stack.redis.url(),
        database = stack.database_url,
        logs = logs.join("\n"),
    ))
}
