//! The command line: every command with its arguments. Whatever clap can check is checked here.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand, ValueEnum};
use flashsale_domain::{
    Currency, IdempotencyKey, LatePayment, OrderId, PER_BUYER_MAX, SaleId, SaleMode, UserId,
};
use flashsale_operations::LetterId;

use crate::commands::completions::CompletionsArgs;
use crate::rehearsal_args::{DrillArgs, RehearseArgs};
use crate::when::When;

/// Runs sales: creates and publishes them, watches their ledger, and audits them.
///
/// Settings come from the built-in defaults, then the TOML file named by FLASHSALE_CONFIG, then the
/// environment: FLASHSALE__SECTION__KEY, or FLASHSALE__SECTION__KEY__FILE for a file with the value.
///
/// Exit code: 0 done; 1 refused, an invariant is broken, or a store failed; 2 not understood (a
/// wrong argument, file or setting).
#[derive(Debug, Parser)]
#[command(name = "salectl", version = flashsale_bootstrap::version::full(), verbatim_doc_comment)]
pub(crate) struct Cli {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print every setting with its default and meaning, as TOML, and stop
    #[arg(long)]
    pub(crate) print_defaults: bool,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Where the commands do their work.
#[derive(Debug, Args)]
pub(crate) struct RemoteArgs {
    /// Work through the operators' API of the gateway whose admin port this is, and not in the stores:
    /// sale, ledger, report, dead, workers, audit-log and rebuild. The operator's token is in FLASHSALE_TOKEN
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) remote: Option<String>,

    /// With --remote: a file with the operator's token, instead of FLASHSALE_TOKEN
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring the database's schema up to date
    Migrate,

    /// Create sales, and move them through their states
    Sale {
        #[command(subcommand)]
        command: SaleCommand,
    },

    /// Print a token of a buyer or an operator, signed with auth.jwt_secret
    Token(TokenArgs),

    /// Show where every unit of a sale is; exit code 1 when one is not where it can be
    Ledger {
        /// The sale's id
        #[arg(value_name = "ID")]
        sale: SaleId,
    },

    /// Report on a sale: what was sold, what buyers were told, and the proof that nothing was lost
    ///
    /// It is final once the sale is closed and every order is decided. Exit code 1 when an order is
    /// missing or a unit is not where it can be.
    Report {
        /// The sale's id
        #[arg(value_name = "ID")]
        sale: SaleId,
    },

    /// Check the invariants I1 to I7 of a sale, or of all; exit code 1 when one is broken
    Audit {
        /// The sale's id [default: every sale]
        #[arg(value_name = "ID")]
        sale: Option<SaleId>,

        /// Check also that these orders are their buyers': CSV as `rush --receipts` writes it
        #[arg(long, value_name = "FILE", requires = "sale")]
        receipts: Option<PathBuf>,
    },

    /// Settle orders that are lost: admitted, and then neither row, entry nor dead letter
    ///
    /// `salectl audit` names them. The row is written first, then Redis hears of it. Exit code 1 when
    /// one cannot be settled.
    Settle(SettleArgs),

    /// Look at settings, Redis and database before a sale; exit code 1 when something fails
    ///
    /// The name in brackets is the one by which `allow_unsafe` lets a production start bear it.
    Doctor,

    /// Look at dead letters, try them again, or give them up
    Dead {
        #[command(subcommand)]
        command: DeadCommand,
    },

    /// Report a payment to the gateway as the payment provider does, signed with
    /// payment.webhook_secret: for trials, and for money that came another way
    ///
    /// Exit code 1 when the gateway refuses it, which it does with an amount other than the order's
    /// price. A payment that comes too late is taken: the answer says what became of it.
    Pay(PayArgs),

    /// Payments whose money has to go back to the buyer
    Refunds {
        #[command(subcommand)]
        command: RefundsCommand,
    },

