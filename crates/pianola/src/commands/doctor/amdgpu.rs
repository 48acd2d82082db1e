//! How much of the machine's memory AMD's kernel driver lets a GPU use (GTT). An integrated GPU has
//! little else; what it may use is a limit of the kernel, half of the memory or less unless it is raised.

use super::machine::Machine;
use super::row::{Row, size};

/// Pages of the processors that have such GPUs.
const PAGE: u64 = 4096;
/// A GPU with no more memory than this of its own is taken for an integrated one.
const SMALL: u64 = 2 << 30;

/// A card's memory.
struct Sizes {
    card: String,
    /// Shared with the processor.
    gtt: u64,
    /// Its own.
    vram: u64,
}

fn find(machine: &Machine) -> Vec<Sizes> {
    let number = |name: &str| {
        let digits = name.strip_prefix("card")?;
        digits.chars().all(|c| c.is_ascii_digit()).then_some(())
    };
    let folder = "/sys/class/drm";
    let cards = machine.names(folder).into_iter().filter(|name| number(name).is_some());
    cards
        .filter_map(|card| {
            let read = |file| machine.number(&format!("{folder}/{card}/device/{file}"));
            let (gtt, vram) = (read("mem_info_gtt_total")?, read("mem_info_vram_total")?);
            Some(Sizes { card, gtt, vram })
        })
        .collect()
}

/// A row for each card of AMD. `memory` is all that the machine has; `integrated` says that Vulkan knows
/// an integrated GPU.
pub fn rows(machine: &Machine, memory: u64, integrated: bool) -> Vec<Row> {
    find(machine).iter().map(|sizes| row(machine, sizes, memory, integrated)).collect()
}

fn row(machine: &Machine, sizes: &Sizes, memory: u64, integrated: bool) -> Row {
    let Sizes { card, gtt, vram } = sizes;
    let mut text = format!(
        "{card} has {} of its own (VRAM) and may use {} (GTT) of the {} of memory",
        size(*vram),
        size(*gtt),
        size(memory)
    );
    if let Some(pages) = machine.number("/sys/module/ttm/parameters/pages_limit") {
        text.push_str(&format!("; ttm.pages_limit {pages} ({})", size(pages.saturating_mul(PAGE))));
    }
    let parameter = machine.read("/sys/module/amdgpu/parameters/gttsize");
    match parameter.as_deref().map(str::trim) {
        Some("-1") => text.push_str("; amdgpu.gttsize not set"),
        Some(mebibytes) => text.push_str(&format!("; amdgpu.gttsize {mebibytes} (MiB)")),
        None => {}
    }
    // A quarter of the memory stays for the system and for programs.
    let mebibytes = (memory / 4 * 3) >> 20;
    let enough = *gtt >= (mebibytes << 20) / 20 * 19;
    if enough || !(integrated || *vram <= SMALL) {
        return Row::fine("gpu memory", text);
    }
    let fix = format!(
        "kernel parameters: ttm.pages_limit={} amdgpu.gttsize={mebibytes}   (for {}; with GRUB: add them to \
         GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then `sudo update-grub && sudo reboot`)",
        (mebibytes << 20) / PAGE,
        size(mebibytes << 20),
    );
    // Half of the memory is the kernel's usual limit; a little is lost in rounding.
    match *gtt < memory / 5 * 2 {
        true => Row::warning("gpu memory", format!("{text}: less than usual")).fix(fix),
        false => Row::fine("gpu memory", text).fix(fix),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    const MEMORY: u64 = 32 << 30;

    fn laptop(gtt: &str, vram: &str, gttsize: &str) -> Row {
        let files = [
            ("/sys/class/drm/card1/device/mem_info_gtt_total", gtt),
            ("/sys/class/drm/card1/device/mem_info_vram_total", vram),
            ("/sys/class/drm/card1-eDP-1/status", "connected\n"),
            ("/sys/module/ttm/parameters/pages_limit", "786432\n"),
            ("/sys/module/amdgpu/parameters/gttsize", gttsize),
        ];
        let rows = rows(&Recorded::new(&files, &[]).0, MEMORY, false);
        assert_eq!(rows.len(), 1);
        rows.into_iter().next().unwrap()
    }

    #[test]
    fn a_laptop_with_a_small_gtt_is_told_the_parameters() {
        let row = laptop("3221225472\n", "536870912\n", "-1\n");
        assert_eq!(row.verdict, Verdict::Warning);
        assert!(
            row.text.contains("536.9 MB of its own (VRAM) and may use 3.2 GB (GTT)"),
            "{row:?}"
        );
        assert!(
            row.text.contains("pages_limit 786432 (3.2 GB); amdgpu.gttsize not set"),
            "{row:?}"
        );
        let fix = row.fix.unwrap();
        assert!(fix.contains("ttm.pages_limit=6291456 amdgpu.gttsize=24576 "), "{fix}");
    }

    #[test]
    fn half_of_the_memory_is_usual_and_three_quarters_are_enough() {
        let half = laptop("17179869184\n", "536870912\n", "-1\n");
        assert!(half.verdict == Verdict::Fine && half.fix.is_some());
        let raised = laptop("25769803776\n", "536870912\n", "24576\n");
        assert!(raised.verdict == Verdict::Fine && raised.fix.is_none());
        assert!(raised.text.contains("amdgpu.gttsize 24576 (MiB)"));
        // A card with memory of its own does not depend on it.
        let card = laptop("3221225472\n", "17163091968\n", "-1\n");
        assert!(card.verdict == Verdict::Fine && card.fix.is_none());
    }

    #[test]
    fn other_machines_have_no_row() {
        assert!(rows(&Recorded::new(&[], &[]).0, MEMORY, true).is_empty());
    }
}
