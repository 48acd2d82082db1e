//! Compiled pipelines on disk: a later start with the same device, driver and kernels compiles none of
//! them again.
//!
//! Nothing depends on the file. One that is damaged, or was written for something else, is ignored and
//! written anew; one that cannot be written is done without. Drivers should check what they are given, and
//! some do not: so a sum over the whole is compared first.

use crate::gpu::Gpu;
use crate::tuning::{fnv, identity};
use ash::vk;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TITLE: &str = "pianola pipelines 1";

/// Most bytes of a file: that of one model has a few megabytes, and each further model adds its own.
const MOST: usize = 128 << 20;

/// Bytes of the header that every driver's data begins with.
const HEADER: usize = 32;

/// A driver's cache of compiled pipelines, and the file it comes from.
pub(crate) struct PipelineCache {
    gpu: Arc<Gpu>,
    pub raw: vk::PipelineCache,
    path: Option<PathBuf>,
    /// Bytes of the driver's data that the file holds. They only grow, in an order that may change.
    kept: usize,
}

impl Drop for PipelineCache {
    fn drop(&mut self) {
        if self.gpu.is_hung() {
            return;
        }
        // SAFETY: pipelines that were made with it do not need it any more.
        unsafe { self.gpu.raw.destroy_pipeline_cache(self.raw, None) };
    }
}

impl PipelineCache {
    /// Begins with what the file at `path` holds, if that is of any use.
    pub fn new(gpu: &Arc<Gpu>, path: Option<PathBuf>) -> PipelineCache {
        let file = path.as_deref().and_then(read).unwrap_or_default();
        let data = opened(&file, &title(gpu)).filter(|data| is_of(data, gpu));
        // SAFETY: a live device, and data that its driver wrote.
        let create = |data: &[u8]| unsafe {
            let create = vk::PipelineCacheCreateInfo::default().initial_data(data);
            gpu.raw.create_pipeline_cache(&create, None)
        };
        // Without a cache everything is compiled as ever.
        let raw = create(data.unwrap_or(&[])).or_else(|_| create(&[])).unwrap_or_default();
        PipelineCache { gpu: gpu.clone(), raw, path, kept: data.map_or(0, <[u8]>::len) }
    }

    /// Writes the file, if there is one to write and pipelines came to it.
    pub fn save(&mut self) {
        let Some(path) = self.path.as_deref().filter(|_| self.raw != vk::PipelineCache::null())
        else {
            return;
        };
        // SAFETY: a live device and its cache.
        let Ok(data) = (unsafe { self.gpu.raw.get_pipeline_cache_data(self.raw) }) else { return };
        if self.kept == data.len() {
            return;
        }
        if data.len() > MOST {
            // The next start begins a new one.
            let _ = std::fs::remove_file(path);
        } else if write(path, &closed(&data, &title(&self.gpu))).is_err() {
            return;
        }
        self.kept = data.len();
    }
}

/// What a file is for.
fn title(gpu: &Gpu) -> String {
    format!("{TITLE}\n{}\n", identity(gpu))
}

/// The content of a file: what it is for, a sum, the driver's data.
fn closed(data: &[u8], title: &str) -> Vec<u8> {
    [title.as_bytes(), &fnv(data).to_le_bytes(), data].concat()
}

/// The driver's data in the content of a file that is whole and for the same.
fn opened<'a>(file: &'a [u8], title: &str) -> Option<&'a [u8]> {
    let (sum, data) = file.strip_prefix(title.as_bytes())?.split_first_chunk()?;
    (fnv(data) == u64::from_le_bytes(*sum)).then_some(data)
}

/// Whether a driver's data begins with the header of this device.
fn is_of(data: &[u8], gpu: &Gpu) -> bool {
    // SAFETY: a device of this instance.
    let properties = unsafe { gpu.instance.raw.get_physical_device_properties(gpu.physical) };
    let word = |at: usize| data[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    data.len() >= HEADER
        && word(0).is_some_and(|length| (HEADER..=data.len()).contains(&(length as usize)))
        && word(4) == Some(vk::PipelineCacheHeaderVersion::ONE.as_raw() as u32)
        && word(8) == Some(properties.vendor_id)
        && word(12) == Some(properties.device_id)
        && data[16..HEADER] == properties.pipeline_cache_uuid
}

/// A file of a size that this would write.
fn read(path: &Path) -> Option<Vec<u8>> {
    let size = std::fs::metadata(path).ok()?.len();
    (size <= MOST as u64 + 4096).then(|| std::fs::read(path).ok())?
}

/// Writes a file that others may read meanwhile: it is the old one or the new one.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::File::create(&unfinished)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_file_for_the_same_is_opened() {
        let data: Vec<u8> = (0..100).collect();
        let file = closed(&data, "this\n");
        assert_eq!(opened(&file, "this\n"), Some(&data[..]));
        assert_eq!(opened(&file, "that\n"), None);
        for at in 0..file.len() {
            assert_eq!(opened(&file[..at], "this\n"), None, "cut at {at}");
            let mut damaged = file.clone();
            damaged[at] ^= 4;
            assert_eq!(opened(&damaged, "this\n"), None, "damaged at {at}");
        }
    }
}
