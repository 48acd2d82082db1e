//! Memory that passes between devices as a descriptor: exported by one logical device and imported by
//! another, in each form that the driver has. A driver that has neither is named, and the errors that it
//! gets are looked at.

use crate::support::gpu;
use crate::support::skip;
use crate::support::validation;
use pianola_vulkan::{GpuKind, HandleType, SharedBuffer, SharedMemoryError};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

const BYTES: usize = 1 << 20;

fn pattern(seed: u32) -> Vec<u8> {
    let word = |at: u32| (at ^ seed).wrapping_mul(0x9E37_79B9).to_le_bytes();
    (0..BYTES as u32 / 4).flat_map(word).collect()
}

/// Whether the driver shares memory in this form at all; an error of another kind fails the test.
#[track_caller]
fn exported(handle: HandleType) -> Option<SharedBuffer> {
    match SharedBuffer::new(&gpu::open(), handle, BYTES as u64) {
        Ok(buffer) => Some(buffer),
        Err(
            error @ (SharedMemoryError::Missing { .. } | SharedMemoryError::Unsupported { .. }),
        ) => {
            let text = error.to_string();
            assert!(text.contains("llvmpipe") || text.contains("as "), "{text}");
            skip::skip(&text);
            None
        }
        Err(error) => panic!("{handle}: {error}"),
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
#[ignore = "nothing_is_reported runs it under the layer"]
fn round_trips() {
    for handle in HandleType::ALL {
        let Some(mut first) = exported(handle) else { continue };
        eprintln!("{handle}: shared, {} bytes", first.allocated());
        let before = open_descriptors();
        let fd = first.export().unwrap();
        let mut second = SharedBuffer::import(&gpu::open(), handle, fd, first.bytes()).unwrap();
        let mut found = vec![0; BYTES];
        for seed in 1..4 {
            first.write(&pattern(seed)).unwrap();
            second.read(&mut found).unwrap();
            assert!(found == pattern(seed), "{handle}: from the exporter");
            second.write(&pattern(!seed)).unwrap();
            first.read(&mut found).unwrap();
            assert!(found == pattern(!seed), "{handle}: from the importer");
        }
        // The memory stays the importer's when the exporter has gone.
        drop(first);
        second.read(&mut found).unwrap();
        assert!(found == pattern(!3));
        drop(second);
        assert!(open_descriptors() <= before, "{handle}: descriptors are left open");
    }
}

#[test]
fn nothing_is_reported() {
    let reports = validation::reports("shared_memory::round_trips");
    assert!(reports.is_empty(), "{} reports:\n{}", reports.len(), reports.join("\n"));
}

#[test]
fn sizes_are_checked() {
    for handle in HandleType::ALL {
        let Some(buffer) = exported(handle) else { continue };
        for bytes in [0, 3] {
            let made = SharedBuffer::new(&gpu::open(), handle, bytes);
            assert!(matches!(made, Err(SharedMemoryError::Size(wrong)) if wrong == bytes));
        }
        if handle == HandleType::DmaBuf {
            let fd = buffer.export().unwrap();
            let number = fd.as_raw_fd();
            let bytes = 4 * BYTES as u64;
            let error = SharedBuffer::import(&gpu::open(), handle, fd, bytes).err().unwrap();
            assert!(matches!(error, SharedMemoryError::TooSmall { .. }), "{error}");
            assert!(!is_open(number), "a descriptor that was refused is closed");
        }
    }
}

/// Memory that no Vulkan driver made. Mesa's newer software drivers take any file that can be mapped for a
/// dma-buf, which stands here for another driver's buffer.
#[test]
fn memory_of_another_owner_is_imported() {
    let gpu = gpu::open();
    if gpu.description().kind != GpuKind::Software {
        skip::skip(&format!("{} takes no file for a dma-buf", gpu.description().name));
        return;
    }
    let path = format!("/dev/shm/pianola-shared-memory-{}", std::process::id());
    std::fs::write(&path, pattern(5)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let fd = OwnedFd::from(file.try_clone().unwrap());
    match SharedBuffer::import(&gpu, HandleType::DmaBuf, fd, BYTES as u64) {
        Ok(mut buffer) => {
            let mut found = vec![0; BYTES];
            buffer.read(&mut found).unwrap();
            assert!(found == pattern(5), "what the owner wrote");
            buffer.write(&pattern(6)).unwrap();
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == pattern(6), "what the GPU wrote");
        }
        Err(
            error @ (SharedMemoryError::Missing { .. } | SharedMemoryError::Unsupported { .. }),
        ) => skip::skip(&error.to_string()),
        Err(error) => panic!("{error}"),
    }
}

/// What is no shared memory is refused, and its descriptor closed.
#[test]
fn other_descriptors_are_refused() {
    for handle in HandleType::ALL {
        if exported(handle).is_none() {
            continue;
        }
        let gpu = gpu::open();
        let fd = OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(SharedBuffer::import(&gpu, handle, fd, BYTES as u64).is_err(), "{handle}");
    }
}

fn is_open(fd: i32) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok()
}
