//! The operating system.

use super::machine::Machine;
use super::row::Row;

pub fn examine(machine: &Machine) -> Vec<Row> {
    let release = machine.read("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name = name.map_or(std::env::consts::OS, |name| name.trim_matches('"'));
    let kernel = machine.read("/proc/sys/kernel/osrelease");
    let kernel = kernel.as_deref().map_or("unknown", str::trim);
    vec![Row::fine("system", format!("{name}, kernel {kernel}, {}", std::env::consts::ARCH))]
}
