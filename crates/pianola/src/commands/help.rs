//! `help`: commands, and topics that several commands share.
//!
//! A topic is a text in `help/`, followed by the options of its headings in the long help.

use clap::{Arg, Args, Command};

use super::serve::{LIMITS, NETWORK};
use crate::console;
use crate::failure::Failure;
use crate::npu_device::NPU;
use crate::options::{DEVICES, MEMORY, NUMERICS, SPECULATION};
use crate::sampling::SAMPLING;

/// Show help for a command or a topic.
#[derive(Args, Debug)]
#[command(after_help = topics())]
pub struct Arguments {
    /// Command or topic
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// What several commands have in common.
struct Topic {
    name: &'static str,
    summary: &'static str,
    text: &'static str,
    /// The command whose options are shown, and the headings that they have.
    options: Option<(&'static str, &'static [&'static str])>,
}

const TOPICS: [Topic; 9] = [
    Topic {
        name: "models",
        summary: "names, files and folders; where models come from",
        text: include_str!("help/models.txt"),
        options: None,
    },
    Topic {
        name: "devices",
        summary: "CPU, GPUs, several of them",
        text: include_str!("help/devices.txt"),
        options: Some(("run", &[DEVICES])),
    },
    Topic {
        name: "memory",
        summary: "what a model takes, and how to fit it",
        text: include_str!("help/memory.txt"),
        options: Some(("run", &[MEMORY])),
    },
    Topic {
        name: "numerics",
        summary: "fast and exact mode, reproducible answers",
        text: include_str!("help/numerics.txt"),
        options: Some(("run", &[NUMERICS])),
    },
    Topic {
        name: "sampling",
        summary: "temperature, penalties, seeds",
        text: include_str!("help/sampling.txt"),
        options: Some(("run", &[SAMPLING])),
    },
    Topic {
        name: "speculation",
        summary: "guessing several tokens per step",
        text: include_str!("help/speculation.txt"),
        options: Some(("run", &[SPECULATION])),
    },
    Topic {
        name: "serving",
        summary: "keys, TLS, limits and the log of a server",
        text: include_str!("help/serving.txt"),
        options: Some(("serve", &[NETWORK, LIMITS])),
    },
    Topic {
        name: "npu",
        summary: "AMD's NPU beside a CPU or GPU",
        text: include_str!("help/npu.txt"),
        options: Some(("run", &[NPU])),
    },
    Topic {
        name: "environment",
        summary: "variables that Pianola reads",
        text: include_str!("help/environment.txt"),
        options: None,
    },
];

/// Below the overview of commands.
pub fn overview() -> String {
    format!(
        "Examples:\n  pianola run \"Why is the sky blue?\"\n  pianola chat -m qwen2.5-coder:1.5b\n  \
         pianola help devices\n\n{}",
        topics()
    )
}

/// The same for `--help`.
pub fn overview_with_environment() -> String {
    format!("{}\n\n{}", overview(), include_str!("help/environment.txt").trim_end())
}

fn topics() -> String {
    let line = |topic: &Topic| format!("\n  {:<12} {}", topic.name, topic.summary);
    format!("Topics of `pianola help`:{}", TOPICS.iter().map(line).collect::<String>())
}

pub fn run(arguments: &Arguments, mut parser: Command) -> Result<(), Failure> {
    // Fills in what subcommands inherit.
    parser.build();
    let names: Vec<&str> = arguments.names.iter().map(String::as_str).collect();
    if names.is_empty() {
        return console::print_help(&parser.render_help());
    }
    if let [name] = names[..]
        && let Some(topic) = TOPICS.iter().find(|topic| topic.name == name)
    {
        return show(topic, &parser);
    }
    let mut command = &parser;
    for &name in &names {
        command = command.find_subcommand(name).ok_or_else(|| {
            Failure::usage(format!("there is no command or topic '{name}'; see `pianola help`"))
        })?;
    }
    // The parser chooses the form of a command's help.
    let words = ["pianola"].into_iter().chain(names).chain(["--help"]);
    match parser.try_get_matches_from(words) {
        Err(help) => console::print_help(&help.render()),
        Ok(_) => Ok(()),
    }
}

fn show(topic: &Topic, parser: &Command) -> Result<(), Failure> {
    console::print_line(topic.text.trim_end())?;
    if let Some((command, headings)) = topic.options
        && let Some(command) = parser.find_subcommand(command)
    {
        console::print("\n")?;
        console::print_help(&options_under(command, headings).render_long_help())?;
    }
    match parser.find_subcommand(topic.name) {
        Some(_) => console::print_line(&format!(
            "\nThe command of this name: `pianola {} --help`.",
            topic.name
        )),
        None => Ok(()),
    }
}

/// A command with the options of some headings alone.
fn options_under(command: &Command, headings: &[&str]) -> Command {
    let wanted = |arg: &Arg| arg.get_help_heading().is_some_and(|name| headings.contains(&name));
    let hidden = |arg: Arg| {
        let hide = arg.is_hide_set() || !wanted(&arg);
        arg.hide(hide)
    };
    let shown = command.clone().mut_args(hidden);
    shown.help_template("{options}").after_help("").after_long_help("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parser;

    #[test]
    fn topics_have_the_options_of_their_headings() {
        let parser = parser();
        for topic in &TOPICS {
            let Some((command, headings)) = topic.options else { continue };
            let command = parser.find_subcommand(command).unwrap();
            for heading in headings {
                let text = options_under(command, &[heading]).render_long_help().to_string();
                assert!(text.contains("\n      --"), "{heading}: {text}");
                assert!(!text.contains("--version"), "{heading}: {text}");
            }
        }
    }
}
