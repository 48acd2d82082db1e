//! The commands and what is common to all of them.

use clap::{Parser, Subcommand};

use crate::commands::{
    bench, chat, check, compare, devices, inspect, list, logits, perplexity, plan, pull, rm, run,
    serve, tokenize, tune,
};
use crate::console::Console;
use crate::failure::Failure;
use crate::version::BUILD;

/// Runs language models on this machine.
///
/// A model is recorded once, as kernels with every weight in place, and then played back, a token
/// at a time. Results go to standard output; progress and notices go to standard error.
#[derive(Parser, Debug)]
#[command(name = "pianola", version = BUILD, propagate_version = true)]
#[command(after_help = "\
Examples:
  pianola run \"Why is the sky blue?\"
  pianola chat -m qwen2.5-coder:1.5b
  pianola bench -m smollm2:135m --json

Models are kept in $PIANOLA_HOME/models (by default ~/.cache/pianola/models).")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say what was chosen and how long it took
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Say nothing but results and errors
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(run::Arguments),
    Chat(chat::Arguments),
    Serve(serve::Arguments),
    Pull(pull::Arguments),
    List(list::Arguments),
    Rm(rm::Arguments),
    Inspect(inspect::Arguments),
    Tokenize(tokenize::Arguments),
    Logits(logits::Arguments),
    Perplexity(perplexity::Arguments),
    Compare(compare::Arguments),
    Plan(plan::Arguments),
    Devices(devices::Arguments),
    Bench(bench::Arguments),
    Check(check::Arguments),
    Tune(tune::Arguments),
}

impl Cli {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        let console = Console { verbose: self.verbose, quiet: self.quiet };
        match &self.command {
            Command::Run(arguments) => run::run(arguments, console),
            Command::Chat(arguments) => chat::run(arguments, console),
            Command::Serve(arguments) => serve::run(arguments, console),
            Command::Pull(arguments) => pull::run(arguments, console),
            Command::List(arguments) => list::run(arguments, console),
            Command::Rm(arguments) => rm::run(arguments, console),
            Command::Inspect(arguments) => inspect::run(arguments, console),
            Command::Tokenize(arguments) => tokenize::run(arguments, console),
            Command::Logits(arguments) => logits::run(arguments, console),
            Command::Perplexity(arguments) => perplexity::run(arguments, console),
            Command::Compare(arguments) => compare::run(arguments, console),
            Command::Plan(arguments) => plan::run(arguments, console),
            Command::Devices(arguments) => devices::run(arguments, console),
            Command::Bench(arguments) => bench::run(arguments, console),
            Command::Check(arguments) => check::run(arguments, console),
            Command::Tune(arguments) => tune::run(arguments, console),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }
}
