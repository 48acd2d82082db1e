//! The processor: instructions, cores, and how many of them this process may use.

use std::collections::BTreeSet;
use std::path::Path;

use pianola_cpu::{CpuDescription, Level};

use super::machine::Machine;
use super::row::Row;

/// Instructions that decide how fast a processor is at inference, as the kernel names them.
const INSTRUCTIONS: [&str; 11] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
];

pub fn examine(machine: &Machine) -> Vec<Row> {
    let text = machine.read("/proc/cpuinfo").unwrap_or_default();
    rows(&text, &pianola_cpu::describe(), quota(machine))
}

/// `cpuinfo` is the text of `/proc/cpuinfo`; `quota` the processors that a control group allows.
fn rows(cpuinfo: &str, description: &CpuDescription, quota: Option<f64>) -> Vec<Row> {
    let mut rows = vec![Row::fine("processor", &description.name)];
    if let Some(text) = instructions(cpuinfo) {
        rows.push(Row::fine("instructions", text));
    }
    let levels: Vec<&str> = description.levels.iter().map(|level| level.name()).collect();
    let best = description.levels.first().copied();
    let simd = matches!(best, Some(Level::Amx | Level::Avx512 | Level::AvxVnni | Level::Avx2));
    rows.push(match simd {
        true => Row::fine("kernels", format!("{} (best first)", levels.join(", "))),
        false => Row::warning(
            "kernels",
            "plain Rust: there are kernels for AVX-512 with VNNI and for AVX2, and this processor shows \
             neither",
        )
        .fix("in a virtual machine, pass the host's processor through (QEMU: -cpu host)"),
    });
    let mut cores = match topology(cpuinfo) {
        Some((cores, threads)) => format!("{cores} cores, {threads} hardware threads"),
        None => "unknown number of cores".to_string(),
    };
    if let Some(quota) = quota {
        cores.push_str(&format!("; the control group allows {quota:.1} of them"));
    }
    rows.push(Row::fine("cores", format!("{cores}; {} worker threads", description.cores)));
    rows
}

/// Which of [`INSTRUCTIONS`] there are; none where the text has no such list.
fn instructions(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    let flags: BTreeSet<&str> = line.split_once(':')?.1.split_whitespace().collect();
    let (has, lacks): (Vec<&str>, Vec<&str>) =
        INSTRUCTIONS.into_iter().partition(|name| flags.contains(name));
    let list = |names: Vec<&str>| if names.is_empty() { "none".into() } else { names.join(" ") };
    Some(format!("has {}; lacks {}", list(has), list(lacks)))
}

/// Cores and hardware threads of the machine.
fn topology(cpuinfo: &str) -> Option<(usize, usize)> {
    let mut cores = BTreeSet::new();
    let mut threads = 0;
    for processor in cpuinfo.split("\n\n") {
        let field = |key: &str| {
            let line = processor
                .lines()
                .find(|line| line.split_once(':').is_some_and(|(name, _)| name.trim() == key));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
        };
        let Some(number) = field("processor") else { continue };
        threads += 1;
        // Where the kernel tells no cores, each thread is one.
        cores.insert((field("physical id"), field("core id").unwrap_or(number)));
    }
    (threads > 0).then_some((cores.len(), threads))
}

/// Processors that the control groups of this process allow, the least on the way to the root.
fn quota(machine: &Machine) -> Option<f64> {
    let mine = machine.read("/proc/self/cgroup").unwrap_or_default();
    let mut least: Option<f64> = None;
    for line in mine.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let read = |root: &str, file: &str| {
                machine.read(&Path::new(root).join(group).join(file).display().to_string())
            };
            let number = |text: Option<String>| text?.trim().parse::<f64>().ok();
            let allowed = if controllers.is_empty() {
                read("/sys/fs/cgroup", "cpu.max").and_then(|text| {
                    let (quota, period) = text.trim().split_once(' ')?;
                    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
                })
            } else if controllers.split(',').any(|name| name == "cpu") {
                let quota = number(read("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"));
                let period = number(read("/sys/fs/cgroup/cpu", "cpu.cfs_period_us"));
                // A quota of -1 is none.
                quota.filter(|quota| *quota > 0.0).zip(period).map(|(quota, period)| quota / period)
            } else {
                None
            };
            if let Some(allowed) = allowed.filter(|allowed| allowed.is_finite()) {
                least = Some(least.map_or(allowed, |least| least.min(allowed)));
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    const CPUINFO: &str = "processor\t: 0\nmodel name\t: AMD Ryzen 7 7840U\nphysical id\t: 0\n\
        core id\t\t: 0\nflags\t\t: fpu avx2 fma f16c avx512f avx512bw avx512_vnni avx512_bf16\n\n\
        processor\t: 1\nphysical id\t: 0\ncore id\t\t: 0\n\n\
        processor\t: 2\nphysical id\t: 0\ncore id\t\t: 1\n\n\
        processor\t: 3\nphysical id\t: 0\ncore id\t\t: 1\n";

    fn description(levels: Vec<Level>) -> CpuDescription {
        CpuDescription { name: "AMD Ryzen 7 7840U".into(), cores: 4, levels, memory: None }
    }

    #[test]
    fn instructions_cores_and_threads_are_told() {
        let levels = vec![Level::Avx512, Level::Avx2, Level::Portable];
        let rows = rows(CPUINFO, &description(levels), None);
        let text: Vec<&str> = rows.iter().map(|row| row.text.as_str()).collect();
        assert_eq!(
            text,
            [
                "AMD Ryzen 7 7840U",
                "has avx2 fma f16c avx512f avx512bw avx512_vnni avx512_bf16; lacks avx_vnni amx_tile \
                 amx_int8 amx_bf16",
                "avx512, avx2, portable (best first)",
                "2 cores, 4 hardware threads; 4 worker threads",
            ]
        );
    }

    #[test]
    fn a_processor_without_kernels_is_a_warning() {
        let rows = rows("", &description(vec![Level::Portable]), Some(1.5));
        assert_eq!(rows[1].verdict, Verdict::Warning);
        assert!(rows[2].text.contains("the control group allows 1.5 of them"), "{rows:?}");
    }

    #[test]
    fn the_least_quota_on_the_way_counts() {
        let of = |files: &[(&str, &str)]| quota(&Recorded::new(files, &[]).0);
        assert_eq!(of(&[]), None);
        let second = ("/proc/self/cgroup", "0::/pod/container\n");
        let whole = ("/sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
        let part = ("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
        assert_eq!(of(&[second, whole]), None);
        assert_eq!(of(&[second, whole, part]), Some(1.5));
        let first = [
            ("/proc/self/cgroup", "3:cpu,cpuacct:/docker/1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ];
        assert_eq!(of(&first), Some(2.0));
    }
}
