//! The commands and what is common to all of them.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand};

use crate::closed_output;
use crate::commands::{
    bench, chat, check, compare, completions, detokenize, devices, doctor, embed, help, inspect,
    list, logits, npu, perplexity, plan, pull, rm, run, serve, tokenize, tune,
};
use crate::console::Console;
use crate::failure::Failure;
use crate::version::BUILD;

/// Runs language models on this machine.
///
/// Results go to standard output; progress and notices go to standard error.
#[derive(Parser, Debug)]
#[command(name = "pianola", version = BUILD, propagate_version = true)]
#[command(disable_help_subcommand = true)]
#[command(after_help = help::overview(), after_long_help = help::overview_with_environment())]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Also show choices, times and speeds
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Show results and errors only
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(run::Arguments),
    Chat(chat::Arguments),
    Serve(serve::Arguments),
    Pull(pull::Arguments),
    #[command(visible_alias = "ls")]
    List(list::Arguments),
    Rm(rm::Arguments),
    #[command(visible_alias = "show")]
    Inspect(inspect::Arguments),
    Tokenize(tokenize::Arguments),
    Detokenize(detokenize::Arguments),
    Embed(embed::Arguments),
    Logits(logits::Arguments),
    Perplexity(perplexity::Arguments),
    Compare(compare::Arguments),
    Plan(plan::Arguments),
    Devices(devices::Arguments),
    Npu(npu::Arguments),
    Doctor(doctor::Arguments),
    Bench(bench::Arguments),
    Check(check::Arguments),
    Tune(tune::Arguments),
    Completions(completions::Arguments),
    Help(help::Arguments),
}

impl Cli {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        let console = Console { verbose: self.verbose, quiet: self.quiet };
        // A server has no results to lose.
        if !matches!(self.command, Command::Serve(_)) {
            closed_output::check()?;
        }
        match &self.command {
            Command::Run(arguments) => run::run(arguments, console),
            Command::Chat(arguments) => chat::run(arguments, console),
            Command::Serve(arguments) => serve::run(arguments, console),
            Command::Pull(arguments) => pull::run(arguments, console),
            Command::List(arguments) => list::run(arguments, console),
            Command::Rm(arguments) => rm::run(arguments, console),
            Command::Inspect(arguments) => inspect::run(arguments, console),
            Command::Tokenize(arguments) => tokenize::run(arguments, console),
            Command::Detokenize(arguments) => detokenize::run(arguments, console),
            Command::Embed(arguments) => embed::run(arguments, console),
            Command::Logits(arguments) => logits::run(arguments, console),
            Command::Perplexity(arguments) => perplexity::run(arguments, console),
            Command::Compare(arguments) => compare::run(arguments, console),
            Command::Plan(arguments) => plan::run(arguments, console),
            Command::Devices(arguments) => devices::run(arguments, console),
            Command::Npu(arguments) => npu::run(arguments, console),
            Command::Doctor(arguments) => doctor::run(arguments, console),
            Command::Bench(arguments) => bench::run(arguments, console),
            Command::Check(arguments) => check::run(arguments, console),
            Command::Tune(arguments) => tune::run(arguments, console),
            Command::Completions(arguments) => completions::run(arguments, Cli::command()),
            Command::Help(arguments) => help::run(arguments, Cli::command()),
        }
    }
}

/// The parser of the whole command line.
#[cfg(test)]
pub fn parser() -> clap::Command {
    Cli::command()
}

/// The long options of the command that these arguments name.
pub fn options_of(arguments: &[OsString]) -> Vec<String> {
    let parser = Cli::command();
    let mut words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let Some(command) = words.find_map(|word| parser.find_subcommand(word)) else {
        return Vec::new();
    };
    let names = command.get_arguments().filter_map(|argument| argument.get_long());
    names.map(|name| format!("--{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_are_those_of_the_command() {
        let options =
            |words: &[&str]| options_of(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(options(&["pianola", "-v", "run", "x"]).contains(&"--context".to_string()));
        assert!(!options(&["pianola", "tokenize"]).contains(&"--context".to_string()));
        assert!(options(&["pianola"]).is_empty());
    }
}
