//! The command line of Pianola.
//!
//! ```text
//! arguments ─► cli ─► commands/* ─► engine, hub
//!                         │
//!            results ─► stdout     notices, progress, errors ─► stderr
//! ```
//!
//! A command is a file in `commands`: its options as a clap struct, and a `run` that does it. To
//! add one, write the file and name it in `commands.rs` and in `cli.rs`. Only this crate turns
//! errors into words and exit codes: 0 done, 1 failed, 2 asked wrongly, 130 interrupted.

#![forbid(unsafe_code)]

mod cli;
mod closed_output;
mod commands;
mod console;
mod device;
mod failure;
mod form;
mod habits;
mod input;
mod interrupt;
mod memory;
mod model;
mod npu_device;
mod options;
mod output;
mod profile;
mod progress;
mod prompt_line;
mod sampling;
mod shapes;
mod statistics;
mod terminal;
mod ticker;
mod tuned;
mod version;
mod visible;
mod wrap;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use failure::Failure;

fn main() -> ExitCode {
    statistics::note_start();
    if let Err(error) = pianola_hub::launch(std::env::args_os()) {
        console::print_error(&format!("cannot start a command: {error}"));
        return ExitCode::FAILURE;
    }
    if let Err(message) = pianola_cpu::check_simd_limit() {
        console::print_error(&message);
        return ExitCode::from(2);
    }
    let arguments = habits::translated(std::env::args_os());
    let cli = match cli::Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return answer_parser(error),
    };
    failure::set_options(cli::options_of(&arguments).into_iter());
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match (&failure, failure.message()) {
                (Failure::Stopped(message), _) => console::to_stderr(message),
                (_, Some(message)) => console::print_error(message),
                (_, None) => {}
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Help and version are results; everything else the parser says is an error of usage.
fn answer_parser(error: clap::Error) -> ExitCode {
    if let Some(sentence) = habits::answer(&error) {
        console::print_error(&sentence);
        return ExitCode::from(2);
    }
    let error = habits::with_tips(error);
    let text = error.render();
    if error.use_stderr() {
        // Without a command the parser answers with help, which is no sentence about an error.
        let helps = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        console::print_usage(if helps { "" } else { "pianola: " }, &text);
        return ExitCode::from(2);
    }
    match console::print_help(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(failure.exit_code()),
    }
}
