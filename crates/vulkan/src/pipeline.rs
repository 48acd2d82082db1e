//! Kernels as pipelines: SPIR-V, bindings, specialisation constants.

use crate::gpu::Gpu;
use crate::pipeline_cache::PipelineCache;
use ash::vk;
use pianola_plan::DeviceError;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A kernel's source, by the name of its file in `shaders/`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Shader {
    Embed,
    RopeAngles,
    Prologue,
    ProjectRows,
    ProjectSingle,
    ProjectSingleChained,
    ProjectTiles,
    ProjectMatrix,
    ProjectFragments,
    ProjectRotated,
    RotateWeights,
    KvWrite,
    Attention,
    AttentionSingle,
    AttentionSingleChained,
    AttentionMatrix,
    ChainProbe,
    RmsNorm,
    Rope,
    Gate,
    Add,
    SelectRows,
    SoftCap,
    SampleCut,
    SampleBest,
    SampleShape,
    SampleSelect,
    SampleWeigh,
    SampleWhole,
    Probe,
    ProbeMatrix,
    ProbeFragments,
}

impl Shader {
    pub const ALL: [Shader; 32] = [
        Shader::Embed,
        Shader::RopeAngles,
        Shader::Prologue,
        Shader::ProjectRows,
        Shader::ProjectSingle,
        Shader::ProjectSingleChained,
        Shader::ProjectTiles,
        Shader::ProjectMatrix,
        Shader::ProjectFragments,
        Shader::ProjectRotated,
        Shader::RotateWeights,
        Shader::KvWrite,
        Shader::Attention,
        Shader::AttentionSingle,
        Shader::AttentionSingleChained,
        Shader::AttentionMatrix,
        Shader::ChainProbe,
        Shader::RmsNorm,
        Shader::Rope,
        Shader::Gate,
        Shader::Add,
        Shader::SelectRows,
        Shader::SoftCap,
        Shader::SampleCut,
        Shader::SampleBest,
        Shader::SampleShape,
        Shader::SampleSelect,
        Shader::SampleWeigh,
        Shader::SampleWhole,
        Shader::Probe,
        Shader::ProbeMatrix,
        Shader::ProbeFragments,
    ];

