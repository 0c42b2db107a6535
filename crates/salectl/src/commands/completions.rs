//! `salectl completions SHELL`: what a shell needs to complete this command line. It asks no store and
//! reads no settings.

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use crate::Verdict;
use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::Output;

/// For which shell.
#[derive(Debug, Clone, Copy, Args)]
#[command(after_help = "\
bash: salectl completions bash > /etc/bash_completion.d/salectl
zsh:  salectl completions zsh > \"${fpath[1]}/_salectl\"
fish: salectl completions fish > ~/.config/fish/completions/salectl.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script, with `--json` too: it is not ours to wrap.
pub(crate) fn run(args: CompletionsArgs, output: Output) -> Result<Verdict, Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "salectl", &mut script);
    output.text(&String::from_utf8_lossy(&script))?;
    Ok(Verdict::Good)
}
