//! `check` of a tiny shape on the processor and on a software driver: every section runs, everything
//! that can be launched is compared, and what is wrong is found.

use crate::support::gpu;
use crate::support::tiny;
use pianola_cpu::{CpuDevice, CpuOptions, Level};
use pianola_engine::{CheckEvent, CheckOptions, CheckSubject, DeviceCheck, check};
use pianola_formats::TensorType;
use pianola_plan::Device;
use pianola_vulkan::VulkanDevice;
use std::path::Path;
use std::sync::Arc;

const QUICK: CheckOptions =
    CheckOptions { quick: true, numeric: None, kv_type: None, reproducible: false };

fn tiny() -> CheckSubject {
    CheckSubject::random("tiny".to_string(), tiny::tiny_config(), TensorType::Q8_0)
}

fn checked(device: Arc<dyn Device>, options: CheckOptions) -> (DeviceCheck, Vec<String>) {
    let mut sections = Vec::new();
    let result = check(&tiny(), &device, options, &mut |event| {
        if let CheckEvent::Section(section) = event {
            sections.push(section.name.clone());
        }
    });
    (result.unwrap(), sections)
}

/// The bound of the layers as a whole is above what they are off by, and not five times that.
fn assert_close_bound(result: &DeviceCheck) {
    let mut sections = result.sections.iter();
    let layers = sections.find(|section| section.name.contains("layers")).unwrap();
    println!("{}: {layers:?}", result.subject);
    assert!(layers.compared > 10, "{layers:?}");
    assert!(layers.worst_share > 0.2 && layers.worst_share < 0.9, "{layers:?}");
}

fn cpu(level: Level) -> Arc<dyn Device> {
    Arc::new(CpuDevice { options: CpuOptions::bare(level, 2) })
}

/// Keeps weights in rotated form, where the level has it: a check's plans have many sequences.
fn keeping_cpu(level: Level) -> Arc<dyn Device> {
    let memory = Some(16 << 30);
    let options = CpuOptions { level, threads: 2, memory, ..CpuOptions::default() };
    Arc::new(CpuDevice { options })
}

#[test]
fn the_processor_passes_with_everything_covered() {
    let (one, two) = (cpu(Level::best()), keeping_cpu(Level::best()));
    for (device, options) in [
        (&one, QUICK),
        (&one, CheckOptions::default()),
        (&two, QUICK),
        (&two, CheckOptions::default()),
    ] {
        let (result, sections) = checked(device.clone(), options);
        assert!(result.passed(), "{:?}", result.issues);
        assert!(result.sections.iter().all(|section| section.steps > 0));
        assert_eq!(sections.len(), result.sections.len());
        let own = &result.coverage[0];
        assert!(own.reachable.len() > 10, "{:?}", own.reachable);
        assert_eq!(own.missing(), Default::default());
        let kept = own.reachable.iter().any(|variant| variant.choices.contains("kept"));
        assert_eq!(kept, Arc::ptr_eq(device, &two) && Level::best().rotates());
        assert_close_bound(&result);
        assert!(result.notes.iter().any(|note| note.contains("sampled by the host")));
        if !options.quick {
            // Paired, not multiplied: most, not all.
            let others = &result.coverage[1];
            assert!(2 * others.covered() > others.reachable.len());
            assert!(others.covered() < others.reachable.len());
        }
    }
}

#[test]
#[ignore = "takes a software driver most of a minute: scripts/acceptance runs it"]
fn a_software_driver_passes_and_samples_as_the_host() {
    let gpu = VulkanDevice::new(gpu::options(&gpu::open()));
    let (result, sections) = checked(Arc::new(gpu), QUICK);
    assert!(result.passed(), "{:?}", result.issues);
    assert_close_bound(&result);
    assert!(sections.iter().any(|name| name.contains("sampled by the device")), "{sections:?}");
    let own = &result.coverage[0];
    println!("{} of {} variants: {:?}", own.covered(), own.reachable.len(), own.missing());
    println!("{:?}, {:.1} s", result.notes, result.seconds);
    // All of them, unless this machine is so slow that the time of a quick check is up.
    let complete = own.missing().is_empty();
    assert!(complete || result.notes.iter().any(|note| note.contains("further steps")));
    assert!(own.covered() * 3 > own.reachable.len());
    assert!(!own.missing().keys().any(|kernel| kernel.starts_with("sample")));
}

/// A model of the folder that `scripts/test` fills.
fn real(name: &str) -> CheckSubject {
    let folder = std::env::var_os("PIANOLA_TEST_MODELS")
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    let path = Path::new(&folder).join(format!("{name}.gguf"));
    CheckSubject::file(name.to_string(), &path, None).unwrap()
}

fn assert_passes(subject: &CheckSubject, device: &Arc<dyn Device>) {
    let result = check(subject, device, QUICK, &mut |_| ()).unwrap();
    assert!(result.passed(), "{}: {:?}", result.device, result.issues);
    assert_close_bound(&result);
}

/// Trained weights: embeddings that share half of their length, inputs with a few large values.
#[test]
fn real_models_pass_on_the_processor() {
    let subject = real("smollm2");
    // The reference does not round, so that no bound is close to it.
    let rounds = |level: &Level| level.available() && *level != Level::Reference;
    for level in Level::ALL.into_iter().filter(rounds) {
        assert_passes(&subject, &cpu(level));
    }
    assert_passes(&real("gemma3"), &keeping_cpu(Level::best()));
}

#[test]
#[ignore = "takes a software driver minutes: scripts/acceptance runs it"]
fn real_models_pass_on_a_software_driver() {
    let gpu: Arc<dyn Device> = Arc::new(VulkanDevice::new(gpu::options(&gpu::open())));
    for name in ["smollm2", "gemma3"] {
        assert_passes(&real(name), &gpu);
    }
}