    /// Name of the file, without its ending.
    pub fn name(self) -> &'static str {
        match self {
            Shader::Embed => "embed",
            Shader::RopeAngles => "rope_angles",
            Shader::Prologue => "prologue",
            Shader::ProjectRows => "project_rows",
            Shader::ProjectSingle => "project_single",
            Shader::ProjectSingleChained => "project_single_chained",
            Shader::ProjectTiles => "project_tiles",
            Shader::ProjectMatrix => "project_matrix",
            Shader::ProjectFragments => "project_fragments",
            Shader::ProjectRotated => "project_rotated",
            Shader::RotateWeights => "rotate_weights",
            Shader::KvWrite => "kv_write",
            Shader::Attention => "attention",
            Shader::AttentionSingle => "attention_single",
            Shader::AttentionSingleChained => "attention_single_chained",
            Shader::AttentionMatrix => "attention_matrix",
            Shader::ChainProbe => "chain_probe",
            Shader::RmsNorm => "rms_norm",
            Shader::Rope => "rope",
            Shader::Gate => "gate",
            Shader::Add => "add",
            Shader::SelectRows => "select_rows",
            Shader::SoftCap => "soft_cap",
            Shader::SampleCut => "sample_cut",
            Shader::SampleBest => "sample_best",
            Shader::SampleShape => "sample_shape",
            Shader::SampleSelect => "sample_select",
            Shader::SampleWeigh => "sample_weigh",
            Shader::SampleWhole => "sample_whole",
            Shader::Probe => "probe",
            Shader::ProbeMatrix => "probe_matrix",
            Shader::ProbeFragments => "probe_fragments",
        }
    }

    /// The same kernel with a wait of its own instead of a barrier before it (`include/chain.glsl`), if there is one.
    pub fn chained(self) -> Option<Shader> {
        match self {
            Shader::ProjectSingle => Some(Shader::ProjectSingleChained),
            Shader::AttentionSingle => Some(Shader::AttentionSingleChained),
            _ => None,
        }
    }

    /// Compiled code.
    pub fn code(self) -> &'static [u8] {
        match self {
            Shader::Embed => include_bytes!("../spirv/embed.spv"),
            Shader::RopeAngles => include_bytes!("../spirv/rope_angles.spv"),
            Shader::Prologue => include_bytes!("../spirv/prologue.spv"),
            Shader::ProjectRows => include_bytes!("../spirv/project_rows.spv"),
            Shader::ProjectSingle => include_bytes!("../spirv/project_single.spv"),
            Shader::ProjectSingleChained => {
                include_bytes!("../spirv/project_single_chained.spv")
            }
            Shader::ProjectTiles => include_bytes!("../spirv/project_tiles.spv"),
            Shader::ProjectMatrix => include_bytes!("../spirv/project_matrix.spv"),
            Shader::ProjectFragments => include_bytes!("../spirv/project_fragments.spv"),
            Shader::ProjectRotated => include_bytes!("../spirv/project_rotated.spv"),
            Shader::RotateWeights => include_bytes!("../spirv/rotate_weights.spv"),
            Shader::KvWrite => include_bytes!("../spirv/kv_write.spv"),
            Shader::Attention => include_bytes!("../spirv/attention.spv"),
            Shader::AttentionSingle => include_bytes!("../spirv/attention_single.spv"),
            Shader::AttentionSingleChained => {
                include_bytes!("../spirv/attention_single_chained.spv")
            }
            Shader::AttentionMatrix => include_bytes!("../spirv/attention_matrix.spv"),
            Shader::ChainProbe => include_bytes!("../spirv/chain_probe.spv"),
            Shader::RmsNorm => include_bytes!("../spirv/rms_norm.spv"),
            Shader::Rope => include_bytes!("../spirv/rope.spv"),
            Shader::Gate => include_bytes!("../spirv/gate.spv"),
            Shader::Add => include_bytes!("../spirv/add.spv"),
            Shader::SelectRows => include_bytes!("../spirv/select_rows.spv"),
            Shader::SoftCap => include_bytes!("../spirv/soft_cap.spv"),
            Shader::SampleCut => include_bytes!("../spirv/sample_cut.spv"),
            Shader::SampleBest => include_bytes!("../spirv/sample_best.spv"),
            Shader::SampleShape => include_bytes!("../spirv/sample_shape.spv"),
            Shader::SampleSelect => include_bytes!("../spirv/sample_select.spv"),
            Shader::SampleWeigh => include_bytes!("../spirv/sample_weigh.spv"),
            Shader::SampleWhole => include_bytes!("../spirv/sample_whole.spv"),
            Shader::Probe => include_bytes!("../spirv/probe.spv"),
            Shader::ProbeMatrix => include_bytes!("../spirv/probe_matrix.spv"),
            Shader::ProbeFragments => include_bytes!("../spirv/probe_fragments.spv"),
        }
    }

    /// Buffers in each binding of set 1, in order.
    pub fn bindings(self) -> &'static [u32] {
        match self {
            Shader::Embed | Shader::RotateWeights => &[3, 3, 3, 1],
            Shader::RopeAngles => &[1, 1],
            Shader::Prologue => &[1; 6],
            Shader::ProjectRows => &[3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
            Shader::ProjectSingle => &[3, 3, 3, 1, 1, 1, 1, 1, 1],
            Shader::ProjectSingleChained => &[3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1],
            Shader::ProjectTiles | Shader::ProjectMatrix | Shader::ProjectRotated => {
                &[3, 3, 3, 1, 1, 1, 1]
            }
            Shader::ProjectFragments => &[3, 3, 3, 1, 1, 1, 1, 1, 1],
            Shader::KvWrite => &[1; 6],
            Shader::Attention | Shader::AttentionSingle => &[1; 11],
            Shader::AttentionSingleChained => &[1; 13],
            Shader::AttentionMatrix => &[1; 9],
            Shader::ChainProbe => &[1; 2],
            Shader::RmsNorm | Shader::Rope | Shader::Gate | Shader::Add => &[1; 3],
            Shader::SelectRows | Shader::SoftCap => &[1; 2],
            Shader::SampleCut | Shader::SampleBest => &[1; 4],
            Shader::SampleShape
            | Shader::SampleSelect
            | Shader::SampleWeigh
            | Shader::SampleWhole => &[1; 11],
            Shader::Probe => &[1, 1],
            Shader::ProbeMatrix | Shader::ProbeFragments => &[1],
        }
    }
}

