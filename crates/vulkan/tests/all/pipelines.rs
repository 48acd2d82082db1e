//! The file that keeps compiled pipelines: written once, read by later starts, and ignored where it is
//! damaged or for something else.

use crate::support::case::{Case, beside_reference, check, plan, usual};
use crate::support::gpu;
use pianola_formats::TensorType;
use pianola_plan::DeviceId;
use pianola_vulkan::{VulkanDevice, VulkanOptions, VulkanRecording};
use std::path::{Path, PathBuf};

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts anew, with what the file holds, and plays a prompt and a token.
fn start(file: &Path) {
    let case = Case { hidden: 64, feed_forward: 64, vocabulary: 40, ..usual(TensorType::Q8_0) };
    let gpu = gpu::open();
    let options = VulkanOptions { pipeline_file: Some(file.into()), ..gpu::options(&gpu) };
    let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
    let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
        VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
    });
    check(&mut recording, &mut reference_model, &[&[(0, 0, 5)], &[(0, 5, 1)]])
        .unwrap_or_else(|reason| panic!("{reason}"));
}

#[test]
fn a_file_is_written_once_and_replaced_where_it_is_of_no_use() {
    let folder = format!("pianola-pipelines-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(folder));
    let file = folder.0.join("some").join("device.bin");
    let content = || std::fs::read(&file).unwrap();
    start(&file);
    let written = content();
    assert!(written.starts_with(b"pianola pipelines 1\n"));
    let time = || std::fs::metadata(&file).unwrap().modified().unwrap();
    let before = time();
    start(&file);
    assert_eq!(time(), before, "a second start had nothing to add");
    let mut damaged = written.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut foreign = written.clone();
    foreign[25] ^= 1;
    for useless in [&damaged[..], &foreign, &written[..written.len() / 2], b""] {
        std::fs::write(&file, useless).unwrap();
        start(&file);
        assert_eq!(content().len(), written.len());
        assert_ne!(content(), useless);
    }
    let others = std::fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!(others, 1, "unfinished files are left");
}
