//! What the tests share: a strict stand-in for the driver, and writers of the files it loads.
#![allow(dead_code)] // Every test file uses a part.

pub mod fake;
pub mod files;
pub mod model;
pub mod packages;
pub mod placed;
mod raw;
mod requests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fake::Fake;
use pianola_npu::amdxdna::Device;

/// A folder of a test's own; removed when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("npu-test-{}-{count}", std::process::id()));
        // What a process of the same number left that was killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub const NODE: &str = "/dev/accel/accel0";

/// Opens the stand-in.
pub fn open(fake: &Arc<Fake>) -> Device {
    Device::open_with(fake.clone(), Path::new(NODE)).unwrap()
}
