//! What a Vulkan device is: names, heaps, limits, and what it lacks.

use crate::instance::{API, Instance};
use ash::{khr, vk};
use pianola_plan::DeviceError;
use std::ffi::CStr;

/// A heap of memory and what is left of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heap {
    /// Bytes in all.
    pub size: u64,
    /// Bytes this process may use by the driver's word; the size where it does not say.
    pub budget: u64,
    /// Bytes this process uses already.
    pub used: u64,
    /// Whether it is the device's own memory.
    pub device_local: bool,
}

/// A shape that cooperative matrices come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatrixShape {
    /// Rows, columns and depth.
    pub size: [u32; 3],
    /// Component types of A and B, and of the sum.
    pub types: [&'static str; 2],
}

/// Kinds of devices, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GpuKind {
    /// A card with memory of its own.
    Discrete,
    /// Part of the processor, sharing its memory.
    Integrated,
    /// A virtual share of a card.
    Virtual,
    /// A driver that computes on the processor.
    Software,
}

impl std::fmt::Display for GpuKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            GpuKind::Discrete => "discrete",
            GpuKind::Integrated => "integrated",
            GpuKind::Virtual => "virtual",
            GpuKind::Software => "software",
        })
    }
}

/// A Vulkan device as `devices` prints it.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuDescription {
    /// Place in the driver's list: `vulkan:0` is the first.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Driver and its version.
    pub driver: String,
    /// Kind.
    pub kind: GpuKind,
    /// Vulkan version.
    pub api: (u32, u32, u32),
    /// Heaps of memory.
    pub heaps: Vec<Heap>,
    /// Default, smallest and largest subgroup.
    pub subgroup: (u32, u32, u32),
    /// Shapes of cooperative matrices.
    pub matrices: Vec<MatrixShape>,
    /// Whether packed 8-bit dot products are instructions of the device.
    pub integer_dot: bool,
    /// Bytes of memory that a workgroup shares.
    pub shared_memory: u32,
    /// Units that run workgroups (NVIDIA's multiprocessors); 0 where the driver does not count them.
    pub units: u32,
    /// Largest binding of a buffer, in bytes.
    pub largest_binding: u64,
    /// Largest allocation, in bytes.
    pub largest_allocation: u64,
    /// Nanoseconds of a timestamp's tick; none where queues keep no time.
    pub tick: Option<f32>,
    /// What the kernels need and the device lacks.
    pub missing: Vec<&'static str>,
}

impl GpuDescription {
    /// Invocations of the kernels' subgroups: 32 where the device lets us choose.
    pub(crate) fn kernel_subgroup(&self) -> u32 {
        let (default, least, most) = self.subgroup;
        if (least..=most).contains(&32) { 32 } else { default }
    }

    /// Most bytes of a slice of a matrix.
    pub(crate) fn slice_limit(&self) -> u64 {
        self.largest_binding.min(self.largest_allocation)
    }

    /// Whether it has memory of its own that is not the processor's.
    pub(crate) fn is_card(&self) -> bool {
        matches!(self.kind, GpuKind::Discrete | GpuKind::Virtual)
    }
}

/// Names the device a user asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selection {
    /// The best that is no software driver.
    Best,
    /// By place in the list.
    Index(usize),
    /// By a part of the name, in any case.
    Name(String),
}

/// All Vulkan devices of the machine.
pub fn describe(instance: &Instance) -> Result<Vec<GpuDescription>, DeviceError> {
    let devices = instance.physical_devices()?;
    Ok(devices.iter().enumerate().map(|(index, &raw)| describe_one(instance, raw, index)).collect())
}

/// Picks a device, or says why none fits.
pub fn select<'a>(
    devices: &'a [GpuDescription],
    selection: &Selection,
) -> Result<&'a GpuDescription, DeviceError> {
    let names = || {
        let name = |device: &GpuDescription| format!("vulkan:{} {}", device.index, device.name);
        match devices.len() {
            0 => "none".to_string(),
            _ => devices.iter().map(name).collect::<Vec<_>>().join(", "),
        }
    };
    let usable = |device: &&GpuDescription| device.missing.is_empty();
    let found = match selection {
        Selection::Best => devices
            .iter()
            .filter(usable)
            .filter(|device| device.kind != GpuKind::Software)
            .min_by_key(|device| device.kind),
        Selection::Index(index) => devices.get(*index),
        Selection::Name(name) => {
            let name = name.to_lowercase();
            devices.iter().find(|device| device.name.to_lowercase().contains(&name))
        }
    };
    let device = found.ok_or_else(|| {
        let asked = match selection {
            Selection::Best => {
                "no Vulkan device fit to compute (software drivers are used only when named)"
                    .to_string()
            }
            Selection::Index(index) => format!("no Vulkan device of index {index}"),
            Selection::Name(name) => format!("no Vulkan device whose name contains '{name}'"),
        };
        DeviceError::Unsupported(format!("there is {asked}; Vulkan devices here: {}", names()))
    })?;
    if !device.missing.is_empty() {
        return Err(DeviceError::Unsupported(format!(
            "{} ({}) lacks {}; update its driver or use another device",
            device.name,
            device.driver,
            device.missing.join(", ")
        )));
    }
    Ok(device)
}

