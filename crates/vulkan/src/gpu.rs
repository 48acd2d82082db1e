//! A logical device: its queue, its features, its waits.

use crate::describe::{GpuDescription, GpuKind, Selection, describe, select};
use crate::instance::Instance;
use crate::measure;
use crate::policy::fragments::Fragments;
use crate::shared_memory::{Sharing, SharingFeatures};
use ash::{ext, khr, vk};
use pianola_plan::DeviceError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A Vulkan device opened for computing.
pub struct Gpu {
    pub(crate) instance: Arc<Instance>,
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) raw: ash::Device,
    queue: Mutex<vk::Queue>,
    pub(crate) family: u32,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    pub(crate) executable: Option<khr::pipeline_executable_properties::Device>,
    pub(crate) budgets: bool,
    pub(crate) sharing: Sharing,
    /// What it lacks for chained kernels to wait for one another.
    pub(crate) exchange_lacks: Vec<&'static str>,
    description: GpuDescription,
    fragments: OnceLock<Fragments>,
    lost: AtomicBool,
    /// A wait ran out of time: the device may still run, so nothing that it uses may be freed.
    hung: AtomicBool,
    /// Planted in the kernels that are recorded from now on.
    fault: Mutex<Option<pianola_plan::Fault>>,
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.is_hung() {
            return;
        }
        // SAFETY: whatever was made from the device holds it alive, so nothing is left, and all
        // that was submitted was waited for.
        unsafe { self.raw.destroy_device(None) };
    }
}

/// What a device may have and kernels can do without.
struct Optional {
    /// Cooperative matrices.
    matrices: bool,
    /// Integers of 8 bits.
    bytes: bool,
    /// Statistics of compiled pipelines.
    executable: bool,
    /// What is left of each heap.
    budgets: bool,
    /// Memory that other drivers use, too.
    sharing: SharingFeatures,
    /// What it lacks of what chained kernels need to wait for one another.
    exchange: Vec<&'static str>,
}

/// The optional features of a device. An extension may be listed without the feature.
fn optional(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    has: &dyn Fn(&str) -> bool,
) -> Optional {
    let mut cooperative = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
    let mut twelve = vk::PhysicalDeviceVulkan12Features::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut twelve);
    let matrices = has("VK_KHR_cooperative_matrix");
    let executable = has("VK_KHR_pipeline_executable_properties");
    if matrices {
        features = features.push_next(&mut cooperative);
    }
    if executable {
        features = features.push_next(&mut statistics);
    }
    // SAFETY: a 1.3 device of this instance; structures are chained only where it knows them.
    unsafe { instance.raw.get_physical_device_features2(physical, &mut features) };
    let halves = twelve.shader_float16 != 0 && twelve.vulkan_memory_model != 0;
    let device_scope =
        twelve.vulkan_memory_model != 0 && twelve.vulkan_memory_model_device_scope != 0;
    Optional {
        exchange: match device_scope {
            true => vec![],
            false => vec!["the memory model with device scope (vulkanMemoryModelDeviceScope)"],
        },
        matrices: matrices && cooperative.cooperative_matrix != 0 && halves,
        bytes: twelve.shader_int8 != 0,
        executable: executable && statistics.pipeline_executable_info != 0,
        budgets: has("VK_EXT_memory_budget"),
        sharing: SharingFeatures::of(has),
    }
}

/// The fault that the environment asks for, in a build that heeds it.
fn planted() -> Result<Option<pianola_plan::Fault>, DeviceError> {
    match cfg!(feature = "test-hooks") {
        true => pianola_plan::Fault::from_environment(),
        false => Ok(None),
    }
}

/// The queue family to submit to, if one computes.
fn queue_family(instance: &Instance, physical: vk::PhysicalDevice) -> Option<u32> {
    // SAFETY: a device of this instance.
    let families = unsafe { instance.raw.get_physical_device_queue_family_properties(physical) };
    let computes =
        |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
    // A queue that only computes leaves the one that draws the desktop alone.
    let alone = |family: &vk::QueueFamilyProperties| {
        computes(family)
            && !family.queue_flags.contains(vk::QueueFlags::GRAPHICS)
            && family.timestamp_valid_bits > 0
    };
    let family = families.iter().position(alone).or_else(|| families.iter().position(computes));
    family.map(|family| family as u32)
}

