//! `run` and `plan` with an NPU through the binary: with an emulated NPU behind the device node, of which
//! the binary knows nothing, and with one inside it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use crate::common;
use crate::common::Run;
use crate::common::npu::Machine;

/// More tokens than a step has to have for the NPU.
const PROMPT: &str = "stately_plump_buck_mulligan_came_from_the_stairhead_bearing_a_bowl_of_lather";

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
    for fault in ["slow=20ms@40-60", "power=1", "power=3,power=1@45"] {
        let run = placed(&machine, fault);
        assert!(!run.err.contains("in place of"), "{fault}: {run:#?}");
        assert_eq!(run.output(), expected, "{fault}");
    }
}

/// A step that the NPU fails is computed again by the device that has the model, from the keys and values that
/// it began with: the text is that of a run without faults, with one warning.
#[test]
fn a_step_that_fails_is_computed_again() {
    let machine = Machine::with_packages();
    let model = machine.folder.model();
    let words = |device: &str, more: &str| {
        format!(
            "run -v -m {} --device {device} -n 8 --temp 0 --ignore-eos{more} {PROMPT}",
            model.display()
        )
    };
    const TRIED: &str = " --npu-work always --npu-precision bf16";
    let vulkan = common::vulkan_device();
    // Self-tests and loading take 5 commands, the prompt more than 20.
    let all: &[&str] =
        &["timeout@8", "error@9", "abort@10", "lose@12", "suspend@14", "nan@16", "error@20+"];
    for (main, faults) in [("cpu", all), (vulkan.as_str(), &["abort@10", "nan@16"])] {
        let run = |words: &str, faults: &str| match main {
            "cpu" => machine.pianola(words, faults),
            _ => machine.pianola_vulkan(words, faults),
        };
        let tried = words(&format!("npu+{main}"), TRIED);
        let sound = run(&tried, "");
        assert!(sound.err.contains("products of prompts on npu"), "{sound:#?}");
        assert!(!sound.err.contains("computed without"), "{sound:#?}");
        let expected = sound.output();
        assert!(expected.trim().len() > 4, "{expected}");
        assert_eq!(run(&words(main, ""), "").output(), expected, "{main}");
        for fault in faults {
            let run = run(&tried, fault);
            let told = run.err.matches("the step is computed without npu").count();
            assert_eq!(told, 1, "npu+{main}, {fault}: {run:#?}");
            assert_eq!(run.output(), expected, "npu+{main}, {fault}");
        }
    }
    // Loading fails, and then there is nothing to be tried again.
    let failed = machine.pianola(&words("npu+cpu", TRIED), "error@4");
    assert_eq!(failed.err.matches("everything is computed without npu").count(), 1, "{failed:#?}");
    assert!(!failed.err.contains("always use npu"), "{failed:#?}");
    // In the middle of the prompt somebody saves power.
    let slow = machine.pianola(&words("npu+cpu", TRIED), "power=4,power=1@10");
    assert!(!slow.err.contains("computed without"), "{slow:#?}");
    slow.output();
    let nothing = words("cpu", " --npu-work always");
    machine.pianola(&nothing, "").fails(2, &["--npu-work wants npu", "npu+cpu"]);
}

/// A package that computes wrongly or cannot be read is named at the start and in the plan, and the others
/// compute.
#[test]
fn packages_that_are_not_used_are_named() {
    let machine = Machine::with_packages();
    let (stem, _, options) = common::npu::KERNELS[0];
    // The build's B is row-major.
    let name = "--name matmul_i8_128x16x64 --replace";
    machine.import(stem, &format!("{options} --b-layout column {name}")).output();
    let model = machine.folder.model();
    let plan = format!("plan -m {} --device npu+cpu --npu-work always", model.display());
    let run = machine.pianola(&plan, "");
    const NAMED: &str = "npu: a kernel package is not used: matmul_i8_128x16x64: ";
    for text in [&run.err, &run.out] {
        assert_eq!(text.matches(NAMED).count(), 1, "{run:#?}");
        assert!(text.contains("computes wrongly"), "{run:#?}");
    }
    assert!(run.out.contains("bf16 by bf16"), "{run:#?}");
    let words = format!("run -m {} --device npu+cpu -n 2 hello", model.display());
    let run = machine.pianola(&words, "");
    assert_eq!(run.err.matches(NAMED).count(), 1, "{run:#?}");
    run.output();
    // And one that is damaged.
    let manifest = machine.folder.path.join("npu_kernels/npu1/bf16.json");
    std::fs::write(&manifest, "{").unwrap();
    machine.import(stem, &format!("{options} --replace")).output();
    let run = machine.pianola(&plan, "");
    assert!(run.err.contains("npu: a kernel package is not used: bf16: "), "{run:#?}");
    assert!(run.out.contains("int8 by matmul_i8_128x16x64"), "{run:#?}");
}

