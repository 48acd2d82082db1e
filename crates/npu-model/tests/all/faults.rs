//! What goes wrong on purpose.

use std::time::{Duration, Instant};

use pianola_npu_model::{Config, Errno};

use crate::support::*;

fn ready(faults: &str) -> Ready {
    let config = Config {
        faults: faults.parse().unwrap(),
        hang_limit: Duration::from_secs(2),
        ..Config::default()
    };
    Ready::new(config, "matmul bf16 f32 128x64x64 tile=16x32x16")
}

#[test]
fn states() {
    let ready = ready("error@2,abort@3");
    assert_eq!([ready.run(), ready.run(), ready.run(), ready.run()], [4, 5, 6, 4]);
    assert_eq!(ready.result(), ready.expected());
}

#[test]
fn a_command_that_hangs() {
    let ready = ready("timeout@1");
    let other = ready.npu.command();
    ready.submit().unwrap();
    other.write(0, &ready.packet());
    ready.npu.exec(ready.context, other.handle, &ready.handles()).unwrap();
    let short = Duration::from_millis(30);
    assert_eq!(ready.npu.wait(ready.syncobj, 1, short), Err(Errno::ETIME));
    assert_eq!(ready.state(), 1, "still NEW");
    ready.npu.wait(ready.syncobj, 1, PATIENCE).unwrap();
    assert_eq!(ready.state(), 8, "the kernel gave it up");
    assert_eq!(u32_at(&other.read(4), 0) & 0xF, 6, "what waited behind it was aborted");
    assert_eq!(ready.run(), 4, "the context works again");
}

#[test]
fn other_contexts_go_on() {
    // Far longer than anything here waits.
    let config = Config {
        faults: "timeout@1".parse().unwrap(),
        hang_limit: Duration::from_secs(600),
        ..Config::default()
    };
    let ready = Ready::new(config, PRODUCT);
    ready.submit().unwrap();
    let pdi = ready.npu.dev(&pianola_npu_model::artefacts::make(&ready.kernel).pdi);
    let (context, syncobj) = ready.npu.context(16).unwrap();
    ready.npu.configure(context, &[pdi.handle]).unwrap();
    let command = ready.npu.command();
    let second = Ready { context, syncobj, command, ..ready };
    assert_eq!(second.run(), 4);
}

#[test]
fn destroying_a_context_ends_its_commands() {
    let ready = ready("timeout@1");
    ready.submit().unwrap();
    ready.npu.call_words(DESTROY_HWCTX, &[ready.context, 0]).unwrap();
    ready.npu.wait(ready.syncobj, 0, PATIENCE).unwrap();
    assert_eq!(ready.state(), 6);
}

#[test]
fn slow() {
    let ready = ready("slow=60ms@1");
    let (state, milliseconds) = time(|| ready.run());
    assert_eq!(state, 4);
    assert!(milliseconds >= 60);
    let seq = ready.submit().unwrap();
    ready.npu.wait(ready.syncobj, seq, PATIENCE).unwrap();
}

#[test]
fn a_lost_context() {
    let ready = ready("lose@2");
    assert_eq!([ready.run(), ready.run(), ready.run()], [4, 6, 1], "then the state stays NEW");
    assert!(ready.complaints().contains("was lost"));
    ready.npu.call_words(DESTROY_HWCTX, &[ready.context, 0]).unwrap();
    let pdi = ready.npu.dev(&pianola_npu_model::artefacts::make(&ready.kernel).pdi);
    let (context, syncobj) = ready.npu.context(16).unwrap();
    ready.npu.configure(context, &[pdi.handle]).unwrap();
    let ready = Ready { context, syncobj, ..ready };
    assert_eq!(ready.run(), 4);
}

#[test]
fn suspension() {
    let ready = ready("suspend@1");
    ready.submit().unwrap();
    assert_eq!(ready.npu.wait(ready.syncobj, 0, PATIENCE), Err(Errno::ENODEV));
    let submitted = ready.npu.exec(ready.context, ready.command.handle, &[]);
    assert_eq!(submitted, Err(Errno::ENODEV));
    assert_eq!(ready.npu.create(SHARE, 4096), Err(Errno::ENODEV));
    let again = ready.npu.model.open().unwrap();
    let mut argument = words(&[0, 0, 0, 0, 4096, 0, SHARE, 0]);
    ready.npu.call_on(again, CREATE_BO, &mut argument).unwrap();
}

#[test]
fn wrong_results() {
    let ready = ready("nan@1,wrong@2");
    assert_eq!(ready.run(), 4);
    let values = |bytes: Vec<u8>| -> Vec<f32> {
        bytes.chunks(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect()
    };
    assert_eq!(values(ready.result()).iter().filter(|value| value.is_nan()).count(), 1);
    assert_eq!(ready.run(), 4);
    let (result, expected) = (ready.result(), ready.expected());
    assert_eq!(result.iter().zip(&expected).filter(|(a, b)| a != b).count(), 1, "one byte differs");
    assert_eq!(ready.run(), 4);
    assert_eq!(ready.result(), ready.expected());
}

/// A mode of half the clock takes twice the time, from the command on before which it is set.
#[test]
fn power_modes() {
    let dispatch_time = Duration::from_millis(40);
    let faults = "power=3,power=1@2,power=0@3".parse().unwrap();
    let config = Config { faults, dispatch_time, ..Config::default() };
    let ready = Ready::new(config, "matmul bf16 f32 128x64x64 tile=16x32x16");
    let run = || {
        let start = Instant::now();
        assert_eq!(ready.run(), 4);
        assert_eq!(ready.result(), ready.expected());
        (get(&ready.npu, 9, 8).unwrap().0[0], start.elapsed() / 2)
    };
    assert_eq!(get(&ready.npu, 9, 8).unwrap().0[0], 3);
    assert_eq!(run().0, 3);
    let (mode, half) = run();
    assert!(mode == 1 && half >= dispatch_time, "{half:?}");
    assert_eq!(run().0, 0);
}

#[test]
fn refusals() {
    let config = |faults: &str| Config { faults: faults.parse().unwrap(), ..Config::default() };
    let npu = Npu::new(config("nomem@2,busy@1,again@2,held=5,power=2"));
    npu.heap();
    assert_eq!(npu.create(SHARE, 4096), Err(Errno::ENOMEM));
    npu.create(SHARE, 4096).unwrap();
    assert_eq!([npu.context(16), npu.context(16)], [Err(Errno::EBUSY), Err(Errno::EAGAIN)]);
    npu.context(16).unwrap();
    assert_eq!(npu.context(16), Err(Errno::EBUSY), "five are held by another process");
}