/// Creates the device with the features that kernels need, and the optional ones it has.
fn create(
    instance: &Instance,
    physical: vk::PhysicalDevice,
    family: u32,
    optional: &Optional,
) -> Result<ash::Device, vk::Result> {
    let &Optional { matrices, bytes, executable, budgets, sharing, .. } = optional;
    let exchange = optional.exchange.is_empty();
    let mut names = Vec::new();
    if matrices {
        names.push(khr::cooperative_matrix::NAME.as_ptr());
    }
    if executable {
        names.push(khr::pipeline_executable_properties::NAME.as_ptr());
    }
    if budgets {
        names.push(ext::memory_budget::NAME.as_ptr());
    }
    names.extend(sharing.names());
    let core = vk::PhysicalDeviceFeatures::default()
        .shader_int16(true)
        .shader_storage_buffer_array_dynamic_indexing(true);
    let mut eleven =
        vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
    let mut twelve = vk::PhysicalDeviceVulkan12Features::default()
        .shader_float16(matrices)
        .shader_int8(matrices && bytes)
        .vulkan_memory_model(matrices || exchange)
        .vulkan_memory_model_device_scope(matrices || exchange);
    let mut thirteen = vk::PhysicalDeviceVulkan13Features::default()
        .shader_integer_dot_product(true)
        .subgroup_size_control(true)
        .compute_full_subgroups(true)
        .synchronization2(true)
        .maintenance4(true);
    let mut cooperative =
        vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
        .pipeline_executable_info(true);
    let mut features = vk::PhysicalDeviceFeatures2::default()
        .features(core)
        .push_next(&mut eleven)
        .push_next(&mut twelve)
        .push_next(&mut thirteen);
    if matrices {
        features = features.push_next(&mut cooperative);
    }
    if executable {
        features = features.push_next(&mut statistics);
    }
    let priorities = [1.0];
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(family)
        .queue_priorities(&priorities)];
    let create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&names)
        .push_next(&mut features);
    // SAFETY: features and extensions were found on this device; the chain lives through the call.
    unsafe { instance.raw.create_device(physical, &create, None) }
}

impl Gpu {
    /// Opens the device that `selection` names.
    pub fn open(selection: &Selection) -> Result<Arc<Gpu>, DeviceError> {
        let instance = Instance::load()?;
        let devices = describe(&instance)?;
        let chosen = select(&devices, selection)?.clone();
        Gpu::open_described(instance, chosen)
    }

    /// Opens a device that was described before.
    pub fn open_described(
        instance: Arc<Instance>,
        mut description: GpuDescription,
    ) -> Result<Arc<Gpu>, DeviceError> {
        let list = instance.physical_devices()?;
        let physical = *list.get(description.index).ok_or_else(|| {
            DeviceError::Unsupported(format!("{} is not there any more", description.name))
        })?;
        let extensions = instance.extensions(physical);
        let has = |name: &str| extensions.iter().any(|extension| extension == name);
        // SAFETY: a device of this instance.
        let memory = unsafe { instance.raw.get_physical_device_memory_properties(physical) };
        let family = queue_family(&instance, physical).ok_or_else(|| {
            DeviceError::Unsupported(format!("{} has no queue that computes", description.name))
        })?;
        let mut optional = optional(&instance, physical, &has);
        optional.matrices &= !description.matrices.is_empty();
        // Kernels need the plain type, too.
        description.matrices.retain(|shape| optional.bytes || shape.types[0] != "i8");
        let raw = create(&instance, physical, family, &optional).map_err(|error| {
            DeviceError::Unsupported(format!("{} cannot be opened: {error}", description.name))
        })?;
        // SAFETY: the device was made with one queue of this family.
        let queue = unsafe { raw.get_device_queue(family, 0) };
        let executable = optional
            .executable
            .then(|| khr::pipeline_executable_properties::Device::new(&instance.raw, &raw));
        let sharing = optional.sharing.load(&instance.raw, &raw);
        let gpu = Arc::new(Gpu {
            instance,
            physical,
            raw,
            queue: Mutex::new(queue),
            family,
            memory,
            executable,
            budgets: optional.budgets,
            sharing,
            exchange_lacks: optional.exchange,
            description,
            fragments: OnceLock::new(),
            lost: AtomicBool::new(false),
            hung: AtomicBool::new(false),
            fault: Mutex::new(planted()?),
        });
        if let Some(found) = measure::fragments(&gpu)? {
            let _ = gpu.fragments.set(found);
        }
        Ok(gpu)
    }

