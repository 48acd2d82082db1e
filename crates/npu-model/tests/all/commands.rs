//! Commands: packets, streams, coherence, results.

use std::time::Duration;

use pianola_npu_model::{Addressing, Config, Errno, artefacts, pack, parse_kernels};

use crate::support::*;

fn ready() -> Ready {
    Ready::new(Config::default(), PRODUCT)
}

const COMPLETED: u32 = 4;
const ERROR: u32 = 5;
const NEW: u32 = 1;

/// A plain loop, apart from the model's own arithmetic.
fn product(a: &[u8], b: &[u8], (m, k, n): (usize, usize, usize)) -> Vec<u8> {
    let mut c = Vec::new();
    for row in 0..m {
        for column in 0..n {
            let mut sum = 0i32;
            for i in 0..k {
                sum += i32::from(a[row * k + i] as i8) * i32::from(b[i * n + column] as i8);
            }
            c.extend(sum.to_le_bytes());
        }
    }
    c
}

#[test]
fn a_product() {
    for addressing in [Addressing::UserImplied, Addressing::User, Addressing::Dma] {
        let ready = Ready::new(Config { addressing, ..Config::default() }, PRODUCT);
        let seq = ready.submit().unwrap();
        assert_eq!(seq, 0, "the first point of a context");
        ready.npu.wait(ready.syncobj, seq, PATIENCE).unwrap();
        assert_eq!(ready.state(), COMPLETED, "{}", ready.complaints());
        let [a, b] = [0, 1].map(|index| ready.tensors[index].read(ready.tensors[index].size));
        assert_eq!(ready.result(), product(&a, &b, (128, 64, 64)));
        assert_eq!(ready.submit().unwrap(), 1);
        ready.npu.wait(ready.syncobj, 1, PATIENCE).unwrap();
        assert_eq!(ready.complaints(), "");
    }
}

#[test]
fn every_kind_of_kernel() {
    for line in [
        "matmul i8 i8 128x64x64 tile=16x32x16 shift=6 rounding=12 saturate",
        "matmul i8 i16 128x64x64 tile=16x32x16 shift=3 layout=column",
        "matmul bf16 f32 128x64x64 tile=16x32x16",
        "matmul bf16 bf16 128x64x64 tile=16x32x16 layout=packed rounding=12 activation=silu",
        "attention heads=2 kv_heads=1 lq=256 lk=256 dk=64 dv=64 causal",
    ] {
        let ready = Ready::new(Config::default(), line);
        assert_eq!(ready.run(), COMPLETED, "{line}: {}", ready.complaints());
        let result = ready.result();
        assert_eq!(result, ready.expected(), "{line}");
        assert!(result.iter().any(|byte| *byte != 0));
    }
}

#[test]
fn packing_is_what_the_kernel_reads() {
    let line = "matmul i8 i32 64x64x64 tile=16x32x32 columns=1 layout=packed";
    let ready = Ready::new(Config::default(), line);
    let [a, b] = [noise(64 * 64, 5), noise(64 * 64, 6)];
    ready.tensors[0].write(0, &a);
    let tile = pianola_npu_model::Tile { m: 16, k: 32, n: 32 };
    ready.tensors[1].write(0, &pack(&b, (64, 64), tile, 1));
    ready.tensors[..2].iter().for_each(|it| ready.npu.sync(it.handle, 0, 0, 1 << 30).unwrap());
    assert_eq!(ready.run(), COMPLETED, "{}", ready.complaints());
    assert_eq!(ready.result(), product(&a, &b, (64, 64, 64)));
}

#[test]
fn start_npu() {
    let ready = ready();
    let instructions = ready.device_address(&ready.instructions);
    let mut packet =
        vec![0, 1, low(instructions), high(instructions), ready.instruction_bytes as u32, 0];
    for tensor in &ready.tensors {
        let address = ready.device_address(tensor);
        packet.extend([low(address), high(address)]);
    }
    packet[0] = 0x3A00_0001 | (packet.len() as u32 - 1) << 12;
    ready.command.write(0, &words(&packet));
    assert_eq!(ready.run_packet(&ready.handles()), COMPLETED, "{}", ready.complaints());
    assert_eq!(ready.result(), ready.expected());
}