/// Bytes of push constants that every device has.
pub(crate) const PUSH_BYTES: u32 = 128;

/// A kernel with its constants: what one pipeline is compiled from.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Variant {
    pub shader: Shader,
    /// Constant, by its number in [`crate::constants`], and value. A program writes them always in
    /// the same order, so that equal kernels are one variant.
    pub constants: Vec<(u32, u32)>,
}

impl Variant {
    /// The kernel with a fault that tests plant in it. Those without such a constant ignore it.
    fn with_fault(&self, fault: Option<pianola_plan::Fault>) -> Variant {
        let mut planted = self.clone();
        let constant = fault.map(|fault| (crate::constants::fault::FAULT, fault as u32));
        planted.constants.extend(constant);
        planted
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.shader.name())?;
        for (id, value) in &self.constants {
            write!(f, " {id}={value}")?;
        }
        Ok(())
    }
}

struct Layout {
    module: vk::ShaderModule,
    set: vk::DescriptorSetLayout,
    pipeline: vk::PipelineLayout,
}

/// Pipelines of one device, each compiled once.
pub(crate) struct Pipelines {
    gpu: Arc<Gpu>,
    /// Set 0: the step and the page tables.
    pub step_set: vk::DescriptorSetLayout,
    layouts: HashMap<Shader, Layout>,
    made: HashMap<Variant, vk::Pipeline>,
    cache: PipelineCache,
    /// Pipelines made when the cache was last saved.
    saved: usize,
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        if self.gpu.is_hung() {
            return;
        }
        let raw = &self.gpu.raw;
        // SAFETY: the recording waited for its submissions before it drops its pipelines.
        unsafe {
            self.made.values().for_each(|&pipeline| raw.destroy_pipeline(pipeline, None));
            for layout in self.layouts.values() {
                raw.destroy_pipeline_layout(layout.pipeline, None);
                raw.destroy_descriptor_set_layout(layout.set, None);
                raw.destroy_shader_module(layout.module, None);
            }
            raw.destroy_descriptor_set_layout(self.step_set, None);
        }
    }
}

impl Pipelines {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Pipelines, DeviceError> {
        Pipelines::kept_at(gpu, None)
    }

    /// Pipelines that a file keeps between starts, if one is given.
    pub fn kept_at(gpu: &Arc<Gpu>, file: Option<PathBuf>) -> Result<Pipelines, DeviceError> {
        let step_set = set_layout(gpu, &[1, 1])?;
        let cache = PipelineCache::new(gpu, file);
        let (layouts, made) = (HashMap::new(), HashMap::new());
        Ok(Pipelines { gpu: gpu.clone(), step_set, layouts, made, cache, saved: 0 })
    }

