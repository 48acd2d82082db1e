//! `run` and `plan` with an NPU through the binary: with an emulated NPU behind the device node, of which
//! the binary knows nothing, and with one inside it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use common::Run;
use common::npu::Machine;

/// More tokens than a step has to have for the NPU.
const PROMPT: &str = "it_was_a_bright_cold_day_in_april_and_the_clocks_were_striking_thirteen";

/// An answer of which every product is the NPU's, or the processor's where that fails.
fn placed(machine: &Machine, faults: &str) -> Run {
    let model = machine.folder.model();
    let words = format!(
        "run -m {} --device npu+cpu --npu-precision int8 --place projections=npu,ffn=npu -n 8 --temp 0 --ignore-eos {PROMPT}",
        model.display()
    );
    machine.pianola(&words, faults)
}

/// Whatever happens to the NPU, the text is that of a run without faults, and there is one warning.
#[test]
fn every_fault_leaves_the_text_as_it_is() {
    let machine = Machine::with_packages();
    let sound = placed(&machine, "");
    assert!(!sound.err.contains("npu is not used"), "{sound:#?}");
    assert!(!sound.err.contains("in place of"), "{sound:#?}");
    let expected = sound.output();
    assert!(expected.trim().len() > 4, "{expected}");
    // Loading and self-tests take fewer than 40 commands.
    for fault in ["timeout@40", "error@41", "abort@42", "lose@43", "suspend@44", "nan@45"] {
        let run = placed(&machine, fault);
        let told = run.err.matches("the processor computes in place of npu").count();
        assert_eq!(told, 1, "{fault}: {run:#?}");
        assert_eq!(run.output(), expected, "{fault}");
    }
    for fault in ["slow=20ms@40-60", "power=4"] {
        let run = placed(&machine, fault);
        assert!(!run.err.contains("in place of"), "{fault}: {run:#?}");
        assert_eq!(run.output(), expected, "{fault}");
    }
}

/// An NPU that cannot be opened is said once, and everything runs without it.
#[test]
fn an_npu_that_is_missing_or_taken_is_done_without() {
    let machine = Machine::with_packages();
    let model = machine.folder.model();
    let alone =
        format!("run -m {} --device cpu -n 8 --temp 0 --ignore-eos {PROMPT}", model.display());
    let expected = machine.pianola(&alone, "").output();
    for (fault, reason) in [
        ("held=6", "no free hardware context"),
        ("busy@1+", "no free hardware context"),
        ("nomem@1+", "67108864 bytes"),
    ] {
        let run = placed(&machine, fault);
        assert_eq!(run.err.matches("npu is not used").count(), 1, "{fault}: {run:#?}");
        assert!(run.err.contains(reason), "{fault}: {run:#?}");
        assert_eq!(run.output(), expected, "{fault}");
    }
    let empty = Machine::new();
    let plan = format!("plan -m {} --device npu+cpu", empty.folder.model().display());
    let text = empty.pianola(&plan, "").output();
    assert!(text.contains("npu is not used: "), "{text}");
}

/// What does not pay is declined in words: the NPU behind the node is as slow as its model.
#[test]
fn a_plan_says_what_the_npu_would_cost() {
    let machine = Machine::with_packages();
    let model = machine.folder.model();
    let plan = format!("plan -m {} --device npu+cpu", model.display());
    let text = machine.pianola(&plan, "").output();
    for words in ["ffn are not offered to npu", "would take", "instead of"] {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
    let usage = format!("run -m {} --device cpu --place ffn=npu hi", model.display());
    machine.pianola(&usage, "").fails(2, &["--place names npu", "npu+cpu"]);
    let wrong = format!("run -m {} --place ffn=vulkan hi", model.display());
    machine
        .pianola(&wrong, "")
        .fails(1, &["ffn is placed on 'vulkan'", "the devices of this model are"]);
    machine.pianola("run --place nose=npu hi", "").fails(2, &["'nose' is no part of a model"]);
    machine.pianola("run --device npu+cuda hi", "").fails(2, &["npu+vulkan"]);
}

/// An NPU in the process computes and has no speed.
#[cfg(feature = "npu-emulation")]
#[test]
fn an_emulated_npu_has_no_speed() {
    let machine = Machine::with_packages();
    let model = machine.folder.model();
    let emulated = |words: &str| {
        let words = words.replace("MODEL", &model.to_string_lossy());
        machine.folder.pianola(words.split(' '))
    };
    let run = emulated(&format!(
        "run -v -m MODEL --device npu+cpu --emulate-npu -n 4 --temp 0 --ignore-eos --profile {} {PROMPT}",
        machine.folder.path.join("trace.json").display()
    ));
    assert!(run.err.contains("npu (emulated)"), "{run:#?}");
    assert!(run.err.contains("has no speed, so that times say nothing"), "{run:#?}");
    assert!(!run.err.contains("tokens/s") && !run.err.contains(" ms;"), "a speed: {run:#?}");
    run.output();
    let plan = emulated("plan -m MODEL --device npu+cpu --emulate-npu --rows 64").output();
    assert!(plan.contains("npu (emulated) has no speed of its own"), "{plan}");
    assert!(plan.contains("products on npu (emulated):"), "{plan}");
    emulated("bench -m MODEL --device npu+cpu --emulate-npu").fails(2, &["has no speed"]);
    let other = common::npu::Machine::new();
    let words = format!("run --emulate-npu -m {} hi", other.folder.model().display());
    other.folder.pianola(words.split(' ')).fails(1, &["no kernel package", "pianola npu import"]);
}
