//! `completions`: what a shell needs to complete our words.

use clap::Args;
use clap_complete::Shell;

use crate::console;
use crate::failure::Failure;

/// Print a completion script for a shell.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola completions bash > ~/.local/share/bash-completion/completions/pianola
  pianola completions zsh > ~/.zfunc/_pianola
  pianola completions fish > ~/.config/fish/completions/pianola.fish")]
pub struct Arguments {
    /// Shell
    shell: Shell,
}

pub fn run(arguments: &Arguments, mut parser: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut parser, "pianola", &mut script);
    // A script, not text to look at: as it is, also on a terminal.
    console::print_exactly(&String::from_utf8_lossy(&script))
}