/// A chain of the command `count` times; the handles of the commands.
fn chain(ready: &Ready, count: usize) -> (Mapped, Vec<Mapped>) {
    let commands: Vec<Mapped> = (0..count).map(|_| ready.npu.command()).collect();
    commands.iter().for_each(|command| command.write(0, &ready.packet()));
    let mut packet = vec![0, count as u32, 0, 77, 0, 0, 0];
    commands.iter().for_each(|command| packet.extend([command.handle, 0]));
    packet[0] = 0x3980_0001 | (packet.len() as u32 - 1) << 12;
    let chain = ready.npu.command();
    chain.write(0, &words(&packet));
    (chain, commands)
}

#[test]
fn chains() {
    let mut ready = ready();
    let (packet, commands) = chain(&ready, 36);
    ready.command = packet;
    assert_eq!(ready.run_packet(&ready.handles()), COMPLETED, "{}", ready.complaints());
    assert_eq!(ready.result(), ready.expected());
    // The third command names a unit that was not configured.
    commands[2].write(4, &2u32.to_le_bytes());
    assert_eq!(ready.run_packet(&ready.handles()), ERROR);
    assert_eq!(u32_at(&ready.command.read(16), 12), 2, "error_index");
    // START_NPU among START_CU.
    commands[2].write(0, &words(&[0x3A01_0001]));
    assert_eq!(ready.run_packet(&ready.handles()), NEW, "{}", ready.complaints());
    let (packet, _) = chain(&ready, 61);
    ready.command = packet;
    assert_eq!(ready.run_packet(&ready.handles()), NEW, "more than 4 KiB of commands");
    assert!(ready.complaints().contains("command list"));
    ready.command.write(28, &999u64.to_le_bytes());
    assert_eq!(ready.run_packet(&ready.handles()), NEW, "no such command buffer");
}

#[test]
fn submission_rules() {
    let ready = ready();
    let npu = &ready.npu;
    ready.command.write(0, &ready.packet());
    let handles = ready.handles();
    assert_eq!(npu.exec(9, ready.command.handle, &handles), Err(Errno::EINVAL), "context");
    assert_eq!(
        npu.exec(ready.context, handles[1], &handles),
        Err(Errno::EINVAL),
        "not a CMD buffer"
    );
    assert_eq!(npu.exec(ready.context, 99, &handles), Err(Errno::EINVAL));
    assert_eq!(npu.exec(ready.context, ready.command.handle, &[99]), Err(Errno::ENOENT));
    assert_eq!(npu.exec(ready.context, ready.command.handle, &vec![1; 4096]), Err(Errno::EINVAL));
    let at = handles.as_ptr() as u64;
    let good = [
        0,
        0,
        0,
        0,
        ready.context,
        0,
        ready.command.handle,
        0,
        low(at),
        high(at),
        1,
        handles.len() as u32,
        0,
        0,
    ];
    for (index, value, errno) in [
        (0, 1, Errno::EINVAL),
        (2, 1, Errno::EINVAL),
        (5, 1, Errno::EINVAL),
        (10, 2, Errno::EINVAL),
        (10, 0, Errno::EINVAL),
        (9, 0xFFFF_0000, Errno::EFAULT),
    ] {
        let mut argument = good;
        argument[index] = value;
        assert_eq!(npu.call_words(EXEC_CMD, &argument), Err(errno), "word {index}");
    }
    let (fresh, _) = npu.context(16).unwrap();
    assert_eq!(npu.exec(fresh, ready.command.handle, &handles), Err(Errno::EINVAL), "no CONFIG_CU");
}

#[test]
fn stale_data() {
    let ready = ready();
    let old = ready.expected();
    assert_eq!(ready.run(), COMPLETED);
    let input = &ready.tensors[0];
    assert_eq!(ready.output().read(8), [0; 8], "not invalidated: what the host had");
    assert_eq!(ready.result(), old);
    // A new input that was not flushed.
    input.write(0, &noise(input.size, 99));
    assert_eq!(ready.run(), COMPLETED);
    assert_eq!(ready.result(), old);
    ready.npu.sync(input.handle, 0, 0, input.size as u64).unwrap();
    assert_eq!(ready.run(), COMPLETED);
    assert_ne!(ready.expected(), old);
    assert_eq!(ready.result(), ready.expected());
    assert_eq!(ready.complaints(), "");
    // Half of it only.
    input.write(0, &noise(input.size, 100));
    ready.npu.sync(input.handle, 0, 0, input.size as u64 / 2).unwrap();
    assert_eq!(ready.run(), COMPLETED);
    let (result, expected) = (ready.result(), ready.expected());
    assert_eq!(result[..result.len() / 2], expected[..result.len() / 2]);
    assert_ne!(result, expected);
    // An output that the host wrote and did not flush.
    ready.output().write(0, &[7; 64]);
    assert_eq!(ready.run(), COMPLETED);
    assert_eq!(ready.result()[..64], [7; 64]);
    assert!(ready.complaints().contains("flush outputs"));
}

