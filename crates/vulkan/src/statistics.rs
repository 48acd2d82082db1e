//! The driver's statistics of a plan's compiled kernels: registers, spills, occupancy, assembly.
//!
//! Needs no memory of the device, so that a driver without a chip behind it can answer for the
//! chip.

use crate::device::VulkanOptions;
use crate::dry_run::DryRun;
use crate::pipeline::{Pipelines, Shader, Variant};
use crate::program::Body;
use crate::recording::logit_bucket;
use crate::sample::whole::{Stage, WholeRegions};
use crate::sample::{SampleProgram, SampleRegions};
use ash::{khr, vk};
use pianola_plan::{BUCKETS, DeviceError, DeviceId, KernelVariant, Plan, bucket};
use std::collections::{BTreeMap, HashMap};

/// One compiled kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelStatistics {
    /// Name of its source in `shaders/`.
    pub kernel: &'static str,
    /// Specialisation constants, by their names in the source.
    pub constants: Vec<(String, u32)>,
    /// Row counts whose bodies use it.
    pub bodies: Vec<u32>,
    /// Row counts whose heads use it.
    pub heads: Vec<u32>,
    /// Invocations of its subgroups.
    pub subgroup: u32,
    /// The driver's statistics, by its names.
    pub statistics: Vec<(String, u64)>,
    /// The driver's assembly, empty where it shows none.
    pub assembly: String,
}

impl KernelStatistics {
    /// A constant by its name.
    pub fn constant(&self, name: &str) -> Option<u32> {
        self.constants.iter().find(|constant| constant.0 == name).map(|constant| constant.1)
    }

    /// A statistic by the driver's name.
    pub fn statistic(&self, name: &str) -> Option<u64> {
        self.statistics.iter().find(|statistic| statistic.0 == name).map(|statistic| statistic.1)
    }
}

/// Compiles every pipeline that recordings of `plan` can use on a device with these options, for all row
/// counts, and queries the driver's statistics of each.
pub fn compile_plan(
    options: &VulkanOptions,
    plan: &Plan,
) -> Result<Vec<KernelStatistics>, DeviceError> {
    let gpu = &options.gpu;
    let executable = gpu.executable.as_ref().ok_or_else(|| {
        let name = &gpu.description().name;
        DeviceError::Unsupported(format!("the driver of {name} tells nothing of its pipelines"))
    })?;
    let mut pipelines = Pipelines::new(gpu)?;
    let mut compiled = Vec::new();
    // Also more sequences than the plan has: what is compiled ahead for one is right for others.
    let most = BUCKETS[BUCKETS.len() - 1];
    for (variant, uses) in variants(options, plan, plan.head_device(), most)? {
        let flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
            | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
        let pipeline = pipelines.compile(&variant, flags)?;
        let found = ask(executable, pipeline);
        // SAFETY: made above, in no command buffer.
        unsafe { gpu.raw.destroy_pipeline(pipeline, None) };
        let Answer { subgroup, statistics, assembly } =
            found.map_err(|error| gpu.failure(&format!("statistics of {variant}"), error))?;
        compiled.push(KernelStatistics {
            kernel: variant.shader.name(),
            constants: named_constants(&variant),
            bodies: uses.bodies,
            heads: uses.heads,
            subgroup,
            statistics,
            assembly,
        });
    }
    Ok(compiled)
}

/// Every variant that recordings of `plan` can launch on this device, for checks.
pub(crate) fn reachable(
    options: &VulkanOptions,
    plan: &Plan,
    device: DeviceId,
) -> Result<Vec<KernelVariant>, DeviceError> {
    let found = variants(options, plan, device, plan.options.sequences)?;
    Ok(found.keys().map(named).collect())
}

/// A variant in words.
pub(crate) fn named(variant: &Variant) -> KernelVariant {
    let constants = named_constants(variant);
    let choices = constants.iter().map(|(name, value)| format!("{name} {value}"));
    KernelVariant {
        kernel: variant.shader.name().to_string(),
        choices: choices.collect::<Vec<_>>().join(", "),
    }
}

/// Row counts of the programs that a variant occurs in.
#[derive(Default)]
struct Uses {
    bodies: Vec<u32>,
    heads: Vec<u32>,
}

/// The variants of device `device`'s part of `plan`, for steps of at most `sequences` sequences of one
/// row each and for those of several rows.
fn variants(
    options: &VulkanOptions,
    plan: &Plan,
    device: DeviceId,
    sequences: usize,
) -> Result<BTreeMap<Variant, Uses>, DeviceError> {
    let dry_run = DryRun::new(options, plan, device)?;
    let programmer = dry_run.programmer(plan, device, &options.tuning);
    let segments: Vec<usize> = programmer.segments().collect();
    let mut found: BTreeMap<Variant, Uses> = BTreeMap::new();
    let most = bucket(plan.options.max_rows).unwrap_or(plan.options.max_rows);
    for rows in BUCKETS.into_iter().filter(|&rows| rows <= most) {
        let alone = bucket(sequences).is_none_or(|most| rows <= most);
        let rows = rows as u32;
        for one_row_per_sequence in [false, true]
            .into_iter()
            .filter(|&one_row_per_sequence| if one_row_per_sequence { alone } else { rows > 1 })
        {
            for &segment in &segments {
                for dispatch in programmer.body(Body { segment, rows, one_row_per_sequence })? {
                    found.entry(dispatch.variant).or_default().bodies.push(rows);
                }
            }
        }
    }
    let mut heads: Vec<u32> =
        (1..=plan.options.max_logit_rows).map(|rows| logit_bucket(rows, plan)).collect();
    heads.dedup();
    for rows in heads {
        for &segment in &segments {
            for dispatch in programmer.head(segment, rows)? {
                found.entry(dispatch.variant).or_default().heads.push(rows);
            }
        }
    }
    if plan.head_device() == device {
        let regions = SampleRegions::dry_run();
        let vocabulary = plan.graph.vocabulary as u32;
        let sample = SampleProgram { regions, vocabulary, rows: 1, op: 0 };
        let whole = WholeRegions::dry_run();
        let stages = Stage::ALL.into_iter().flat_map(|stage| sample.whole(stage, &whole));
        for dispatch in sample.best().into_iter().chain(stages) {
            found.entry(dispatch.variant).or_default().heads.push(1);
        }
    }
    for uses in found.values_mut() {
        uses.bodies.dedup();
        uses.heads.dedup();
    }
    Ok(found)
}

