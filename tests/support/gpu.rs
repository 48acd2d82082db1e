//! The Vulkan device that tests run on.

use pianola_vulkan::{Gpu, Selection, VulkanOptions};
use std::sync::Arc;

/// Opens the device that `PIANOLA_TEST_VULKAN` names (an index or part of a name), by default
/// Mesa's software driver.
///
/// Each test opens one of its own: a queue is one thread's at a time, and tests run beside one
/// another.
pub fn open() -> Arc<Gpu> {
    let name = std::env::var("PIANOLA_TEST_VULKAN").unwrap_or_else(|_| "llvmpipe".to_string());
    let selection = match name.parse() {
        Ok(index) => Selection::Index(index),
        Err(_) => Selection::Name(name),
    };
    Gpu::open(&selection).unwrap_or_else(|error| {
        panic!(
            "no Vulkan device to test on: {error}. These tests need a loader and a driver, on \
             Debian the packages libvulkan1 and mesa-vulkan-drivers, which scripts/test installs; \
             PIANOLA_TEST_VULKAN names another device than Mesa's llvmpipe"
        )
    })
}

/// To record on `gpu` without measured choices and without limits.
#[allow(dead_code, reason = "some tests have limits")]
pub fn options(gpu: &Arc<Gpu>) -> VulkanOptions {
    VulkanOptions::new(gpu.clone())
}