fn text(bytes: &CStr) -> String {
    bytes.to_string_lossy().into_owned()
}

fn describe_one(instance: &Instance, raw: vk::PhysicalDevice, index: usize) -> GpuDescription {
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
    let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let mut dots = vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
    let mut third = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut multiprocessors = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut properties = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut driver)
        .push_next(&mut subgroup)
        .push_next(&mut third);
    // SAFETY: a live instance and its device; the chain lives through the call.
    let version = unsafe { instance.raw.get_physical_device_properties(raw) }.api_version;
    let recent = version >= API;
    if recent {
        properties = properties.push_next(&mut sizes).push_next(&mut dots);
    }
    let extensions = instance.extensions(raw);
    if extensions.iter().any(|name| name == "VK_NV_shader_sm_builtins") {
        properties = properties.push_next(&mut multiprocessors);
    }
    // SAFETY: as above; structures are chained only where the device knows them.
    unsafe { instance.raw.get_physical_device_properties2(raw, &mut properties) };
    let core = properties.properties;
    let missing = if recent { missing_features(instance, raw) } else { vec!["Vulkan 1.3"] };
    let name = core.device_name_as_c_str().map_or_else(|_| String::new(), text);
    let words = [driver.driver_name_as_c_str(), driver.driver_info_as_c_str()];
    let words: Vec<String> = words.into_iter().flatten().map(text).collect();
    GpuDescription {
        index,
        name,
        driver: words.join(" ").trim().to_string(),
        kind: match core.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => GpuKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => GpuKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => GpuKind::Virtual,
            _ => GpuKind::Software,
        },
        api: (
            vk::api_version_major(version),
            vk::api_version_minor(version),
            vk::api_version_patch(version),
        ),
        heaps: heaps(instance, raw, &extensions),
        subgroup: (
            subgroup.subgroup_size,
            sizes.min_subgroup_size.max(1),
            sizes.max_subgroup_size.max(1),
        ),
        matrices: matrices(instance, raw, &extensions),
        integer_dot: dots.integer_dot_product4x8_bit_packed_signed_accelerated != 0,
        shared_memory: core.limits.max_compute_shared_memory_size,
        units: multiprocessors.shader_sm_count,
        largest_binding: u64::from(core.limits.max_storage_buffer_range),
        largest_allocation: third.max_memory_allocation_size,
        tick: (core.limits.timestamp_compute_and_graphics != 0)
            .then_some(core.limits.timestamp_period),
        missing,
    }
}

/// Heaps, with the driver's budgets where it reports them.
pub(crate) fn heaps(
    instance: &Instance,
    raw: vk::PhysicalDevice,
    extensions: &[String],
) -> Vec<Heap> {
    let tells = extensions.iter().any(|name| name == "VK_EXT_memory_budget");
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    // SAFETY: a device of this instance.
    let plain = unsafe { instance.raw.get_physical_device_memory_properties(raw) };
    // A device without memory is a compiler in disguise; asking it for budgets ends badly.
    if tells && plain.memory_heap_count > 0 {
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the chain lives through the call.
        unsafe { instance.raw.get_physical_device_memory_properties2(raw, &mut memory) };
    }
    let heap = |(index, heap): (usize, &vk::MemoryHeap)| {
        let known = tells && budget.heap_budget[index] > 0;
        Heap {
            size: heap.size,
            budget: if known { budget.heap_budget[index] } else { heap.size },
            used: if known { budget.heap_usage[index] } else { 0 },
            device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
        }
    };
    plain.memory_heaps_as_slice().iter().enumerate().map(heap).collect()
}

