//! What most people ask of a plan: does it fit, how fast will it be, how much more would fit.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use pianola_plan::{Ceilings, Device, HeapShare, Plan, PlanText, size_text};
use pianola_vulkan::VulkanDevice;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::memory::DeviceMemory;

/// The answers that a plan gives, before its kernels.
pub struct PlanAnswer {
    model: String,
    parts: Vec<DeviceMemory>,
    /// Tokens a second that one sequence generates.
    generation: Speed,
    /// Tokens a second of a prompt of [`PROMPT`] tokens.
    prompt: Speed,
    context: usize,
    /// Whether the user chose it.
    context_asked: bool,
    model_context: usize,
    /// Sequences of the whole context that fit at once; none where nothing fits, or the system does not
    /// say.
    lanes: Option<u64>,
}

#[derive(Clone, Copy)]
struct Speed {
    best: f64,
    expected: f64,
}

/// Rows of the prompt whose speed is predicted.
const PROMPT: usize = 512;

/// Share of the ceiling that benchmarks reached, and a fixed time for every kernel. Taken from
/// `bench/RESULTS.md` of November 2026: two cores of an EPYC for the processor, an H200 for GPUs.
/// Other machines differ.
struct Reached {
    share: f64,
    kernel_seconds: f64,
}

impl Reached {
    fn of(device: &dyn Device, rows: usize) -> Reached {
        let gpu = device.as_any().downcast_ref::<VulkanDevice>().is_some();
        match (gpu, rows) {
            (false, 1) => Reached { share: 0.7, kernel_seconds: 0.0 },
            (false, _) => Reached { share: 0.45, kernel_seconds: 0.0 },
            (true, 1) => Reached { share: 0.75, kernel_seconds: 8.5e-6 },
            (true, _) => Reached { share: 0.4, kernel_seconds: 25e-6 },
        }
    }
}

impl PlanAnswer {
    pub fn of(
        model: String,
        context_asked: bool,
        plan: &Plan,
        devices: &[Arc<dyn Device>],
        ceilings: &[Ceilings],
    ) -> Result<PlanAnswer, Failure> {
        let parts = DeviceMemory::of(plan, devices)?;
        let speed = |rows: usize| {
            let text = PlanText { plan, ceilings, lanes: 1, rows, context: rows, full: false };
            let expected: f64 = plan
                .ops
                .iter()
                .map(|op| {
                    let reached = Reached::of(devices[op.device.0].as_ref(), rows);
                    text.seconds_of(op) / reached.share + reached.kernel_seconds
                })
                .sum();
            let tokens = rows as f64;
            // Prompts use a device whose times say nothing.
            if rows > 1 && devices.iter().any(|device| device.is_emulated()) {
                return Speed { best: f64::NAN, expected: f64::NAN };
            }
            Speed { best: tokens / text.seconds(), expected: tokens / expected }
        };
        let lanes = lanes(plan, &parts);
        Ok(PlanAnswer {
            model,
            parts,
            generation: speed(1),
            prompt: speed(PROMPT.min(plan.options.max_rows)),
            context: plan.options.context,
            context_asked,
            model_context: plan.graph.context,
            lanes,
        })
    }

    /// Whether every device holds its part.
    pub fn fits(&self) -> bool {
        self.parts.iter().all(|part| part.heaps.is_some())
    }

    pub fn object(&self) -> Value {
        let heap = |heap: &HeapShare| json!({ "name": heap.name, "bytes": heap.taken, "free_bytes": heap.free });
        let part = |part: &DeviceMemory| {
            json!({
                "device": part.name,
                "bytes": part.bytes(),
                "weight_bytes": part.weights,
                "prompt_weight_bytes": part.prompt_weights,
                "kv_bytes": part.kv,
                "working_bytes": part.working,
                "granted_bytes": part.granted,
                "heaps": part.heaps.as_ref().map(|heaps| heaps.iter().map(heap).collect::<Vec<_>>()),
            })
        };
        let speed = |speed: Speed| json!({ "best": speed.best, "expected": speed.expected });
        json!({
            "fits": self.fits(),
            "devices": self.parts.iter().map(part).collect::<Vec<_>>(),
            "generation_tokens_per_second": speed(self.generation),
            "prompt_tokens_per_second": speed(self.prompt),
            "context": self.context,
            "sequences_of_that_context": self.lanes,
        })
    }
}