    /// What the device is.
    pub fn description(&self) -> &GpuDescription {
        &self.description
    }

    /// Whether the device was lost: nothing made from it works any more.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether the device may still run what was submitted to it. What it uses must then not be
    /// freed, not even on drop.
    pub(crate) fn is_hung(&self) -> bool {
        self.hung.load(Ordering::Relaxed)
    }

    /// Invocations of the kernels' subgroups: 32 where the device lets us choose.
    pub(crate) fn subgroup(&self) -> u32 {
        self.description.kernel_subgroup()
    }

    /// How matrices lie in the registers of a subgroup, where kernels can make use of it.
    pub(crate) fn fragments(&self) -> Option<Fragments> {
        self.fragments.get().copied()
    }

    /// A failed call as an error that names it.
    pub(crate) fn failure(&self, what: &str, result: vk::Result) -> DeviceError {
        match result {
            vk::Result::ERROR_DEVICE_LOST => {
                self.lost.store(true, Ordering::Relaxed);
                DeviceError::Lost {
                    device: self.description.name.clone(),
                    during: what.to_string(),
                }
            }
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                DeviceError::OutOfMemory {
                    device: self.description.name.clone(),
                    what: what.to_string(),
                    bytes: 0,
                }
            }
            other => DeviceError::Failed {
                device: self.description.name.clone(),
                what: what.to_string(),
                reason: other.to_string(),
            },
        }
    }

    /// Submits work to the queue.
    pub(crate) fn submit(
        &self,
        submit: &[vk::SubmitInfo2<'_>],
        fence: vk::Fence,
        what: &str,
    ) -> Result<(), DeviceError> {
        if self.is_lost() {
            return Err(self.failure(what, vk::Result::ERROR_DEVICE_LOST));
        }
        // A queue is used by one thread at a time, and a device may serve several recordings.
        let queue = self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // SAFETY: command buffers of this device that are recorded; the fence is not in flight.
        unsafe { self.raw.queue_submit2(*queue, submit, fence) }
            .map_err(|error| self.failure(what, error))
    }

    /// Makes every later call fail as on a lost device, for tests of recovery.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Plants a fault, or none, in the kernels that are recorded from now on, for tests of the checks.
    #[doc(hidden)]
    pub fn set_fault(&self, fault: Option<pianola_plan::Fault>) {
        *self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = fault;
    }

    pub(crate) fn fault(&self) -> Option<pianola_plan::Fault> {
        *self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether a fence is signalled within `limit`. Unlike [`Gpu::wait`], nothing follows if not.
    pub(crate) fn is_signalled_within(
        &self,
        fence: vk::Fence,
        limit: Duration,
        what: &str,
    ) -> Result<bool, DeviceError> {
        if self.is_lost() {
            return Err(self.failure(what, vk::Result::ERROR_DEVICE_LOST));
        }
        // SAFETY: a fence of this device.
        match unsafe { self.raw.wait_for_fences(&[fence], true, limit.as_nanos() as u64) } {
            Ok(()) => Ok(true),
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(error) => Err(self.failure(what, error)),
        }
    }

    /// Waits for a fence, at most for `limit`.
    pub(crate) fn wait(
        &self,
        fence: vk::Fence,
        limit: Duration,
        what: &str,
    ) -> Result<(), DeviceError> {
        if self.is_lost() {
            return Err(self.failure(what, vk::Result::ERROR_DEVICE_LOST));
        }
        // A software driver compiles kernels meanwhile, and shares the processor with others.
        let slow = self.description.kind == GpuKind::Software;
        let limit = if slow { 10 * limit } else { limit };
        // SAFETY: a fence of this device.
        let result = unsafe { self.raw.wait_for_fences(&[fence], true, limit.as_nanos() as u64) };
        result.map_err(|error| match error {
            vk::Result::TIMEOUT => self.hang(what, limit),
            error => self.failure(what, error),
        })
    }

    /// What the device was given has not finished: the memory it uses can neither be reused nor freed.
    fn hang(&self, during: &str, limit: Duration) -> DeviceError {
        self.lost.store(true, Ordering::Relaxed);
        self.hung.store(true, Ordering::Relaxed);
        DeviceError::Timeout {
            device: self.description.name.clone(),
            during: during.to_string(),
            seconds: limit.as_secs(),
        }
    }
}
