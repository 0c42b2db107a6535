//! `torture`: the command line of the fault drills.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use flashsale_torture::{
    Kind, LongOutage, Plan, Report, Torture, logs_of, replay_command, round_seed,
};

/// Runs seeded rounds of faults against a deployment of the release programs on private servers,
/// and checks the invariants after each.
///
/// The same seed and kinds give the same faults in the same order with the same delays. Exit code:
/// 0 all is well; 1 a round failed; 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "torture", version, max_term_width = 100)]
struct Args {
    /// How many rounds
    #[arg(long, value_name = "N", default_value_t = 200)]
    rounds: u64,

    /// What everything is drawn from [default: random]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,

    /// Only these kinds of faults [default: all]
    #[arg(long = "kind", value_enum, value_name = "KIND")]
    kinds: Vec<Kind>,

    /// Run one round alone, by its own seed and with the kinds of its run
    #[arg(long, value_name = "ROUND_SEED", conflicts_with_all = ["seed", "rounds"])]
    replay: Option<u64>,

    /// In place of rounds: PostgreSQL is stopped for so long under load
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["rounds", "kinds", "replay"])]
    long_outage: Option<u32>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let good = match args.long_outage {
        Some(seconds) => long_outage(seconds, args.seed).await,
        None => torture(&args).await,
    };
    match good {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("torture: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn long_outage(seconds: u32, seed: Option<u64>) -> anyhow::Result<bool> {
    let seed = seed.map_or_else(rand::random, |seed| u32::try_from(seed).unwrap_or(u32::MAX));
    let logs = logs_of(seed.into());
    say(&format!("seed {seed}, PostgreSQL is away for {seconds} s"));
    let outage = LongOutage::run(Duration::from_secs(seconds.into()), seed, &logs).await?;
    say(&format!(
        "{} rows in the end; {} entries waited when it came back, at rest after {:.1} s",
        outage.orders,
        outage.waited,
        outage.caught_up_in.as_secs_f64(),
    ));
    for worker in &outage.workers {
        say(&format!(
            "{} meanwhile: {:.2} log lines a second, {:.2} % of a core",
            worker.name, worker.lines_per_second, worker.cpu_percent,
        ));
    }
    for failure in &outage.failures {
        say(&format!("    {failure}"));
    }
    if !outage.failures.is_empty() {
        say(&format!("    logs: {}", logs.display()));
    }
    Ok(outage.failures.is_empty())
}

async fn torture(args: &Args) -> anyhow::Result<bool> {
    let kinds = if args.kinds.is_empty() { Kind::ALL } else { &args.kinds };
    let seeds: Vec<u64> = match args.replay {
        Some(seed) => vec![seed],
        None => {
            // 32 bits are enough to be another one each time, and short enough to type.
            let run = args.seed.unwrap_or_else(|| rand::random::<u32>().into());
            say(&format!("seed {run}, {} rounds", args.rounds));
            (1..=args.rounds).map(|number| round_seed(run, number)).collect()
        }
    };
    let mut torture = Torture::default();
    let mut report = Report::default();
    for (number, &seed) in (1..).zip(&seeds) {
        let plan = Plan::new(seed, kinds);
        let mut outcome = torture.run(&plan).await?;
        if number == seeds.len() {
            outcome.failures.extend(torture.finish().await?);
        }
        report.add(&plan, &outcome);
        let verdict = if outcome.failures.is_empty() { "ok" } else { "FAILED" };
        let lost = match outcome.lost {
            0 => String::new(),
            lost => format!(" ({lost} lost by the drill, and settled)"),
        };
        let ended = match outcome.ended {
            0 => String::new(),
            ended => format!(" ({ended} ended)"),
        };
        say(&format!(
            "round {number:>3}  seed {seed:<15}  {verdict:<6} {:>4} orders  {:>4.1} s  {}{lost}{ended}",
            outcome.orders,
            outcome.took.as_secs_f64(),
            plan.kinds(),
        ));
        if !outcome.failures.is_empty() {
            for failure in &outcome.failures {
                say(&format!("    {failure}"));
            }
            say(&format!("    logs:   {}", logs_of(seed).display()));
            say(&format!("    replay: {}", replay_command(seed, &args.kinds)));
        }
    }
    say(&format!("\n{report}"));
    Ok(report.is_good())
}

/// One line to whoever watches; one who went away is no reason to stop.
fn say(line: &str) {
    let _reader_gone = writeln!(std::io::stdout(), "{line}");
}
