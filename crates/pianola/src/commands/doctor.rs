//! `doctor`: what this machine has for running models, what it lacks, and the command that mends it.
//!
//! ```text
//! Machine (files, variables) ─► GROUPS: one function a group ─► rows ─► text, JSON, report
//! ```
//!
//! To add a group, such as another kind of device, write its file and its line in [`GROUPS`].

mod amdgpu;
mod card;
mod environment;
mod graphics;
mod install;
mod machine;
mod manifest;
mod memory;
mod npu;
mod privacy;
mod processor;
mod render_node;
mod report;
mod row;
mod storage;
mod system;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::output;

use machine::Machine;
use privacy::Privacy;
use row::{Group, Row, Verdict};

/// Examine this machine: what works, what does not, and the command that fixes it.
///
/// Looks at GPU drivers and memory, the NPU, the CPU, memory, the folders of models and the
/// environment. A row marked warn costs speed or a feature. A row marked FAIL prevents running; the
/// exit code is then 1.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola doctor
  pianola doctor --report doctor.txt     # to show to others: without names, paths and tokens
  pianola doctor --json | jq '.groups[].rows[] | select(.verdict != \"ok\")'")]
pub struct Arguments {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// Also write the rows to FILE, without user name, home folder, host name and tokens
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// A part of the machine and the function that examines it.
struct Part {
    name: &'static str,
    examine: fn(&Machine) -> Vec<Row>,
}

/// What is examined, in the order in which it is printed.
const GROUPS: [Part; 7] = [
    Part { name: "system", examine: system::examine },
    Part { name: "gpu", examine: graphics::examine },
    Part { name: "npu", examine: npu::examine },
    Part { name: "cpu", examine: processor::examine },
    Part { name: "memory", examine: memory::examine },
    Part { name: "storage", examine: storage::examine },
    Part { name: "environment", examine: environment::examine },
];

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    if let Some(path) = &arguments.report {
        output::check_writable(path).map_err(|error| unwritable(path, &error))?;
    }
    let machine = Machine::this();
    let examine = |part: &Part| Group { name: part.name, rows: (part.examine)(&machine) };
    let groups: Vec<Group> = GROUPS.iter().map(examine).collect();
    match arguments.json {
        true => console::print_json(&report::object(&groups))?,
        false => console::print(&report::text(&groups))?,
    }
    if let Some(path) = &arguments.report {
        let text = Privacy::of(&machine).redact(&report::text(&groups));
        output::write(path, &text).map_err(|error| unwritable(path, &error))?;
        console.notice(&format!(
            "report without user name, home folder, host name and tokens: {}; read it before you \
             show it to others",
            path.display()
        ));
    }
    verdict(&groups)
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!(
        "the report cannot be written to {}: {error}; name a file in a folder of yours",
        path.display()
    ))
}

/// An error that names what prevents running, if anything does.
fn verdict(groups: &[Group]) -> Result<(), Failure> {
    let rows = groups.iter().flat_map(|group| &group.rows);
    let broken: Vec<String> = rows
        .filter(|row| row.verdict == Verdict::Broken)
        .map(|row| format!("{}: {}", row.name, row.text))
        .collect();
    match broken.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(format!("this prevents running: {}", broken.join("; ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_broken_fails() {
        let group = |rows| [Group { name: "x", rows }];
        let fine = || Row::fine("a", "b");
        assert!(verdict(&group(vec![fine(), Row::warning("c", "d")])).is_ok());
        let failure = verdict(&group(vec![fine(), Row::broken("store", "not writable")]));
        let failure = failure.unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert_eq!(failure.message(), Some("this prevents running: store: not writable"));
    }
}