/// Sequences of the plan's context that fit beside the weights, as far as memory is concerned.
fn lanes(plan: &Plan, parts: &[DeviceMemory]) -> Option<u64> {
    let one: u64 = plan
        .graph
        .kv_groups
        .iter()
        .map(|group| {
            group.page_bytes() * group.pages_for(plan.options.context, plan.options.max_rows) as u64
        })
        .sum();
    if parts.iter().any(|part| part.heaps.is_none()) {
        return None;
    }
    // Layers, and with them their keys and values, are shared out among the devices; the tightest
    // decides.
    let fits = |part: &DeviceMemory| {
        let heaps = part.heaps.as_ref()?;
        let free: u64 = heaps.iter().map(|heap| heap.free).sum();
        let share = part.kv as f64 / plan.kv_bytes().max(1) as f64;
        let room = free.checked_sub(part.weights + part.working)?;
        (share > 0.0 && free < u64::MAX).then(|| (room as f64 / (one as f64 * share)) as u64)
    };
    parts.iter().filter_map(fits).min()
}

impl Display for PlanAnswer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verdict = if self.fits() { "fits" } else { "does not fit" };
        let names: Vec<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
        writeln!(f, "{} {verdict} on {}", self.model, names.join(" and "))?;
        for part in &self.parts {
            let for_prompts = match part.prompt_weights {
                0 => String::new(),
                bytes => format!(" and {} for their int8 copy", size_text(bytes)),
            };
            writeln!(
                f,
                "  {:<12} {} with {} tokens of context: weights {}{for_prompts}, keys and values {}, \
                 working memory {}",
                "memory",
                size_text(part.bytes()),
                self.context,
                size_text(part.weights),
                size_text(part.kv),
                size_text(part.working),
            )?;
            match (&part.heaps, part.granted) {
                (Some(heaps), _) => {
                    for heap in heaps.iter().filter(|heap| heap.free < u64::MAX) {
                        let (taken, free) = (size_text(heap.taken), size_text(heap.free));
                        writeln!(f, "  {:<12} {}: {taken} of {free} available", "", heap.name)?;
                    }
                }
                (None, Some(granted)) => {
                    let usable = part.usable.filter(|&usable| usable < granted);
                    let usable =
                        usable.map(|usable| format!(", {} may be used", size_text(usable)));
                    writeln!(
                        f,
                        "  {:<12} {} are free{}; a smaller model, --context or --kv-type q8_0 takes less",
                        "",
                        size_text(granted),
                        usable.unwrap_or_default(),
                    )?
                }
                (None, None) => {}
            }
        }
        for (name, speed) in [("generation", self.generation), ("prompt", self.prompt)] {
            if speed.best.is_nan() {
                writeln!(f, "  {name:<12} not known: a device has no speed of its own")?;
                continue;
            }
            writeln!(
                f,
                "  {name:<12} {} tokens/s expected, {} at best",
                rounded(speed.expected),
                rounded(speed.best)
            )?;
        }
        write!(f, "  {:<12} {} tokens", "context", self.context)?;
        let most = self.model_context;
        match (self.context == most, self.context_asked, self.fits()) {
            (true, ..) => write!(f, " (all that the model allows)")?,
            (false, true, _) => write!(f, " as requested (the model allows {most})")?,
            (false, false, true) => write!(f, " fit (the model allows {most})")?,
            (false, false, false) => write!(f, " do not fit either (the model allows {most})")?,
        }
        match self.lanes {
            Some(1) => writeln!(f, "; one sequence of that length at once"),
            Some(lanes) => writeln!(f, "; {lanes} sequences of that length at once"),
            None => writeln!(f),
        }
    }
}

/// A speed with two digits, which is as much as a prediction is good for.
fn rounded(speed: f64) -> String {
    match speed {
        ..10.0 => format!("{speed:.1}"),
        ..100.0 => format!("{speed:.0}"),
        _ => {
            let unit = 10f64.powf(speed.log10().floor() - 1.0);
            format!("{:.0}", (speed / unit).round() * unit)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn predictions_have_two_digits() {
        let shown = [0.84, 7.26, 43.7, 618.8, 12_345.0].map(rounded);
        assert_eq!(shown, ["0.8", "7.3", "44", "620", "12000"]);
    }
}
