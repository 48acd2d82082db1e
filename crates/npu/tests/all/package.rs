//! Packages: importing, loading, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::Scratch;
use crate::common::files::{NPU1, NPU2, Op, XclbinParts, stream, stream_for, xclbin};
use crate::common::packages::{attention, build, iron, matmul, try_package};
use pianola_npu::amdxdna::Generation;
use pianola_npu::package::{
    Activation, BLayout, ElementType, ImportOptions, IronName, MatmulSpec, Operation, Package,
    PackageError, WholeArrayName, import, packages,
};

fn product() -> Operation {
    Operation::Matmul(matmul(ElementType::I8, ElementType::I32, BLayout::RowMajor))
}

fn manifest_path(scratch: &Scratch) -> PathBuf {
    scratch.0.join("npu_kernels/npu1/kernel.json")
}

/// Names of the files in the package's folder.
fn names(scratch: &Scratch) -> Vec<String> {
    let entries = fs::read_dir(scratch.0.join("npu_kernels/npu1")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_imported_can_be_loaded() {
    let operations = [
        product(),
        Operation::Matmul(iron(Activation::Silu)),
        Operation::Attention(attention(true)),
    ];
    for operation in operations {
        let scratch = Scratch::new();
        let imported = try_package(&scratch, &operation).unwrap();
        let loaded = Package::load(&manifest_path(&scratch)).unwrap();
        assert_eq!(loaded.manifest(), imported.manifest());
        assert_eq!(loaded.name(), "kernel");
        assert_eq!(loaded.manifest().operation, operation);
        assert_eq!(loaded.manifest().columns, 4);
        assert_eq!(loaded.configuration().unwrap().0.len(), 200);
        let all = packages(&scratch.0.join("npu_kernels"), Generation::Npu1).unwrap();
        assert_eq!(all.len(), 1);
        assert!(all[0].1.is_ok());
        assert!(packages(&scratch.0.join("npu_kernels"), Generation::Npu2).unwrap().is_empty());
        assert_eq!(names(&scratch).len(), 3, "no temporary file is left");
    }
}

#[test]
fn a_package_is_replaced_only_when_told() {
    let scratch = Scratch::new();
    try_package(&scratch, &product()).unwrap();
    let before = fs::read(manifest_path(&scratch)).unwrap();
    assert!(matches!(try_package(&scratch, &product()), Err(PackageError::Exists(_))));
    assert_eq!(fs::read(manifest_path(&scratch)).unwrap(), before);

    // Another build under the same name: the old files go, those that another package uses stay.
    let (left, right) = build(&scratch, &product());
    let folder = scratch.0.join("npu_kernels");
    let sharing = ImportOptions::new("sharing");
    import(&folder, (&left, &right), &product(), &sharing).unwrap();
    assert_eq!(names(&scratch).len(), 4);
    fs::write(&left, xclbin(&XclbinParts { metadata: None, ..XclbinParts::default() })).unwrap();
    let options = ImportOptions { replace: true, ..ImportOptions::new("kernel") };
    import(&folder, (&left, &right), &product(), &options).unwrap();
    assert_eq!(names(&scratch).len(), 5);
    let options = ImportOptions { replace: true, ..ImportOptions::new("sharing") };
    import(&folder, (&left, &right), &product(), &options).unwrap();
    assert_eq!(names(&scratch).len(), 4, "the first xclbin is used no more");
    for (path, package) in packages(&folder, Generation::Npu1).unwrap() {
        package.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[test]
fn streams_of_text_are_imported() {
    let scratch = Scratch::new();
    let (left, right) = build(&scratch, &product());
    let text: String = fs::read(&right)
        .unwrap()
        .chunks(4)
        .map(|word| format!("{:08x}\n", u32::from_le_bytes(word.try_into().unwrap())))
        .collect();
    let path = scratch.0.join("insts.txt");
    fs::write(&path, text).unwrap();
    let folder = scratch.0.join("npu_kernels");
    let package = import(&folder, (&left, &path), &product(), &ImportOptions::new("kernel"));
    assert_eq!(package.unwrap().instructions().bytes(), stream_for(3));
    Package::load(&manifest_path(&scratch)).unwrap();
}

#[test]
fn names_of_builds_make_operations_and_are_held_to_them() {
    let scratch = Scratch::new();
    let (left, right) = build(&scratch, &product());
    let named = scratch.0.join("final_128x16x64_16x8x16_4c.xclbin");
    fs::copy(&left, &named).unwrap();
    let name = WholeArrayName::parse(&named).unwrap();
    let types = (ElementType::I8, ElementType::I32);
    let operation = Operation::Matmul(MatmulSpec::whole_array(name, types, BLayout::RowMajor));
    assert_eq!(operation, product());
    let folder = scratch.0.join("npu_kernels");
    import(&folder, (&named, &right), &operation, &ImportOptions::new("kernel")).unwrap();
    // The name of another shape, and of another number of columns.
    for other in ["final_256x16x64_16x8x16_4c.xclbin", "final_128x16x64_16x8x16_2c.xclbin"] {
        let path = scratch.0.join(other);
        fs::copy(&left, &path).unwrap();
        let options = ImportOptions::new("other");
        let error = import(&folder, (&path, &right), &operation, &options).unwrap_err();
        assert!(error.to_string().contains("file name"), "{error}");
    }
    let path = Path::new("FLM_GEMM_tn64_ck128_M256_K512_N64.bin");
    let name = IronName::parse(path).unwrap();
    assert_eq!(MatmulSpec::iron(name, Activation::Silu), Some(iron(Activation::Silu)));
}

#[test]
fn changed_files_are_refused() {
    let scratch = Scratch::new();
    try_package(&scratch, &product()).unwrap();
    for name in names(&scratch).iter().filter(|name| !name.ends_with(".json")) {
        let path = scratch.0.join("npu_kernels/npu1").join(name);
        let original = fs::read(&path).unwrap();
        let mut changed = original.clone();
        *changed.last_mut().unwrap() ^= 1;
        fs::write(&path, changed).unwrap();
        let error = Package::load(&manifest_path(&scratch)).unwrap_err();
        assert!(matches!(error, PackageError::Sum { .. }), "{error}");
        fs::write(&path, original).unwrap();
    }
    Package::load(&manifest_path(&scratch)).unwrap();
}

#[test]
fn changed_manifests_are_refused() {
    let scratch = Scratch::new();
    try_package(&scratch, &product()).unwrap();
    let path = manifest_path(&scratch);
    let text = fs::read_to_string(&path).unwrap();
    let error_of = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        Package::load(&path).unwrap_err()
    };
    let error = error_of("\"format\": 1", "\"format\": 2");
    assert!(matches!(error, PackageError::Format { found: 2, known: 1 }));
    let error = error_of("\"columns\": 4", "\"columns\": 2");
    assert!(matches!(error, PackageError::Mismatch { .. }), "{error}");
    let error = error_of("\"npu1\"", "\"npu2\"");
    assert!(matches!(error, PackageError::Mismatch { what: "the device", .. }), "{error}");
    let error = error_of("\"k\": 16", "\"k\": 17");
    assert!(matches!(error, PackageError::Rule(_)), "{error}");
    let error = error_of("\"bytes\": 2048", "\"bytes\": 2049");
    assert!(matches!(error, PackageError::Rule(_)), "{error}");
    let error = error_of("\"MLIR_AIE\"", "\"OTHER\"");
    assert!(error.to_string().contains("MLIR_AIE:MLIRAIE"), "{error}");
    let error = error_of("\"format\"", "\"surprise\": 1, \"format\"");
    assert!(matches!(error, PackageError::Manifest { .. }), "{error}");
    let file = text.split("\"file\": \"").nth(1).unwrap().split('"').next().unwrap();
    let error = error_of(file, "../../etc/passwd");
    assert!(matches!(error, PackageError::Name(_)), "{error}");
    // A damaged package does not hide the others.
    fs::write(&path, text.replacen("\"columns\": 4", "\"columns\": 2", 1)).unwrap();
    fs::write(path.with_file_name("sound.json"), &text).unwrap();
    let all = packages(&scratch.0.join("npu_kernels"), Generation::Npu1).unwrap();
    let sound: Vec<bool> = all.iter().map(|(_, package)| package.is_ok()).collect();
    assert_eq!(sound, [false, true]);
}

#[test]
fn builds_that_do_not_fit_together_are_refused() {
    let scratch = Scratch::new();
    let (left, right) = build(&scratch, &product());
    let folder = scratch.0.join("npu_kernels");
    let options = ImportOptions::new("kernel");
    let error_of = || import(&folder, (&left, &right), &product(), &options).unwrap_err();
    // Instructions of another kernel, with two buffers only.
    fs::write(&right, stream_for(2)).unwrap();
    assert!(matches!(error_of(), PackageError::Mismatch { .. }));
    fs::write(&right, stream(NPU2, 4, &[])).unwrap();
    assert!(matches!(error_of(), PackageError::Mismatch { .. }));
    // A header of two columns, and one of the whole array with a write to the fifth.
    let block = |address| Op::Block { address, data: vec![0; 8] };
    let three = |columns, address: u32| {
        let register = u64::from(address) + 4;
        let patch = |argument| Op::Patch { register, argument, offset: 0 };
        stream(NPU1, columns, &[block(address), patch(0), patch(1), patch(2)])
    };
    fs::write(&right, three(2, 0x1D000)).unwrap();
    assert!(error_of().to_string().contains("header"));
    fs::write(&right, three(5, 4 << 25 | 0x1D000)).unwrap();
    assert!(error_of().to_string().contains("writes to"));
    fs::write(&right, b"nothing").unwrap();
    assert!(matches!(error_of(), PackageError::Instructions { .. }));
    fs::write(&right, stream_for(3)).unwrap();
    fs::write(&left, xclbin(&XclbinParts { columns: 1, ..XclbinParts::default() })).unwrap();
    assert!(matches!(error_of(), PackageError::Mismatch { .. }));
    let no_pdi = XclbinParts { kernel_id: 0x902, ..XclbinParts::default() };
    fs::write(&left, xclbin(&no_pdi)).unwrap();
    assert!(matches!(error_of(), PackageError::NoKernel { .. }));
    fs::write(&left, xclbin(&XclbinParts::default())).unwrap();
    fs::write(&right, three(5, 3 << 25 | 0x1D000)).unwrap();
    import(&scratch.0.join("other"), (&left, &right), &product(), &options).unwrap();
    let options = ImportOptions::new("../kernel");
    let error = import(&folder, (&left, &right), &product(), &options).unwrap_err();
    assert!(matches!(error, PackageError::Name(_)));
    assert!(!folder.exists(), "nothing was written");
}

#[test]
fn shapes_obey_the_designs_rules() {
    let scratch = Scratch::new();
    let refused = |operation: Operation| {
        let error = try_package(&scratch, &operation).unwrap_err();
        assert!(matches!(error, PackageError::Rule(_)), "{operation:?}: {error}");
    };
    let base = matmul(ElementType::I8, ElementType::I32, BLayout::RowMajor);
    let change = |change: &dyn Fn(&mut pianola_npu::package::MatmulSpec)| {
        let mut spec = base.clone();
        change(&mut spec);
        refused(Operation::Matmul(spec));
    };
    change(&|spec| spec.shape.m = 64); // One block of rows: not even.
    change(&|spec| spec.shape.m = 0);
    change(&|spec| spec.shape.k = 20);
    change(&|spec| spec.shape.n = 96);
    change(&|spec| spec.tile.m = 8);
    change(&|spec| spec.output = ElementType::I8); // Wraps.
    change(&|spec| spec.activation = Activation::Gelu);
    change(&|spec| {
        // 2 (128 x 64 + 64 x 64 + 128 x 64 x 4) bytes are more than 61 KiB.
        spec.tile = pianola_npu::package::Shape { m: 128, k: 64, n: 64 };
        spec.shape = pianola_npu::package::Shape { m: 1024, k: 64, n: 256 };
    });
    let mut spec = iron(Activation::None);
    spec.b_layout = BLayout::RowMajor;
    refused(Operation::Matmul(spec));
    let mut spec = iron(Activation::None);
    spec.shape.k = 256;
    refused(Operation::Matmul(spec));
    let mut spec = attention(true);
    spec.queries = 512;
    refused(Operation::Attention(spec));
    let mut spec = attention(false);
    spec.kv_heads = 3;
    refused(Operation::Attention(spec));
}

#[test]
fn a_damaged_manifest_never_panics() {
    let scratch = Scratch::new();
    try_package(&scratch, &Operation::Matmul(iron(Activation::Gelu))).unwrap();
    let path = manifest_path(&scratch);
    let sound = fs::read(&path).unwrap();
    // Without the newline that ends it, a manifest is still whole.
    for at in (0..sound.len() - 1).step_by(3) {
        for byte in [b'9', 0xFF] {
            let mut damaged = sound.clone();
            damaged[at] = byte;
            fs::write(&path, damaged).unwrap();
            let _ = Package::load(&path);
        }
        fs::write(&path, &sound[..at]).unwrap();
        assert!(Package::load(&path).is_err());
    }
}