/// What the driver says of a pipeline.
struct Answer {
    subgroup: u32,
    statistics: Vec<(String, u64)>,
    assembly: String,
}

/// A pipeline that computes has a single executable, the first.
fn ask(
    executable: &khr::pipeline_executable_properties::Device,
    pipeline: vk::Pipeline,
) -> Result<Answer, vk::Result> {
    let whole = vk::PipelineInfoKHR::default().pipeline(pipeline);
    let first = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
    // SAFETY: the pipeline was made with the flags that the question requires.
    let properties = unsafe { executable.get_pipeline_executable_properties(&whole)? };
    Ok(Answer {
        subgroup: properties.first().map_or(0, |properties| properties.subgroup_size),
        statistics: numbers(executable, &first)?,
        assembly: assembly(executable, &first)?,
    })
}

/// The statistics that are whole numbers.
fn numbers(
    executable: &khr::pipeline_executable_properties::Device,
    info: &vk::PipelineExecutableInfoKHR<'_>,
) -> Result<Vec<(String, u64)>, vk::Result> {
    // SAFETY: the pipeline was made with the flag that the question requires.
    let found = unsafe { executable.get_pipeline_executable_statistics(info)? };
    let statistics = found.iter().filter_map(|statistic| {
        let name = statistic.name_as_c_str().ok()?.to_string_lossy().into_owned();
        if statistic.format != vk::PipelineExecutableStatisticFormatKHR::UINT64 {
            return None;
        }
        // SAFETY: the format says which member of the union is there.
        Some((name, unsafe { statistic.value.u64 }))
    });
    Ok(statistics.collect())
}

fn assembly(
    executable: &khr::pipeline_executable_properties::Device,
    info: &vk::PipelineExecutableInfoKHR<'_>,
) -> Result<String, vk::Result> {
    // SAFETY: as above; without room for the texts this gives their sizes.
    let mut found = unsafe { executable.get_pipeline_executable_internal_representations(info) }?;
    let mut texts: Vec<Vec<u8>> = found.iter().map(|text| vec![0; text.data_size]).collect();
    for (representation, text) in found.iter_mut().zip(&mut texts) {
        representation.p_data = text.as_mut_ptr().cast();
    }
    let mut count = found.len() as u32;
    // SAFETY: each representation points at as many bytes as it says; `count` of them are there.
    let result = unsafe {
        (executable.fp().get_pipeline_executable_internal_representations_khr)(
            executable.device(),
            info,
            &mut count,
            found.as_mut_ptr(),
        )
    };
    result.result()?;
    let named = |representation: &vk::PipelineExecutableInternalRepresentationKHR<'_>| {
        representation.name_as_c_str().is_ok_and(|name| name == c"Assembly")
    };
    let text = found.iter().position(named).map(|index| &texts[index][..]).unwrap_or_default();
    Ok(String::from_utf8_lossy(text).trim_end_matches('\0').to_string())
}

/// Constants of a variant by the names that the compiled code still carries.
fn named_constants(variant: &Variant) -> Vec<(String, u32)> {
    let names = constant_names(variant.shader);
    let name = |id: &u32| names.get(id).cloned().unwrap_or_else(|| id.to_string());
    variant.constants.iter().map(|(id, value)| (name(id), *value)).collect()
}

/// Names of a shader's specialisation constants by their numbers, out of its SPIR-V.
pub(crate) fn constant_names(shader: Shader) -> HashMap<u32, String> {
    const HEADER: usize = 5;
    const OP_NAME: u32 = 5;
    const OP_DECORATE: u32 = 71;
    const SPEC_ID: u32 = 1;
    let code = shader.code().chunks_exact(4);
    let words: Vec<u32> =
        code.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
    let mut names: HashMap<u32, String> = HashMap::new();
    let mut constants = HashMap::new();
    let mut at = HEADER;
    while at < words.len() {
        // An instruction is its length and its code in one word, then its operands.
        let (length, op) = ((words[at] >> 16) as usize, words[at] & 0xffff);
        match (op, &words[at + 1..at + length]) {
            (OP_NAME, [id, text @ ..]) => {
                let bytes = text.iter().flat_map(|word| word.to_le_bytes());
                let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
                names.insert(*id, String::from_utf8_lossy(&bytes).into_owned());
            }
            // Names come before decorations; the workgroup's size has a number but no name.
            (OP_DECORATE, [id, SPEC_ID, number]) => {
                if let Some(name) = names.get(id) {
                    constants.insert(*number, name.clone());
                }
            }
            _ => {}
        }
        at += length.max(1);
    }
    constants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_keep_their_names() {
        let names = constant_names(Shader::ProjectRows);
        assert_eq!(names[&0], "WORKGROUP");
        assert!(names.values().any(|name| name == "INTEGER"), "{names:?}");
        assert!(constant_names(Shader::RopeAngles).values().all(|name| !name.is_empty()));
    }
}