    /// Show who works on the orders of each partition, and what waits for them
    Workers,

    /// Show who did what, newest first
    AuditLog(AuditLogArgs),

    /// Play a whole sale with synthetic buyers through the production path, check the invariants, and
    /// leave nothing behind
    ///
    /// Its sale is hidden from buyers and from the shop, and admits nobody but the buyers of the rehearsal.
    /// Exit code 1 when something was not as it has to be.
    Rehearse(RehearseArgs),

    /// Cause on purpose what an alert is about, to a sale of its own, so that somebody practises what its
    /// runbook says
    Drill(DrillArgs),

    /// Load what Redis holds of the sale's whole partition from the database again
    ///
    /// Nobody is admitted to the partition's sales meanwhile. Order-workers must be running: what
    /// is on the stream is applied first.
    Rebuild {
        /// The sale's id
        #[arg(value_name = "ID")]
        sale: SaleId,
    },

    /// Print a script by which a shell completes these commands
    Completions(CompletionsArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum SaleCommand {
    /// Create a sale as a draft, which buyers do not see, and print its id
    Create(CreateArgs),
    /// List every sale, newest first
    List,
    /// Show a sale
    Show(SaleArgs),
    /// Change a draft's description, or the title of a sale that is not closed
    Edit(EditArgs),
    /// Put a draft on sale; on a published sale, complete what an earlier try left undone
    Publish(SaleArgs),
    /// Admit nobody until it is resumed; what was admitted goes on
    Pause(SaleArgs),
    /// Admit again after a pause
    Resume(SaleArgs),
    /// End a sale for good; what was admitted goes on
    Close(SaleArgs),
    /// Put more units on sale, or take some away that nobody holds
    Stock(StockArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum RefundsCommand {
    /// List what is due back, oldest first
    List {
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u64,
    },
    /// Note that the money of a payment went back; it is no longer listed
    Done {
        /// The payment's id, as `refunds list` shows it
        #[arg(value_name = "PAYMENT_ID")]
        payment: i64,
    },
}

/// Which lines of the audit log.
#[derive(Debug, Args)]
pub(crate) struct AuditLogArgs {
    /// Only by this operator or program
    #[arg(long, value_name = "WHO")]
    pub(crate) actor: Option<String>,

    /// Only of this action, such as sale.publish
    #[arg(long, value_name = "ACTION")]
    pub(crate) action: Option<String>,

    /// Only of this sale, order or entry
    #[arg(long, value_name = "ID")]
    pub(crate) subject: Option<String>,

    /// At most so many, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) limit: u64,
}

/// What of a sale is to be another.
#[derive(Debug, Args)]
#[command(after_help = "Of a published or paused sale only the title can be changed.")]
pub(crate) struct EditArgs {
    /// The sale's id
    #[arg(value_name = "ID")]
    pub(crate) sale: SaleId,

    /// What buyers read, 1 to 200 characters
    #[arg(long, value_name = "T")]
    pub(crate) title: Option<String>,

    /// When buyers are first admitted
    #[arg(long, value_name = "WHEN")]
    pub(crate) opens: Option<When>,

    /// When they no longer are
    #[arg(long, value_name = "WHEN")]
    pub(crate) closes: Option<When>,

    /// Open orders that one buyer may have, of one unit each
    #[arg(long, value_name = "L",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(PER_BUYER_MAX)))]
    pub(crate) per_buyer: Option<u16>,

    /// Price of a unit in minor units (fen, cents)
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true, requires = "currency")]
    pub(crate) price: Option<i64>,

    /// The price's currency, by ISO 4217
    #[arg(long, value_name = "CODE", requires = "price")]
    pub(crate) currency: Option<Currency>,

    /// How long a buyer has to pay
    #[arg(long, value_name = "DURATION", value_parser = whole_seconds)]
    pub(crate) payment_window: Option<Duration>,

    /// `reacquire` or `refund`: what becomes of money that comes later
    #[arg(long, value_name = "POLICY", value_parser = |text: &str| text.parse::<LatePayment>())]
    pub(crate) late_payment: Option<LatePayment>,
}

/// A change of a sale's stock.
#[derive(Debug, Args)]
pub(crate) struct StockArgs {
    /// The sale's id
    #[arg(value_name = "ID")]
    pub(crate) sale: SaleId,

    /// How many more units, or with a minus how many fewer
    #[arg(long, value_name = "±N", allow_negative_numbers = true)]
    pub(crate) delta: i64,

    /// Why, for the audit log: 1 to 200 characters
    #[arg(long, value_name = "R")]
    pub(crate) reason: String,

    /// What makes it safe to ask again: the same key of the same sale is the same change
    /// [default: a new one]
    #[arg(long, value_name = "KEY", value_parser = |text: &str| IdempotencyKey::new(text))]
    pub(crate) key: Option<IdempotencyKey>,
}

/// A payment to report.
#[derive(Debug, Args)]
pub(crate) struct PayArgs {
    /// The order's id
    #[arg(value_name = "ORDER")]
    pub(crate) order: OrderId,

    /// The gateway [default: http.listen]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// How much was paid, in minor units (fen, cents) [default: what the order costs]
    #[arg(long, value_name = "N", requires = "currency")]
    pub(crate) amount: Option<i64>,

    /// In which currency, by ISO 4217
    #[arg(long, value_name = "CODE", requires = "amount")]
    pub(crate) currency: Option<Currency>,

    /// The message's id: the same one counts once [default: a new one]
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List dead letters, oldest first
    List(DeadFilterArgs),
    /// Show one, with the fields of its entry
    Show {
        /// Its order's id, or its entry's (1764470400000-0)
        #[arg(value_name = "ID")]
        id: LetterId,
    },
    /// Try them again under their order's id; what still cannot be done stays
    Requeue(DeadActionArgs),
    /// Give them up: the order's row says rejected, its unit and slot go back
    Reject(DeadActionArgs),
}

/// Which lost orders, and what becomes of them.
#[derive(Debug, Args)]
pub(crate) struct SettleArgs {
    /// The sale's id
    #[arg(value_name = "ID")]
    pub(crate) sale: SaleId,

    /// Only this order; may be given several times [default: all that are lost]
    #[arg(long = "order", value_name = "ORDER")]
    pub(crate) orders: Vec<OrderId>,

    /// What becomes of those that Redis still holds a unit for: `order` keeps the word that was given
    /// to the buyer, `rejected` takes it back and gives the unit back
    #[arg(long = "as", value_name = "WHAT", value_enum, default_value_t = SettleWord::Order,
        hide_possible_values = true)]
    pub(crate) settle_as: SettleWord,

