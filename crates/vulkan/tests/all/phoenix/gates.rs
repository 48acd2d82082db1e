//! What the pipelines of each kernel must keep to, and which kernels the chip never runs.

use pianola_vulkan::KernelStatistics;

/// What the pipelines of a kernel must keep to. A SIMD of the chip has 1024 registers for each of
/// its 32 lanes and holds at most 16 subgroups: all of them with up to 64 registers, 12 with 80,
/// 8 with 128, 4 with 256. Shared memory (64 KiB for two SIMDs) may allow fewer.
pub struct Gate {
    pub kernel: &'static str,
    /// Which of the kernel's pipelines, in words and in code.
    pub name: &'static str,
    pub applies: fn(&KernelStatistics) -> bool,
    /// Least subgroups that a SIMD can hold at once.
    pub subgroups: u64,
    /// An instruction that must be there.
    pub instruction: Option<&'static str>,
    /// Most bytes of memory that stands in for a subgroup's registers.
    pub scratch: u64,
}

impl Gate {
    /// A gate for all pipelines of a kernel.
    const fn of(kernel: &'static str, subgroups: u64) -> Gate {
        Gate { kernel, name: "all", applies: |_| true, subgroups, instruction: None, scratch: 0 }
    }
}

pub const DOT: Option<&str> = Some("v_dot4_i32");
pub const MATRIX: Option<&str> = Some("v_wmma_");

/// The first gate that applies counts.
pub static GATES: [Gate; 25] = [
    // These wait for memory all the time.
    Gate::of("embed", 12),
    Gate::of("rope_angles", 12),
    // A row of 5376 values and its two norms are held in registers, so that all loads come first.
    Gate::of("prologue", 8),
    Gate::of("kv_write", 12),
    // Generation: as many reads in flight as can be.
    Gate {
        name: "integer, one row",
        applies: |kernel| integer(kernel) && one_row(kernel),
        instruction: DOT,
        // Four blocks under way a lane, and in a tail the next row: twice what the bus can use.
        ..Gate::of("project_rows", 8)
    },
    // Eight rows of six bits with a gate keep 160 registers.
    Gate { name: "integer", applies: integer, instruction: DOT, ..Gate::of("project_rows", 6) },
    Gate { name: "float", ..Gate::of("project_rows", 8) },
    // Exact mode; integers of many rows go to matrix units.
    Gate::of("project_tiles", 6),
    Gate { instruction: MATRIX, ..Gate::of("project_matrix", 4) },
    // Sums of 128 columns and what comes next are in registers, the rest in shared memory.
    Gate { instruction: MATRIX, ..Gate::of("attention_matrix", 4) },
    Gate {
        name: "up to two heads",
        applies: |kernel| kernel.constant("HEADS").is_some_and(|heads| heads <= 2),
        ..Gate::of("attention", 8)
    },
    Gate::of("sample_cut", 8),
    Gate::of("sample_best", 8),
    Gate::of("sample_shape", 8),
    Gate::of("sample_select", 8),
    Gate::of("sample_weigh", 8),
    Gate::of("sample_whole", 8),
    // Shared memory, not registers: a workgroup keeps every head's sums several times over.
    Gate { name: "more heads", ..Gate::of("attention", 4) },
    // Only with --prompt-weights on, which a processor's graphics never choose by themselves. RADV keeps all sums of a
    // piece (64 by 64 of a subgroup, four bytes each) in memory; its speed there is not known.
    Gate { instruction: MATRIX, scratch: 64 * 64 * 4, ..Gate::of("project_rotated", 4) },
    // Operations by themselves, of graphs that no pattern fuses: they wait for memory.
    Gate::of("add", 12),
    Gate::of("gate", 12),
    Gate::of("rms_norm", 12),
    Gate::of("rope", 12),
    Gate::of("select_rows", 12),
    Gate::of("soft_cap", 12),
];

/// Kernels that no play on the chip has, and why.
pub const NEVER_PLAYED: [(&str, &str); 10] = [
    ("attention_single", "RADV counts no units"),
    ("attention_single_chained", "RADV counts no units"),
    ("chain_probe", "RADV counts no units"),
    ("project_single", "RADV counts no units"),
    ("project_single_chained", "RADV counts no units"),
    ("project_fragments", "RDNA 3 keeps copies of a matrix's rows"),
    ("probe", "it measures ceilings"),
    ("probe_fragments", "it asks how matrices lie in registers"),
    ("probe_matrix", "it measures ceilings"),
    ("rotate_weights", "it makes weights for prompts at load"),
];

fn integer(kernel: &KernelStatistics) -> bool {
    kernel.constant("INTEGER") == Some(1)
}

fn one_row(kernel: &KernelStatistics) -> bool {
    kernel.bodies.contains(&1) || kernel.heads.contains(&1)
}
