//! Memory: how much, how fast, and how the system hands it out.

use pianola_cpu::CpuOptions;
use pianola_plan::Numeric;

use super::machine::Machine;
use super::row::{Row, size};

/// What the smallest model of the catalogue takes while it runs.
const LEAST: u64 = 270_000_000;
/// Below this, models of some use do not fit.
const LITTLE: u64 = 2_000_000_000;

pub fn examine(machine: &Machine) -> Vec<Row> {
    let options = CpuOptions::default();
    let mut rows = vec![amount(installed(machine), pianola_cpu::describe().memory)];
    rows.push(match pianola_cpu::measure(options, Numeric::Fast) {
        Some(measured) => {
            let (speed, threads) = (measured.bytes_per_second / 1e9, options.threads);
            Row::fine("speed", format!("{speed:.1} GB/s read, measured with {threads} threads"))
        }
        None => Row::warning("speed", "not measured: memory or threads were not to be had")
            .fix("close other programs"),
    });
    rows.push(huge_pages(machine.read("/sys/kernel/mm/transparent_hugepage/enabled").as_deref()));
    rows.extend(locked(&machine.read("/proc/self/limits").unwrap_or_default()));
    rows
}

/// Bytes that the machine has, whatever this process may use.
pub fn installed(machine: &Machine) -> Option<u64> {
    let text = machine.read("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// `usable` is what this process may use, in all and now.
fn amount(installed: Option<u64>, usable: Option<(u64, u64)>) -> Row {
    let Some((all, available)) = usable else {
        return Row::fine("memory", "the system does not report it");
    };
    let mut text = format!("{} of {} available", size(available), size(all));
    let limited = installed.is_some_and(|installed| all < installed);
    if let Some(installed) = installed.filter(|_| limited) {
        text.push_str(&format!("; a control group limits the {} of the machine", size(installed)));
    }
    let fix = match limited {
        true => "give the container or service more (docker: --memory, systemd: MemoryMax)",
        false => "close other programs",
    };
    match available {
        ..LEAST => {
            Row::broken("memory", format!("{text}: too little for the smallest model")).fix(fix)
        }
        LEAST..LITTLE => {
            Row::warning("memory", format!("{text}: enough for the smallest models")).fix(fix)
        }
        _ => Row::fine("memory", text),
    }
}

/// `enabled` is the system's setting, the chosen word in brackets.
fn huge_pages(enabled: Option<&str>) -> Row {
    let chosen = enabled.and_then(|text| text.split('[').nth(1)?.split(']').next());
    match chosen {
        None => Row::fine("huge pages", "not offered by this kernel"),
        Some("never") => Row::warning("huge pages", "switched off: weights are read slower")
            .fix("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        Some(chosen) => Row::fine("huge pages", chosen),
    }
}

/// `limits` is the text of the process's limits.
fn locked(limits: &str) -> Option<Row> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let soft = line.split_whitespace().next()?;
    let text = soft.parse().map_or_else(|_| soft.to_string(), size);
    Some(Row::fine("memlock", format!("{text}; the processor and Vulkan need none")))
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn a_limit_of_a_control_group_is_named() {
        let row = amount(Some(32 * GB), Some((4 * GB, 3 * GB)));
        assert_eq!(
            row,
            Row::fine(
                "memory",
                "3.0 GB of 4.0 GB available; a control group limits the 32.0 GB of the machine"
            )
        );
        let row = amount(Some(32 * GB), Some((GB, GB / 10)));
        assert_eq!(row.verdict, Verdict::Broken);
        assert!(row.fix.unwrap().contains("MemoryMax"));
        let row = amount(Some(32 * GB), Some((32 * GB, GB)));
        assert!(row.verdict == Verdict::Warning && row.fix.unwrap() == "close other programs");
    }

    #[test]
    fn settings_of_the_system_are_read() {
        assert_eq!(
            huge_pages(Some("always [madvise] never\n")),
            Row::fine("huge pages", "madvise")
        );
        assert_eq!(huge_pages(Some("always madvise [never]\n")).verdict, Verdict::Warning);
        assert_eq!(huge_pages(None).verdict, Verdict::Fine);
        let limits = "Max locked memory         8388608              8388608              bytes\n";
        assert!(locked(limits).unwrap().text.starts_with("8.4 MB"));
        assert!(
            locked("Max locked memory unlimited unlimited bytes").unwrap().text.starts_with("unl")
        );
        let files = [("/proc/meminfo", "MemTotal:       32000 kB\nMemFree: 1 kB\n")];
        assert_eq!(installed(&Recorded::new(&files, &[]).0), Some(32_768_000));
    }
}
