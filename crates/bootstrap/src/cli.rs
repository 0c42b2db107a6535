//! The command line of the programs that take only settings (gateway, order-worker).
//!
//! Rule: exit code 0 for what was asked for, 2 for what was not understood.

use std::io::Write;
use std::process::ExitCode;

use crate::{DEFAULTS, Settings, health, version};

const EXIT_USAGE: u8 = 2;

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Run,
    Health,
    Print(String),
    Usage(String),
}

/// Does what the flags of this process ask for; `None` is to run the program. `about` is its
/// purpose in one sentence, for `--help`.
pub fn handle_standard_flags(program: &str, about: &str) -> Option<ExitCode> {
    let arguments: Vec<_> =
        std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()).collect();
    // A reader that went away, as in `gateway --help | head -1`, is no failure of ours.
    match outcome(program, about, &arguments) {
        Outcome::Run => None,
        Outcome::Health => Some(health(program)),
        Outcome::Print(text) => {
            let _reader_gone = write!(std::io::stdout(), "{text}");
            Some(ExitCode::SUCCESS)
        }
        Outcome::Usage(text) => {
            let _reader_gone = write!(std::io::stderr(), "{text}");
            Some(ExitCode::from(EXIT_USAGE))
        }
    }
}

/// Says in one line why a program ended in failure, and gives its exit code.
pub fn failed(program: &str, error: &anyhow::Error) -> ExitCode {
    let _reader_gone = writeln!(std::io::stderr(), "{program}: {error:#}");
    ExitCode::FAILURE
}

fn health(program: &str) -> ExitCode {
    let settings = match Settings::load() {
        Ok(settings) => settings,
        Err(error) => return failed(program, &error.into()),
    };
    match health::ask(settings.admin.listen) {
        Ok(report) => {
            let _reader_gone = writeln!(std::io::stdout(), "{report}");
            ExitCode::SUCCESS
        }
        Err(reason) => failed(program, &anyhow::Error::msg(reason)),
    }
}

fn outcome(program: &str, about: &str, arguments: &[String]) -> Outcome {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] => Outcome::Run,
        ["--health"] => Outcome::Health,
        ["--print-defaults"] => Outcome::Print(DEFAULTS.to_owned()),
        ["--version" | "-V"] => Outcome::Print(format!("{program} {}\n", version::full())),
        ["--help" | "-h"] => Outcome::Print(help(program, about)),
        ["--health" | "--print-defaults" | "--version" | "-V" | "--help" | "-h", extra, ..]
        | [extra, ..] => Outcome::Usage(format!(
            "{program}: unexpected argument {extra:?}; see {program} --help\n"
        )),
    }
}

fn help(program: &str, about: &str) -> String {
    format!(
        "\
{about}

Usage: {program} [--health | --print-defaults | --version | --help]

  --health           ask the one that runs with these settings whether it is ready, on admin.listen;
                     exit code 0 when it is
  --print-defaults   print every setting with its default and meaning, as TOML
  -V, --version      print the version, and the commit that it was built from
  -h, --help         print this

Settings come from the built-in defaults, then the TOML file named by FLASHSALE_CONFIG, then the
environment: FLASHSALE__SECTION__KEY, or FLASHSALE__SECTION__KEY__FILE for a file with the value.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_understood_or_refused() {
        let run = |line: &str| {
            let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            outcome("gateway", "Sells.", &arguments)
        };
        assert_eq!(run(""), Outcome::Run);
        assert_eq!(run("--health"), Outcome::Health);
        assert_eq!(run("--print-defaults"), Outcome::Print(DEFAULTS.to_owned()));
        let version = format!("gateway {} (commit {})\n", version::VERSION, version::COMMIT);
        assert_eq!(run("--version"), Outcome::Print(version));
        assert_eq!(run("-h"), Outcome::Print(help("gateway", "Sells.")));
        for (line, culprit) in [("--port 1", "--port"), ("serve", "serve"), ("--help me", "me")] {
            let expected =
                format!("gateway: unexpected argument {culprit:?}; see gateway --help\n");
            assert_eq!(run(line), Outcome::Usage(expected), "{line}");
        }
    }
}
