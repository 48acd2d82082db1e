//! `npu` through the binary, with an emulated NPU behind the device node: the shim is preloaded, and the
//! binary knows nothing of it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;

use crate::common::npu::{KERNELS, Machine};

#[test]
fn a_device_and_its_packages_are_listed() {
    let machine = Machine::new();
    let text = machine.pianola("npu list", "").output();
    for words in [
        "npu: npu1, XDNA: Phoenix, Hawk Point\n",
        "/dev/accel/accel0",
        "firmware 1.5.5.391",
        "5 columns, 4 of them for kernels",
        "none of 6 in use",
        "power mode:  default; `sudo xrt-smi configure --pmode performance` changes it\n",
        "no kernel packages in ",
    ] {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
    let text = machine.pianola("npu list", "held=2").output();
    assert!(text.contains("2 of 6 in use, by process 1\n"), "{text}");
    let object = machine.pianola("npu list --json", "power=4").json();
    assert_eq!(object["devices"][0]["power_mode"], "turbo");

    let machine = Machine::with_packages();
    let object = machine.pianola("npu list --json", "").json();
    assert_eq!(object["devices"][0]["name"], "npu1");
    let names: Vec<&str> = object["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["attention", "bf16", "matmul_i8_128x16x64"]);
    let devices = machine.pianola("devices", "").output();
    assert!(devices.contains("npu: npu1, "), "{devices}");
    assert!(devices.contains("with kernel packages, products of prompts"), "{devices}");
}

/// The rows of `doctor` for a machine whose NPU answers, with what is wrong with it.
#[test]
fn doctor_examines_the_npu() {
    let rows = |machine: &Machine, faults: &str| -> Vec<serde_json::Value> {
        let object = machine.pianola("doctor --json", faults).json();
        let groups = object["groups"].as_array().unwrap();
        let npu = groups.iter().find(|group| group["name"] == "npu").unwrap();
        npu["rows"].as_array().unwrap().clone()
    };
    let row = |rows: &[serde_json::Value], name: &str| -> (String, String, String) {
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        let field = |name: &str| row[name].as_str().unwrap_or_default().to_string();
        (field("verdict"), field("text"), field("fix"))
    };
    let machine = Machine::with_packages();
    let fine = rows(&machine, "");
    assert!(row(&fine, "npu").1.starts_with("npu1 (XDNA: Phoenix, Hawk Point)"), "{fine:#?}");
    assert_eq!(row(&fine, "interface").1, "amdxdna 0.6 at /dev/accel/accel0");
    assert_eq!(row(&fine, "firmware").1, "1.5.5.391");
    assert_eq!(row(&fine, "contexts").1, "none of 6 in use");
    assert_eq!(row(&fine, "power").1, "default");
    assert!(!row(&fine, "memlock").1.is_empty(), "{fine:#?}");
    let (verdict, kernels, fix) = row(&fine, "kernels");
    assert!(kernels.starts_with("attention, bf16, matmul_i8_128x16x64 in "), "{kernels}");
    assert!(verdict == "ok" && fix.starts_with("pianola npu check"), "{fix}");

    let taken = rows(&machine, "held=6,power=1");
    let (verdict, _, fix) = row(&taken, "contexts");
    assert_eq!((verdict.as_str(), fix.as_str()), ("warn", "end a program that uses the NPU"));
    let (verdict, text, fix) = row(&taken, "power");
    assert!(verdict == "warn" && text.starts_with("powersaver"), "{text}");
    assert!(fix.starts_with("sudo xrt-smi configure --pmode performance"), "{fix}");
    let (_, text, fix) = row(&rows(&Machine::new(), ""), "kernels");
    assert!(text.starts_with("no packages in ") && fix.starts_with("pianola npu import"), "{text}");
}

#[test]
fn imports_are_checked() {
    let machine = Machine::new();
    let (stem, _, options) = KERNELS[0];
    let text = machine.import(stem, options).output();
    let words = "matmul_i8_128x16x64: npu1, 4 columns, matmul i8 to i32, 128x16x64, tile 16x8x16";
    assert!(text.starts_with(words), "{text}");
    machine.import(stem, options).fails(2, &["exists already", "--name, --replace"]);
    machine.import(stem, &format!("{options} --replace")).output();
    machine.import(stem, &format!("{options} --name ../x")).fails(2, &["`../x` is no name"]);
    machine.import("air", "--op matmul-i8").fails(2, &["--shape MxKxN"]);
    let other = "--op matmul-i8 --shape 256x16x64 --name other";
    machine.import(stem, other).fails(1, &["by the file name and as stated"]);
    let wrong = "--op matmul-i8 --shape 128x16x64 --tile 16x8x16 --name other";
    machine.import("air", wrong).fails(1, &["data buffers of the stream and the operation"]);
    let odd = "--op matmul-bf16 --shape 100x16x64 --tile 16x8x16 --name other";
    machine.import("column", odd).fails(1, &["breaks a rule of its design: M is"]);
    machine.import("absent", odd).fails(1, &["cannot open", "absent.xclbin"]);
}

/// All three passed, and nothing tells a speed.
#[track_caller]
fn passed(text: &str) {
    assert_eq!(text.matches("\n  ok    ").count(), 3, "{text}");
    assert!(text.contains("8192 values compared, all exact"), "{text}");
    for unit in ["/s", "GOP", "TOPS", "seconds", " ms"] {
        assert!(!text.contains(unit), "a speed in {text}");
    }
}

#[test]
fn sound_packages_pass() {
    let machine = Machine::with_packages();
    passed(&machine.pianola("npu check", "").output());
    let text = machine.pianola("npu check --package bf16", "").output();
    assert_eq!(text.matches("\n  ok    ").count(), 1, "{text}");
    machine.pianola("npu check --package what", "").fails(2, &["'what'", "attention, bf16"]);
}

#[cfg(feature = "npu-emulation")]
#[test]
fn packages_are_emulated_without_a_device() {
    let machine = Machine::with_packages();
    let text = machine.folder.pianola(["npu", "check", "--emulate"]).output();
    assert!(text.starts_with("npu (emulated)\n"), "{text}");
    passed(&text);
    let run = machine.folder.pianola(["npu", "check", "--emulate", "--json"]);
    assert!(run.err.contains("the kernels themselves did not run"), "{run:#?}");
    let object = run.json();
    assert_eq!((&object["device"], &object["passed"]), (&"npu (emulated)".into(), &true.into()));
    Machine::new().folder.pianola(["npu", "check", "--emulate"]).fails(1, &["no kernel packages"]);
}

#[test]
fn a_damaged_package_is_named_and_hides_no_other() {
    let machine = Machine::with_packages();
    let folder = machine.folder.path.join("npu_kernels/npu1");
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("bf16.json")).unwrap()).unwrap();
    let xclbin = folder.join(manifest["xclbin"]["file"].as_str().unwrap());
    let mut bytes = fs::read(&xclbin).unwrap();
    bytes[1000] ^= 1;
    fs::write(&xclbin, bytes).unwrap();
    let text = machine.pianola("npu list", "").output();
    assert!(text.contains("  bf16: cannot be used: "), "{text}");
    let run = machine.pianola("npu check", "");
    run.fails(1, &["1 of 3 packages failed: bf16: ", "SHA-256", "import it again"]);
    assert_eq!(run.out.matches("\n  ok    ").count(), 2, "{run:#?}");
}

