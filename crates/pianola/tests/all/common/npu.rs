//! A machine with an emulated NPU behind its device node.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(dead_code, reason = "each test uses a part")]

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::{Folder, Run};
use pianola_npu_model::{artefacts, parse_kernels};

/// Kernels: the file's stem, the model's description, the options of the import.
pub const KERNELS: [(&str, &str, &str); 3] = [
    (
        "final_128x16x64_16x8x16_4c",
        "matmul i8 i32 128x16x64 tile=16x8x16 columns=4",
        "--op matmul-i8",
    ),
    (
        "column",
        "matmul bf16 f32 128x16x64 tile=16x8x16 columns=4 layout=column",
        "--op matmul-bf16 --shape 128x16x64 --tile 16x8x16 --b-layout column --name bf16",
    ),
    (
        "air",
        "attention heads=2 kv_heads=1 lq=256 lk=256 dk=64 dv=64 causal",
        "--op attention-bf16 --heads 2 --kv-heads 1 --queries 256 --keys 256 --key-width 64 \
         --value-width 64 --causal --name attention",
    ),
];

/// A machine with an emulated NPU and the files of some builds.
pub struct Machine {
    pub folder: Folder,
}

impl Machine {
    pub fn new() -> Machine {
        let folder = Folder::new();
        let mut lines = String::new();
        for (stem, line, _) in KERNELS {
            let made = artefacts::make(&parse_kernels(line).unwrap().remove(0).kernel);
            folder.file(&format!("build/{stem}.xclbin"), &made.xclbin);
            folder.file(&format!("build/{stem}.bin"), &made.instructions);
            lines.push_str(&format!("{line} xclbin={stem}.xclbin insts={stem}.bin\n"));
        }
        folder.file("build/kernels", lines);
        Machine { folder }
    }

    /// With all kernels imported.
    pub fn with_packages() -> Machine {
        let machine = Machine::new();
        for (stem, _, options) in KERNELS {
            machine.import(stem, options).output();
        }
        machine
    }

    pub fn import(&self, stem: &str, options: &str) -> Run {
        let file = |ending: &str| self.folder.path.join(format!("build/{stem}.{ending}"));
        let mut words: Vec<OsString> = vec!["npu".into(), "import".into()];
        words.extend([file("xclbin").into(), file("bin").into()]);
        words.extend(options.split_whitespace().map(OsString::from));
        self.folder.pianola(words)
    }

    /// Variables that put the shim in front of the C library.
    pub fn variables(&self, faults: &str) -> [(&'static str, OsString); 4] {
        [
            ("LD_PRELOAD", shim().into()),
            ("PIANOLA_NPU_MODEL_KERNELS", self.folder.path.join("build/kernels").into()),
            ("PIANOLA_NPU_MODEL_FAULTS", faults.into()),
            ("PIANOLA_NPU_MODEL_HANG_MS", "3000".into()),
        ]
    }

    /// The binary with the shim.
    pub fn pianola(&self, words: &str, faults: &str) -> Run {
        let variables = self.variables(faults);
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_os_str()));
        self.folder.pianola_with(words.split(' '), b"", &variables)
    }

    /// The same with the Vulkan drivers that this machine has.
    pub fn pianola_vulkan(&self, words: &str, faults: &str) -> Run {
        let variables = self.variables(faults);
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_os_str()));
        self.folder.pianola_vulkan_with(words.split(' '), &variables)
    }

    /// A line for a shell in which `pianola` is the binary, with the shim in front of the C library and with
    /// the Vulkan drivers that this machine has.
    pub fn shell(&self, line: &str) -> Run {
        let (shim, kernels) = (shim(), self.folder.path.join("build/kernels"));
        let line =
            format!("unset VK_DRIVER_FILES VK_ICD_FILENAMES; export LD_PRELOAD=$SHIM; {line}");
        let variables: [(&str, &OsStr); 2] =
            [("SHIM", shim.as_os_str()), ("PIANOLA_NPU_MODEL_KERNELS", kernels.as_os_str())];
        self.folder.shell(&line, &variables)
    }
}

/// The library that Cargo built beside this test.
fn shim() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let found = program.ancestors().skip(1).take(2).map(|it| it.join("libpianola_npu_shim.so"));
    found.into_iter().find(|path| path.exists()).expect("the shim was not built")
}
