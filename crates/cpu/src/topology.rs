//! Cores and memory nodes, as Linux lists them.

use std::collections::BTreeSet;

const CPUS: &str = "/sys/devices/system/cpu";
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const NODES: &str = "/sys/devices/system/node";

/// Cores that this process may use; hardware threads of one core count once. A control group's share of
/// processor time may make it fewer.
pub(crate) fn cores() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let allowed = read("/proc/self/status").and_then(|status| allowed(&status));
    let siblings = |cpu: usize| read(&format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list"));
    allowed.map_or(threads, |allowed| count_cores(&allowed, siblings).clamp(1, threads))
}

/// Memory nodes that this process may use, where there are several.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn nodes() -> Option<Vec<usize>> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed: BTreeSet<usize> =
        list(field(&status, "Mems_allowed_list:")?).into_iter().collect();
    let with_memory = std::fs::read_to_string(format!("{NODES}/has_memory")).ok()?;
    let nodes: Vec<usize> =
        list(&with_memory).into_iter().filter(|node| allowed.contains(node)).collect();
    (nodes.len() > 1).then_some(nodes)
}

/// Bytes of the last-level cache, where the system says.
pub(crate) fn last_cache() -> Option<usize> {
    let read =
        |level: usize| std::fs::read_to_string(format!("{CPUS}/cpu0/cache/index{level}/size")).ok();
    (0..5).rev().find_map(read).and_then(|text| size(&text))
}

/// Bytes of a size such as `307200K`.
fn size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.trim_end_matches(['K', 'M']);
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// Processors that a thread may run on, by the text of its status.
fn allowed(status: &str) -> Option<Vec<usize>> {
    Some(list(field(status, "Cpus_allowed_list:")?))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// Cores of some processors; `siblings` lists those of one's core. One whose siblings are not known is a
/// core of its own.
fn count_cores(cpus: &[usize], siblings: impl Fn(usize) -> Option<String>) -> usize {
    let core = |&cpu: &usize| {
        let siblings = siblings(cpu).map(|text| list(&text)).unwrap_or_default();
        siblings.into_iter().min().unwrap_or(cpu)
    };
    cpus.iter().map(core).collect::<BTreeSet<_>>().len()
}

/// Numbers of a list such as `0-3,8`; none of what is no list.
fn list(text: &str) -> Vec<usize> {
    /// More than any machine has: a list is never longer than this, whatever it says.
    const MOST: usize = 1 << 16;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse::<usize>().ok()?.min(MOST))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// What a processor says of itself; zeros where it does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Processor {
    /// Who made it.
    pub vendor: [u8; 12],
    /// Its generation, as the maker counts them: 25 is Zen 3 and 4, 26 Zen 5.
    pub family: u32,
}

impl Processor {
    /// The one that this runs on.
    pub fn this() -> Processor {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: every processor of this kind has the instruction.
            #[allow(unsafe_code, unused_unsafe, reason = "safe in later versions of Rust")]
            let [maker, version] = [0, 1].map(|leaf| unsafe { std::arch::x86_64::__cpuid(leaf) });
            let mut vendor = [0; 12];
            for (to, word) in vendor.chunks_exact_mut(4).zip([maker.ebx, maker.edx, maker.ecx]) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            let (base, extended) = (version.eax >> 8 & 0xf, version.eax >> 20 & 0xff);
            Processor { vendor, family: if base == 15 { base + extended } else { base } }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Processor::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert!(list("\n").is_empty());
        assert!(list("3-1,x,4-").is_empty());
        assert_eq!(list("0-18446744073709551615").len(), 65537);
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("307200K\n"), Some(300 << 20));
        assert_eq!(size("32M"), Some(32 << 20));
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("many"), None);
        assert_eq!(size("1KK"), None);
    }

    #[test]
    fn hardware_threads_of_a_core_count_once() {
        let pairs = |cpu: usize| Some(format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        assert_eq!(count_cores(&[0, 1, 2, 3, 4, 5, 6, 7], pairs), 4);
        assert_eq!(count_cores(&[1, 5], pairs), 1);
        assert_eq!(count_cores(&[0, 6], pairs), 2);
        assert_eq!(count_cores(&[0, 1, 2], |_| None), 3);
    }

    #[test]
    fn a_status_names_the_processors() {
        let status =
            "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-1,6\nMems_allowed_list:\t0\n";
        assert_eq!(allowed(status), Some(vec![0, 1, 6]));
        assert_eq!(allowed("Name:\tx\n"), None);
    }

    #[test]
    fn this_machine_has_cores() {
        let threads = std::thread::available_parallelism().unwrap().get();
        assert!((1..=threads).contains(&cores()));
    }
}