fn missing_features(instance: &Instance, raw: vk::PhysicalDevice) -> Vec<&'static str> {
    let mut eleven = vk::PhysicalDeviceVulkan11Features::default();
    let mut thirteen = vk::PhysicalDeviceVulkan13Features::default();
    let mut features =
        vk::PhysicalDeviceFeatures2::default().push_next(&mut eleven).push_next(&mut thirteen);
    // SAFETY: a 1.3 device of this instance; the chain lives through the call.
    unsafe { instance.raw.get_physical_device_features2(raw, &mut features) };
    let core = features.features;
    let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut subgroup);
    // SAFETY: as above.
    unsafe { instance.raw.get_physical_device_properties2(raw, &mut properties) };
    let limits = properties.properties.limits;
    let operations = vk::SubgroupFeatureFlags::ARITHMETIC | vk::SubgroupFeatureFlags::SHUFFLE;
    let needs = [
        (core.shader_int16 != 0, "16-bit integers (shaderInt16)"),
        (
            core.shader_storage_buffer_array_dynamic_indexing != 0,
            "arrays of buffers (shaderStorageBufferArrayDynamicIndexing)",
        ),
        (eleven.storage_buffer16_bit_access != 0, "16-bit storage (storageBuffer16BitAccess)"),
        (
            thirteen.shader_integer_dot_product != 0,
            "integer dot products (shaderIntegerDotProduct)",
        ),
        (thirteen.subgroup_size_control != 0, "chosen subgroup sizes (subgroupSizeControl)"),
        (thirteen.compute_full_subgroups != 0, "full subgroups (computeFullSubgroups)"),
        (thirteen.synchronization2 != 0, "synchronization2"),
        (thirteen.maintenance4 != 0, "maintenance4"),
        (subgroup.supported_operations.contains(operations), "subgroup arithmetic and shuffles"),
        ((8..=64).contains(&subgroup.subgroup_size), "subgroups of 8 to 64 invocations"),
        (limits.max_compute_shared_memory_size >= 32 << 10, "32 KiB of shared memory"),
        (limits.max_compute_work_group_invocations >= 512, "workgroups of 512 invocations"),
        (limits.max_per_stage_descriptor_storage_buffers >= 24, "24 storage buffers a kernel"),
    ];
    needs.into_iter().filter(|(has, _)| !has).map(|(_, name)| name).collect()
}

fn matrices(
    instance: &Instance,
    raw: vk::PhysicalDevice,
    extensions: &[String],
) -> Vec<MatrixShape> {
    if !extensions.iter().any(|name| name == "VK_KHR_cooperative_matrix") {
        return Vec::new();
    }
    let loader = khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device has the extension.
    let found = unsafe { loader.get_physical_device_cooperative_matrix_properties(raw) };
    let name = |ty: vk::ComponentTypeKHR| match ty {
        vk::ComponentTypeKHR::FLOAT16 => "f16",
        vk::ComponentTypeKHR::FLOAT32 => "f32",
        vk::ComponentTypeKHR::FLOAT64 => "f64",
        vk::ComponentTypeKHR::SINT8 => "i8",
        vk::ComponentTypeKHR::UINT8 => "u8",
        vk::ComponentTypeKHR::SINT32 => "i32",
        vk::ComponentTypeKHR::UINT32 => "u32",
        _ => "other",
    };
    let mut shapes: Vec<MatrixShape> = Vec::new();
    for shape in found.unwrap_or_default() {
        if shape.scope != vk::ScopeKHR::SUBGROUP || shape.a_type != shape.b_type {
            continue;
        }
        let shape = MatrixShape {
            size: [shape.m_size, shape.n_size, shape.k_size],
            types: [name(shape.a_type), name(shape.result_type)],
        };
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: usize, name: &str, kind: GpuKind) -> GpuDescription {
        GpuDescription {
            index,
            name: name.to_string(),
            driver: String::new(),
            kind,
            api: (1, 3, 0),
            heaps: vec![],
            subgroup: (32, 32, 32),
            matrices: vec![],
            integer_dot: true,
            shared_memory: 1 << 15,
            units: 0,
            largest_binding: 1 << 27,
            largest_allocation: 1 << 30,
            tick: None,
            missing: vec![],
        }
    }

    #[test]
    fn the_best_device_is_discrete_then_integrated_and_never_software() {
        let mut list = vec![
            device(0, "llvmpipe", GpuKind::Software),
            device(1, "Radeon 780M", GpuKind::Integrated),
            device(2, "RTX", GpuKind::Discrete),
        ];
        assert_eq!(select(&list, &Selection::Best).unwrap().index, 2);
        list[2].missing.push("something");
        assert_eq!(select(&list, &Selection::Best).unwrap().index, 1);
        assert!(select(&list, &Selection::Index(2)).unwrap_err().to_string().contains("something"));
        assert_eq!(select(&list, &Selection::Name("780m".into())).unwrap().index, 1);
        assert!(select(&list[..1], &Selection::Best).is_err());
        let error = select(&list, &Selection::Index(7)).unwrap_err().to_string();
        assert!(error.contains("index 7") && error.contains("vulkan:1 Radeon 780M"), "{error}");
    }
}