    fn layout(&mut self, shader: Shader) -> Result<&Layout, DeviceError> {
        if !self.layouts.contains_key(&shader) {
            let gpu = &self.gpu;
            let words: Vec<u32> = shader
                .code()
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect();
            let failure =
                |error| gpu.failure(&format!("loading the kernel {}", shader.name()), error);
            let set = set_layout(gpu, shader.bindings())?;
            let sets = [self.step_set, set];
            let push = [vk::PushConstantRange::default()
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
                .size(PUSH_BYTES)];
            let create = vk::PipelineLayoutCreateInfo::default()
                .set_layouts(&sets)
                .push_constant_ranges(&push);
            // SAFETY: a live device; the code was compiled from shaders/ and is whole words.
            let layout = unsafe {
                let module = gpu
                    .raw
                    .create_shader_module(&vk::ShaderModuleCreateInfo::default().code(&words), None)
                    .map_err(failure)?;
                let pipeline = gpu.raw.create_pipeline_layout(&create, None).map_err(failure)?;
                Layout { module, set, pipeline }
            };
            self.layouts.insert(shader, layout);
        }
        Ok(&self.layouts[&shader])
    }

    /// Layouts of set 1 and of the pipeline.
    pub fn layouts(
        &mut self,
        shader: Shader,
    ) -> Result<(vk::DescriptorSetLayout, vk::PipelineLayout), DeviceError> {
        self.layout(shader).map(|layout| (layout.set, layout.pipeline))
    }

    /// The pipeline of a variant, compiled at its first use.
    pub fn pipeline(&mut self, variant: &Variant) -> Result<vk::Pipeline, DeviceError> {
        let variant = &variant.with_fault(self.gpu.fault());
        if let Some(&pipeline) = self.made.get(variant) {
            return Ok(pipeline);
        }
        let pipeline = self.compile(variant, vk::PipelineCreateFlags::empty())?;
        self.made.insert(variant.clone(), pipeline);
        Ok(pipeline)
    }

    /// Keeps what was compiled since the last time for later starts. Not left to the end: a server is
    /// often killed.
    pub fn save(&mut self) {
        if self.made.len() > self.saved {
            self.saved = self.made.len();
            self.cache.save();
        }
    }

    pub fn compile(
        &mut self,
        variant: &Variant,
        flags: vk::PipelineCreateFlags,
    ) -> Result<vk::Pipeline, DeviceError> {
        let subgroup = self.gpu.subgroup();
        let (_, least, most) = self.gpu.description().subgroup;
        let &Layout { module, pipeline: layout, .. } = self.layout(variant.shader)?;
        let values: Vec<u32> = variant.constants.iter().map(|constant| constant.1).collect();
        let entries: Vec<vk::SpecializationMapEntry> = variant
            .constants
            .iter()
            .enumerate()
            .map(|(index, &(id, _))| vk::SpecializationMapEntry {
                constant_id: id,
                offset: 4 * index as u32,
                size: 4,
            })
            .collect();
        let data: &[u8] = bytemuck::cast_slice(&values);
        let special = vk::SpecializationInfo::default().map_entries(&entries).data(data);
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
            .required_subgroup_size(subgroup);
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS)
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&special);
        if least != most {
            stage = stage.push_next(&mut size);
        }
        let create =
            [vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(layout)];
        let gpu = &self.gpu;
        // SAFETY: a live device; everything the structures point at lives through the call.
        let made = unsafe { gpu.raw.create_compute_pipelines(self.cache.raw, &create, None) };
        made.map(|list| list[0])
            .map_err(|(_, error)| gpu.failure(&format!("compiling the kernel {variant}"), error))
    }
}

fn set_layout(gpu: &Gpu, counts: &[u32]) -> Result<vk::DescriptorSetLayout, DeviceError> {
    let bindings: Vec<vk::DescriptorSetLayoutBinding<'_>> = counts
        .iter()
        .enumerate()
        .map(|(index, &count)| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(index as u32)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(count)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        })
        .collect();
    let create = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    // SAFETY: a live device.
    unsafe { gpu.raw.create_descriptor_set_layout(&create, None) }
        .map_err(|error| gpu.failure("making a descriptor layout", error))
}