    /// Also those that were answered to buyers and that Redis forgot with its memory; they become
    /// rejected (memory-lost): CSV as `rush --receipts` writes it
    #[arg(long, value_name = "FILE")]
    pub(crate) receipts: Option<PathBuf>,

    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What becomes of a lost order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SettleWord {
    Order,
    Rejected,
}

/// Which dead letters.
#[derive(Debug, Args)]
pub(crate) struct DeadFilterArgs {
    /// Only of this sale
    #[arg(long, value_name = "ID")]
    pub(crate) sale: Option<SaleId>,

    /// Only with this reason, such as undecodable or data-refused
    #[arg(long, value_name = "REASON")]
    pub(crate) reason: Option<String>,

    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
}

/// Which dead letters to act on.
#[derive(Debug, Args)]
pub(crate) struct DeadActionArgs {
    /// One letter: its order's id, or its entry's
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) id: Option<LetterId>,

    /// Every letter that the filter names, up to its limit
    #[arg(long)]
    pub(crate) all: bool,

    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) filter: DeadFilterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SaleArgs {
    /// The sale's id
    #[arg(value_name = "ID")]
    pub(crate) sale: SaleId,
}

/// The description of a new sale.
#[derive(Debug, Args)]
#[command(after_help = "WHEN is a time of RFC 3339 (2026-11-11T00:00:00+08:00), `now`, or a \
    duration from now (+10s, +1h30m).")]