#[test]
fn a_fresh_output_has_to_be_flushed() {
    let mut ready = ready();
    let fresh = ready.npu.share(ready.output().size);
    *ready.tensors.last_mut().unwrap() = fresh;
    assert_eq!(ready.run(), COMPLETED);
    assert!(
        ready.result().iter().all(|byte| *byte == 0),
        "zeros of fresh pages were evicted over it"
    );
    ready.npu.sync(fresh.handle, 0, 0, fresh.size as u64).unwrap();
    assert_eq!(ready.run(), COMPLETED);
    assert_eq!(ready.result(), ready.expected());
}

#[test]
fn instructions_and_pdi_have_to_be_flushed() {
    let ready = ready();
    let bytes = ready.instructions.read(ready.instruction_bytes);
    let unflushed = ready.npu.create(DEV, bytes.len() as u64).unwrap();
    let [_, vaddr, address] = ready.npu.info(unflushed).unwrap();
    Mapped { handle: unflushed, address: vaddr as *mut u8, size: bytes.len() }.write(0, &bytes);
    let mut packet = ready.packet();
    packet[16..24].copy_from_slice(&address.to_le_bytes());
    ready.command.write(0, &packet);
    let mut handles = ready.handles();
    handles[0] = unflushed;
    assert_eq!(ready.run_packet(&handles), ERROR);
    assert!(ready.complaints().contains("the header says 0 bytes"));
    let (context, syncobj) = ready.npu.context(16).unwrap();
    ready.npu.configure(context, &[ready.npu.create(DEV, 4096).unwrap()]).unwrap();
    let ready = Ready { context, syncobj, ..ready };
    assert_eq!(ready.run(), ERROR);
    assert!(ready.complaints().contains("was it flushed"));
}

/// Each change of a good packet or its handles, and what the model says.
#[test]
fn what_the_device_faults_on() {
    let ready = ready();
    let good = ready.packet();
    let handles = ready.handles();
    let fails = |change: &dyn Fn(&mut Vec<u8>), handles: &[u32], with: &str| {
        let mut packet = good.clone();
        change(&mut packet);
        ready.command.write(0, &packet);
        assert_eq!(ready.run_packet(handles), ERROR, "{with}");
        let complaints = ready.complaints();
        assert!(complaints.contains(with), "{with}: {complaints}");
    };
    let nothing: &dyn Fn(&mut Vec<u8>) = &|_| {};
    fails(nothing, &handles[1..], "the instruction stream at");
    fails(nothing, &[&handles[..1], &handles[2..]].concat(), "argument 0 at");
    fails(nothing, &handles[..3], "argument 2 at");
    fails(&|packet| packet[8] = 2, &handles, "first argument is 2");
    fails(&|packet| packet[24] += 1, &handles, "the header says");
    fails(&|packet| packet[4] = 4, &handles, "unit 2 was not configured");
    fails(&|packet| packet[28..36].fill(0), &handles, "argument 0, which the packet lacks");
    // A buffer that is too small for the descriptors.
    let small = ready.npu.share(4096);
    let address = ready.device_address(&small).to_le_bytes();
    let with_small = [handles.clone(), vec![small.handle]].concat();
    fails(&|packet| packet[28..36].copy_from_slice(&address), &with_small, "argument 0");
    // An address in the middle: the rest is too short.
    let middle = (ready.device_address(&ready.tensors[0]) + 4096).to_le_bytes();
    fails(&|packet| packet[28..36].copy_from_slice(&middle), &handles, "argument 0");
    // A closed handle is not found at all.
    ready.npu.call_words(GEM_CLOSE, &[handles[2], 0]).unwrap();
    assert_eq!(ready.npu.exec(ready.context, ready.command.handle, &handles), Err(Errno::ENOENT));
}