#[test]
fn a_machine_without_packages_or_device_says_what_to_do() {
    let machine = Machine::new();
    machine.pianola("npu check", "").fails(1, &["no kernel packages", "pianola npu import"]);
    // Where this machine has no node itself.
    if !std::path::Path::new("/dev/accel").exists() {
        machine.folder.pianola(["npu", "check"]).fails(1, &["amdxdna"]);
        let run = machine.folder.pianola(["npu", "list"]);
        assert!(run.err.contains("amdxdna"), "{run:#?}");
        assert!(run.output().starts_with("no kernel packages in "));
    }
}

#[test]
fn every_fault_has_its_message() {
    let machine = Machine::with_packages();
    let product = "npu check --package matmul_i8_128x16x64";
    let cases: [(&str, &str, &[&str]); 12] = [
        // The driver gives up before the kernel, and after it.
        ("timeout@1", " --timeout 1", &["did not finish within 1s", "modprobe"]),
        ("timeout@1", "", &["context is lost (state Timeout)", "load the kernel again"]),
        ("error@1", "", &["ended a command in the state Error", "dmesg"]),
        ("abort@1", "", &["context is lost (state Abort)"]),
        ("nan@1", "", &["computes wrongly and is refused"]),
        ("wrong@1", "", &["computes wrongly and is refused", "row "]),
        ("lose@1", "", &["context is lost", "load the kernel again"]),
        ("suspend@1", "", &["the NPU is gone", "open it again"]),
        ("held=6", "", &["no free hardware context", "6, 6 in use", "end another program"]),
        ("busy@1", "", &["no free hardware context"]),
        // Whether a limit is named or not depends on this process's.
        ("nomem@1", "", &["67108864 bytes"]),
        ("nomem@2", "", &["device heap of 67108864 bytes has no room"]),
    ];
    for (faults, options, words) in cases {
        let run = machine.pianola(&format!("{product}{options}"), faults);
        run.fails(1, words);
        assert!(run.out.contains("\n  FAIL  matmul_i8_128x16x64: "), "{faults}: {run:#?}");
    }
    let run = machine.pianola("npu check --package bf16", "nan@1");
    run.fails(1, &["bf16 computes wrongly and is refused"]);
    // One fault, and the packages after it are checked all the same.
    let run = machine.pianola("npu check", "suspend@1");
    run.fails(1, &["1 of 3 packages failed: attention: the NPU is gone"]);
    assert_eq!(run.out.matches("\n  ok    ").count(), 2, "{run:#?}");
}