pub(crate) struct CreateArgs {
    /// What buyers read, 1 to 200 characters
    #[arg(long, value_name = "T")]
    pub(crate) title: String,

    /// Units for sale
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) stock: i64,

    /// When buyers are first admitted
    #[arg(long, value_name = "WHEN")]
    pub(crate) opens: When,

    /// When they no longer are
    #[arg(long, value_name = "WHEN")]
    pub(crate) closes: When,

    /// Open orders that one buyer may have, of one unit each
    #[arg(
        long,
        value_name = "L",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(PER_BUYER_MAX))
    )]
    pub(crate) per_buyer: u16,

    /// Price of a unit in minor units (fen, cents)
    #[arg(long, value_name = "AMOUNT", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) price: i64,

    /// The price's currency, by ISO 4217
    #[arg(long, value_name = "CODE", default_value = "CNY")]
    pub(crate) currency: Currency,

    /// How long a buyer has to pay
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = whole_seconds)]
    pub(crate) payment_window: Duration,

    /// Money that comes later: `reacquire` takes a unit again if there is one, `refund` gives it back
    #[arg(
        long,
        default_value = "reacquire",
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new([
            LatePayment::Reacquire.as_str(),
            LatePayment::Refund.as_str(),
        ]).try_map(|policy| policy.parse::<LatePayment>())
    )]
    pub(crate) late_payment: LatePayment,

    /// `queued` or `direct`: answer before or after the order is written
    #[arg(
        long,
        default_value = "queued",
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new([
            SaleMode::Queued.as_str(),
            SaleMode::Direct.as_str(),
        ]).try_map(|mode| mode.parse::<SaleMode>())
    )]
    pub(crate) mode: SaleMode,
}

#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Whose token it is: the buyer's id
    #[arg(long, value_name = "U", value_parser = |text: &str| UserId::new(text))]
    pub(crate) sub: UserId,

    /// Give it the role `admin`, which opens the operators' API
    #[arg(long)]
    pub(crate) admin: bool,

    /// How long it is good for
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = whole_seconds)]
    pub(crate) ttl: Duration,
}

