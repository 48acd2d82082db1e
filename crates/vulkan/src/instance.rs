//! The Vulkan loader, and the physical devices behind it.

use ash::vk;
use pianola_plan::DeviceError;
use std::ffi::CStr;
use std::sync::Arc;

/// The oldest API that has what the kernels need: integer dot products, chosen subgroup sizes.
pub(crate) const API: u32 = vk::API_VERSION_1_3;

/// A loaded Vulkan instance.
pub struct Instance {
    // The library must outlive everything loaded from it.
    pub(crate) entry: ash::Entry,
    pub(crate) raw: ash::Instance,
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: devices hold the instance alive, so none is left.
        unsafe { self.raw.destroy_instance(None) };
    }
}

impl Instance {
    /// Loads the Vulkan loader of this machine.
    pub fn load() -> Result<Arc<Instance>, DeviceError> {
        let entry = load_entry()?;
        let application = vk::ApplicationInfo::default()
            .application_name(c"pianola")
            .engine_name(c"pianola")
            .api_version(API);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structures live through the call.
        let raw = unsafe { entry.create_instance(&create, None) }.map_err(|error| {
            DeviceError::Unsupported(format!(
                "the Vulkan loader found no driver it can use ({error}); install the GPU's driver (Debian: mesa-vulkan-drivers), or check VK_DRIVER_FILES if it is set"
            ))
        })?;
        Ok(Arc::new(Instance { entry, raw }))
    }

    /// The version of Vulkan that the loader of this machine has, whether or not there is a driver.
    pub fn loader_version() -> Result<(u32, u32, u32), DeviceError> {
        let entry = load_entry()?;
        // SAFETY: the library is loaded.
        let version = unsafe { entry.try_enumerate_instance_version() };
        // A loader without this function is of Vulkan 1.0.
        let version = version.ok().flatten().unwrap_or(vk::API_VERSION_1_0);
        Ok((
            vk::api_version_major(version),
            vk::api_version_minor(version),
            vk::api_version_patch(version),
        ))
    }

    /// Physical devices in the driver's order.
    pub(crate) fn physical_devices(&self) -> Result<Vec<vk::PhysicalDevice>, DeviceError> {
        // SAFETY: a live instance.
        unsafe { self.raw.enumerate_physical_devices() }.map_err(|error| {
            DeviceError::Unsupported(format!("Vulkan devices cannot be listed: {error}"))
        })
    }

    /// Names of a device's extensions.
    pub(crate) fn extensions(&self, physical: vk::PhysicalDevice) -> Vec<String> {
        // SAFETY: a device of this instance.
        let found = unsafe { self.raw.enumerate_device_extension_properties(physical) };
        found
            .unwrap_or_default()
            .iter()
            .filter_map(|extension| extension.extension_name_as_c_str().ok())
            .map(|name: &CStr| name.to_string_lossy().into_owned())
            .collect()
    }
}

fn load_entry() -> Result<ash::Entry, DeviceError> {
    // SAFETY: the loader is a system library; running its initialisers is what loading means.
    unsafe { ash::Entry::load() }.map_err(|error| {
        DeviceError::Unsupported(format!(
            "there is no Vulkan loader on this machine ({error}); install libvulkan1 (Debian) or vulkan-loader, and the driver of the GPU"
        ))
    })
}
