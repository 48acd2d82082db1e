//! The kernels in `spirv/` are what `scripts/shaders` made of the sources in `shaders/`. Only few
//! machines have a glslang that is new enough, so the compiled form is kept beside the sources, and
//! this test notices where one changed without the other.

use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Names of the files in a folder that end in `.ending`.
fn names(folder: &Path, ending: &str) -> Vec<String> {
    let list = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let names = list.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| Path::new(name).extension().is_some_and(|found| found == ending)).collect()
}

/// Stems of the files in a folder that end in `.ending`.
fn stems(folder: &Path, ending: &str) -> BTreeSet<String> {
    let cut = ending.len() + 1;
    names(folder, ending).iter().map(|name| name[..name.len() - cut].to_string()).collect()
}

/// Path of every source, relative to the crate, and its sum.
fn sources() -> BTreeMap<String, String> {
    let sum = |path: &str| {
        let bytes = std::fs::read(root().join(path)).unwrap();
        Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let mut found = BTreeMap::new();
    for (folder, ending) in [("shaders", "comp"), ("shaders/include", "glsl")] {
        for name in names(&root().join(folder), ending) {
            let path = format!("{folder}/{name}");
            let sum = sum(&path);
            found.insert(path, sum);
        }
    }
    found
}

/// What `spirv/sources.sum` says of them.
fn noted() -> BTreeMap<String, String> {
    let path = root().join("spirv/sources.sum");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run scripts/shaders", path.display()));
    let entry = |line: &str| {
        let (sum, path) = line.split_once("  ").expect("lines of sha256sum");
        (path.to_string(), sum.to_string())
    };
    text.lines().map(entry).collect()
}

#[test]
fn kernels_are_compiled_from_the_sources_as_they_are() {
    let (found, noted) = (sources(), noted());
    assert!(found.len() > 5, "shaders/ holds the sources");
    let paths: BTreeSet<&String> = found.keys().chain(noted.keys()).collect();
    let changed: Vec<_> =
        paths.into_iter().filter(|&path| found.get(path) != noted.get(path)).collect();
    assert!(changed.is_empty(), "changed since it was compiled: {changed:?}; run scripts/shaders");
}

/// Whether a source is compiled a second time, with CHAINED.
fn can_wait(name: &str) -> bool {
    let text = std::fs::read_to_string(root().join(format!("shaders/{name}.comp"))).unwrap();
    text.lines().any(|line| line.starts_with("#ifdef CHAINED"))
}

#[test]
fn every_source_has_its_kernel_and_no_kernel_is_left_over() {
    let (mut sources, kernels) =
        (stems(&root().join("shaders"), "comp"), stems(&root().join("spirv"), "spv"));
    // Some are compiled a second time.
    let chained: Vec<String> = sources.iter().filter(|name| can_wait(name)).cloned().collect();
    assert!(!chained.is_empty(), "no kernel can wait for the one before");
    sources.extend(chained.iter().map(|name| format!("{name}_chained")));
    assert_eq!(sources, kernels, "shaders/*.comp and spirv/*.spv differ; run scripts/shaders");
    for name in &kernels {
        let code = std::fs::read(root().join(format!("spirv/{name}.spv"))).unwrap();
        let magic = 0x0723_0203u32.to_le_bytes();
        assert!(
            code.starts_with(&magic) && code.len().is_multiple_of(4),
            "{name}.spv is no SPIR-V"
        );
    }
}