/// A duration of at least a second, without fractions of one.
pub(crate) fn whole_seconds(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration.as_secs() > 0 && duration.subsec_nanos() == 0 => Ok(duration),
        Ok(_) => Err("it is whole seconds, at least one, such as 90s, 15m or 1h 30m".to_owned()),
        Err(error) => Err(format!("{error}; a duration is such as 90s, 15m or 1h 30m")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<Cli, ErrorKind> {
        Cli::try_parse_from(std::iter::once("salectl").chain(line.split(' ')))
            .map_err(|error| error.kind())
    }

    #[test]
    fn the_definition_holds_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_is_understood_before_and_after_the_command() {
        for line in ["--json sale list", "sale --json list", "sale list --json"] {
            assert!(parse(line).expect(line).json, "{line}");
        }
    }

    #[test]
    fn what_is_left_out_of_create_has_its_default() {
        let cli = parse("sale create --title T --stock 5 --opens now --closes +1h").expect("valid");
        let Some(Command::Sale { command: SaleCommand::Create(args) }) = cli.command else {
            panic!("not create: {cli:?}")
        };
        assert_eq!((args.stock, args.per_buyer, args.price), (5, 1, 0));
        assert_eq!(args.currency.to_string(), "CNY");
        assert_eq!(args.payment_window, Duration::from_secs(900));
        assert_eq!(args.mode, SaleMode::Queued);
    }

    #[test]
    fn a_stock_grows_and_shrinks() {
        for (delta, expected) in [("-5", -5), ("+5", 5), ("5", 5)] {
            for line in [
                format!("sale stock 1 --delta {delta} --reason R"),
                format!("sale stock --delta={delta} --reason R 1"),
            ] {
                let cli = parse(&line).expect(&line);
                let Some(Command::Sale { command: SaleCommand::Stock(args) }) = cli.command else {
                    panic!("not stock: {cli:?}")
                };
                assert_eq!(args.delta, expected, "{line}");
            }
        }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let create = "sale create --title T --stock 5 --opens now --closes +1h";
        let value = ErrorKind::ValueValidation;
        let cases = [
            (format!("{create} --payment-window 1500ms"), value),
            (format!("{create} --payment-window soon"), value),
            (format!("{create} --currency yuan"), value),
            (format!("{create} --per-buyer 0"), value),
            (format!("{create} --mode later"), ErrorKind::InvalidValue),
            ("sale show 0".to_owned(), value),
            ("sale show".to_owned(), ErrorKind::MissingRequiredArgument),
            ("token --sub b --ttl 0s".to_owned(), value),
            ("token --sub ".to_owned(), value),
            ("audit --receipts r.csv".to_owned(), ErrorKind::MissingRequiredArgument),
            ("dead show nonsense".to_owned(), value),
            ("settle".to_owned(), ErrorKind::MissingRequiredArgument),
            ("settle 1 --order nonsense".to_owned(), value),
            ("settle 1 --as paid".to_owned(), ErrorKind::InvalidValue),
            ("pay nonsense".to_owned(), value),
            ("pay 5 --amount 1".to_owned(), ErrorKind::MissingRequiredArgument),
            ("pay 5 --currency CNY".to_owned(), ErrorKind::MissingRequiredArgument),
            ("refunds done".to_owned(), ErrorKind::MissingRequiredArgument),
            ("sale stock 1 --reason R".to_owned(), ErrorKind::MissingRequiredArgument),
            ("sale stock 1 --delta 5".to_owned(), ErrorKind::MissingRequiredArgument),
            ("sale stock 1 --delta x --reason R".to_owned(), value),
            ("dead requeue".to_owned(), ErrorKind::MissingRequiredArgument),
            ("dead reject 5 --all".to_owned(), ErrorKind::ArgumentConflict),
            ("frobnicate".to_owned(), ErrorKind::InvalidSubcommand),
        ];
        for (line, kind) in cases {
            assert_eq!(parse(&line).expect_err(&line), kind, "{line}");
        }
    }

    /// An operator who is woken up at night types what the documents say.
    #[test]
    fn every_command_of_the_documents_is_understood() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let runbooks = std::fs::read_dir(docs.join("runbooks")).expect("a folder of runbooks");
        let mut files: Vec<_> = runbooks.map(|entry| entry.expect("an entry").path()).collect();
        files.push(docs.join("operations.md"));
        let mut understood = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a readable document");
            for line in text.lines().filter_map(|line| line.trim().strip_prefix("salectl ")) {
                let words = words_of(line);
                let parsed = Cli::try_parse_from(
                    std::iter::once("salectl").chain(words.iter().map(String::as_str)),
                );
                if let Err(error) = parsed {
                    panic!("{}: salectl {line}: {error}", file.display());
                }
                understood += 1;
            }
        }
        assert!(understood > 40, "the commands are no longer found: {understood}");
    }

    /// As a shell takes a line of the documents: quotes, a comment at the end, and $VARIABLES, each of
    /// which stands for an id.
    fn words_of(line: &str) -> Vec<String> {
        let line = line.split(" #").next().unwrap_or_default();
        let mut words = Vec::new();
        for (place, part) in line.split('"').enumerate() {
            if place % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        words
            .into_iter()
            .map(|word| if word.starts_with('$') { "1".to_owned() } else { word })
            .collect()
    }
}