#[test]
fn streams_of_another_machine() {
    for (at, value, with) in [
        (2, 4, "generation 4"),
        (4, 6, "6 columns"),
        (0, 1, "version 1.1"),
        (3, 5, "5 rows"),
        (8, 1, "operations end"),
    ] {
        let mut ready = ready();
        let mut bytes = ready.instructions.read(ready.instruction_bytes);
        bytes[at] = value;
        ready.instructions = ready.npu.dev(&bytes);
        assert_eq!(ready.run(), ERROR);
        let complaints = ready.complaints();
        assert!(complaints.contains(with), "{with}: {complaints}");
    }
}

#[test]
fn a_context_of_fewer_columns() {
    let ready = ready();
    ready.npu.call_words(DESTROY_HWCTX, &[ready.context, 0]).unwrap();
    let (context, syncobj) = ready.npu.context(8).unwrap();
    let pdi = ready.npu.dev(&artefacts::make(&ready.kernel).pdi);
    ready.npu.configure(context, &[pdi.handle]).unwrap();
    let ready = Ready { context, syncobj, ..ready };
    assert_eq!(ready.run(), ERROR);
    assert!(ready.complaints().contains("the context has 2"));
}

#[test]
fn one_pdi_for_several_shapes() {
    let ready = ready();
    let other = "matmul i8 i32 128x32x64 tile=16x32x16 columns=4";
    let kernel = parse_kernels(other).unwrap().remove(0).kernel;
    let stream = artefacts::instructions(&kernel);
    let pdi = artefacts::make(&ready.kernel).pdi;
    ready.npu.model.register(&pdi, Some(&stream), kernel.clone()).unwrap();
    assert_eq!(ready.run(), COMPLETED);
    assert_eq!(ready.result(), ready.expected());
    let instruction_bytes = stream.len();
    let instructions = ready.npu.dev(&stream);
    let ready = Ready { instructions, instruction_bytes, kernel, ..ready };
    assert_eq!(ready.run(), COMPLETED, "{}", ready.complaints());
    let [a, b] = [0, 1].map(|index| ready.tensors[index].read(ready.tensors[index].size));
    assert_eq!(ready.result(), product(&a[..128 * 32], &b[..32 * 64], (128, 32, 64)));
}

#[test]
fn waiting() {
    let ready = ready();
    let npu = &ready.npu;
    assert_eq!(npu.wait(99, 0, PATIENCE), Err(Errno::ENOENT));
    assert_eq!(npu.wait(ready.syncobj, 0, PATIENCE), Err(Errno::EINVAL), "nothing was submitted");
    assert_eq!(npu.wait_flags(ready.syncobj, 0, PATIENCE, 16), Err(Errno::EINVAL), "flags");
    let short = Duration::from_millis(20);
    let (result, milliseconds) = time(|| npu.wait_flags(ready.syncobj, 0, short, 2));
    assert_eq!(result, Err(Errno::ETIME), "WAIT_FOR_SUBMIT waits");
    assert!(milliseconds >= 20);
    assert_eq!(
        npu.call_words(TIMELINE_WAIT, &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
        Err(Errno::EFAULT)
    );
    npu.call_words(TIMELINE_WAIT, &[0; 12]).unwrap();
    ready.submit().unwrap();
    assert_eq!(
        npu.wait(ready.syncobj, 1, PATIENCE),
        Err(Errno::EINVAL),
        "point 1 is not submitted"
    );
    npu.wait(ready.syncobj, 0, PATIENCE).unwrap();
}

#[test]
fn four_commands_in_flight() {
    let config = Config { dispatch_time: Duration::from_secs(1), ..Config::default() };
    let ready = Ready::new(config, PRODUCT);
    let (_, milliseconds) = time(|| {
        let (_, milliseconds) = time(|| (0..4).for_each(|_| assert!(ready.submit().is_ok())));
        assert!(milliseconds < 1000, "four are taken before the first ends: {milliseconds} ms");
        ready.submit().unwrap();
    });
    assert!(milliseconds >= 1000, "the fifth waits for it: {milliseconds} ms");
    ready.npu.wait(ready.syncobj, 4, PATIENCE).unwrap();
    assert_eq!(ready.state(), COMPLETED);
}