/// Without being asked, an NPU that is there is opened, and the text is that of the processor where the NPU
/// does not pay.
#[test]
fn auto_opens_an_npu_that_is_there() {
    let machine = Machine::with_packages();
    let model = machine.folder.model();
    let run = |words: &str, faults: &str| {
        let words =
            format!("run -m {} -n 8 --temp 0 --ignore-eos{words} {PROMPT}", model.display());
        machine.pianola(&words, faults)
    };
    let expected = run(" --device cpu", "").output();
    let found = run("", "");
    for words in ["tiny on cpu", "npu: npu (npu1, firmware 1.5.5.391, int8 by matmul_i8_128x16x64)"]
    {
        assert!(found.err.contains(words), "no '{words}': {found:#?}");
    }
    assert_eq!(found.output(), expected);
    // One that cannot be used is no news to somebody who did not ask for it.
    let taken = run("", "held=6");
    assert!(!taken.err.contains("npu"), "{taken:#?}");
    assert_eq!(taken.output(), expected);
}

/// The command of docs/how-to/try-an-npu.md: all products of a model against the processor's exact
/// mode.
#[test]
fn a_model_is_checked_on_the_npu() {
    let machine = Machine::with_packages();
    let check = format!("check -m {} --device npu", machine.folder.model().display());
    for (precision, words) in [("", "layers in int8"), (" --npu-precision bf16", "layers in bf16")]
    {
        let text = machine.pianola(&format!("{check}{precision}"), "").output();
        assert!(text.contains("  ok    logits of 96 tokens"), "{text}");
        assert!(text.contains(words), "{text}");
    }
    let lost = machine.pianola(&format!("{check} --npu-precision bf16"), "error@10");
    lost.fails(1, &["state Error"]);
}

/// Each part of a model on a device by its name.
#[test]
fn attention_and_feed_forward_are_placed_by_name() {
    let machine = Machine::with_packages();
    let model = machine.folder.model();
    let words = |command: &str| {
        let device = common::vulkan_device();
        let place = "--place attention=npu,ffn=vulkan";
        format!("{command} -m {} --device npu+{device} {place}", model.display())
    };
    let plan = machine.pianola_vulkan(&words("plan"), "").output();
    assert!(plan.contains("on npu") && plan.contains("on vulkan"), "{plan}");
    let run = format!("{} -v -n 8 --temp 0 --ignore-eos {PROMPT}", words("run"));
    let sound = machine.pianola_vulkan(&run, "");
    assert!(sound.err.contains("npu"), "{sound:#?}");
    assert!(!sound.err.contains("not used") && !sound.err.contains("in place of"), "{sound:#?}");
    let expected = sound.output();
    assert!(expected.trim().len() > 4, "{expected}");
    let failed = machine.pianola_vulkan(&run, "error@10");
    assert_eq!(failed.err.matches("computes in place of npu").count(), 1, "{failed:#?}");
    assert_eq!(failed.output(), expected);
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
    // Products of bytes and attention by another package: there and back in each layer.
    let placed = format!("{plan} --place projections=npu,attention=npu,ffn=npu");
    let costs = machine.pianola(&placed, "").output();
    for words in ["changes its array's configuration", "2 ms each", "converts the weights of npu"] {
        assert!(costs.contains(words), "no '{words}' in {costs}");
    }
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
    assert!(plan.contains("npu (emulated) is emulated and has no speed"), "{plan}");
    assert!(plan.contains("products on npu (emulated):"), "{plan}");
    emulated("bench -m MODEL --device npu+cpu --emulate-npu").fails(2, &["has no speed"]);
    emulated("serve -m MODEL --device npu+cpu --emulate-npu --port 0").fails(2, &["has no speed"]);
    let other = common::npu::Machine::new();
    let words = format!("run --emulate-npu -m {} hi", other.folder.model().display());
    other.folder.pianola(words.split(' ')).fails(1, &["no kernel package", "pianola npu import"]);
}
