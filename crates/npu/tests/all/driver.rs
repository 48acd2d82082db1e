//! The driver against a stand-in that holds it to the kernel's rules: what is called, in which
//! order, and what every failure is called.

use std::path::Path;
use std::time::Duration;

use crate::common::fake::{Fake, Faults};
use crate::common::files::stream_for;
use crate::common::{NODE, open};
use pianola_npu::amdxdna::{
    Buffer, BufferKind, Columns, Command, CommandState, ComputeUnit, Context, Device, DriverError,
    Generation, MAX_IN_FLIGHT, Packet, discover_with,
};

const CREATE_HWCTX: u64 = 0xC038_6440;
const CONFIG_HWCTX: u64 = 0xC018_6442;
const CREATE_BO: u64 = 0xC020_6443;
const EXEC_CMD: u64 = 0xC038_6446;
const PRIME_EXPORT: u64 = 0xC00C_642D;
const LIMIT: Duration = Duration::from_secs(1);

fn context(device: &Device) -> Result<Context, DriverError> {
    let mut pdi = Buffer::new(device, BufferKind::Device, 200)?;
    pdi.write(0, &(0..200).collect::<Vec<u8>>());
    pdi.flush(200)?;
    let columns = Columns { count: 4, operations_per_cycle: 2048 };
    Context::new(device, columns, vec![ComputeUnit { pdi, function: 0 }])
}

/// Instructions, a command on one data buffer, and the buffer.
fn command(device: &Device) -> (Buffer, Command, Buffer) {
    let stream = stream_for(1);
    let mut instructions = Buffer::new(device, BufferKind::Device, stream.len()).unwrap();
    instructions.write(0, &stream);
    instructions.flush(stream.len()).unwrap();
    let data = Buffer::new(device, BufferKind::Share, 4096).unwrap();
    let mut command = Command::new(device).unwrap();
    let words = stream.len() as u32 / 4;
    command.set(&Packet::start_cu(0, instructions.address(), words, &[data.address()]));
    (instructions, command, data)
}

#[test]
fn a_device_is_opened_and_closed_in_order() {
    let fake = Fake::new(Faults::default());
    let device = open(&fake);
    let identity = device.identity();
    assert_eq!((identity.columns, identity.rows, identity.core_rows), (5, 6, 4));
    assert_eq!(identity.generation, Generation::Npu1);
    assert_eq!(identity.firmware, [1, 5, 2, 388]);
    assert_eq!(identity.driver, (0, 6));
    drop(device);
    let expected = [
        "open",
        "version",
        "info",
        "info",
        "info",
        "create",
        "where",
        "map",
        "unmap",
        "close-buffer",
        "close",
    ];
    assert_eq!(fake.events(), expected);
    fake.finish();
}

#[test]
fn a_command_runs_in_the_documented_order() {
    for shared_page_tables in [false, true] {
        let fake = Fake::with_kernel(|buffers| buffers[0][..4].copy_from_slice(b"done"));
        fake.set_faults(Faults { shared_page_tables, ..Faults::default() });
        let device = open(&fake);
        let context = context(&device).unwrap();
        let (instructions, command, mut data) = command(&device);
        data.write(0, b"data");
        data.flush(4096).unwrap();
        let before = fake.events().len();
        let submission = context.submit(&command, &[&instructions, &data, &data]).unwrap();
        assert_eq!(context.in_flight(), 1);
        context.wait(submission, &command, LIMIT).unwrap();
        assert_eq!((context.in_flight(), command.state()), (0, CommandState::Completed));
        let mut read = [0; 4];
        data.read(0, &mut read);
        assert_eq!(&read, b"data", "the device's result is not seen before the sync");
        data.invalidate(4096).unwrap();
        data.read(0, &mut read);
        assert_eq!(&read, b"done");
        assert_eq!(fake.events()[before..], ["execute", "wait", "sync"]);
        // The device may go first by name: what depends on it keeps it.
        drop(device);
        drop(context);
        drop((instructions, command, data));
        fake.finish();
    }
}

#[test]
fn a_context_takes_four_commands() {
    let fake = Fake::new(Faults::default());
    let device = open(&fake);
    let context = context(&device).unwrap();
    let (instructions, first, data) = command(&device);
    let mut submissions = Vec::new();
    for _ in 0..MAX_IN_FLIGHT {
        submissions.push(context.submit(&first, &[&instructions, &data]).unwrap());
    }
    let error = context.submit(&first, &[&instructions, &data]).unwrap_err();
    assert!(matches!(error, DriverError::QueueFull { limit: 4 }));
    // The first point on the timeline is 0.
    context.wait(submissions.remove(0), &first, LIMIT).unwrap();
    assert_eq!(context.in_flight(), 3);
    assert!(context.submit(&first, &[&instructions, &data]).is_ok());
}

#[test]
fn chains_run_their_commands() {
    let fake = Fake::new(Faults::default());
    let device = open(&fake);
    let context = context(&device).unwrap();
    let (instructions, first, data) = command(&device);
    let (more_instructions, second, more_data) = command(&device);
    let mut chain = Command::new(&device).unwrap();
    chain.set(&Packet::chain(&[first.handle(), second.handle()]));
    let buffers = [&instructions, &data, &more_instructions, &more_data];
    let submission = context.submit(&chain, &buffers).unwrap();
    context.wait(submission, &chain, LIMIT).unwrap();
    assert_eq!(fake.commands(), 2);
    fake.set_faults(Faults { state: Some(5), ..Faults::default() });
    chain.set(&Packet::chain(&[first.handle(), second.handle()]));
    let submission = context.submit(&chain, &buffers).unwrap();
    let error = context.wait(submission, &chain, LIMIT).unwrap_err();
    let DriverError::CommandFailed { state, index } = error else { panic!("{error}") };
    assert_eq!((state, index), (CommandState::Error, Some(0)));
    assert!(!context.is_lost(), "an error of a command is not the end of its context");
    drop((context, instructions, more_instructions, first, second, chain, data, more_data, device));
    fake.finish();
}

#[test]
fn a_hanging_device_is_a_timeout_and_then_lost() {
    let fake = Fake::new(Faults { hang: true, ..Faults::default() });
    let device = open(&fake);
    let context = context(&device).unwrap();
    let (instructions, command, data) = command(&device);
    let submission = context.submit(&command, &[&instructions, &data]).unwrap();
    let error = context.wait(submission, &command, LIMIT).unwrap_err();
    assert!(matches!(error, DriverError::Timeout { .. }));
    assert!(error.to_string().contains("modprobe"));
    let error = context.submit(&command, &[&instructions, &data]).unwrap_err();
    assert!(matches!(error, DriverError::ContextLost { state: CommandState::Timeout }));
    drop((context, instructions, command, data, device));
    fake.finish();
}

#[test]
fn an_aborted_command_loses_its_context() {
    for (state, expected) in [(6, CommandState::Abort), (8, CommandState::Timeout)] {
        let fake = Fake::new(Faults { state: Some(state), ..Faults::default() });
        let device = open(&fake);
        let context = context(&device).unwrap();
        let (instructions, command, data) = command(&device);
        let submission = context.submit(&command, &[&instructions, &data]).unwrap();
        let error = context.wait(submission, &command, LIMIT).unwrap_err();
        let DriverError::ContextLost { state } = error else { panic!("{error}") };
        assert_eq!(state, expected);
        assert!(context.is_lost());
    }
}

#[test]
fn failures_have_names_and_give_everything_back() {
    type Test = fn(&DriverError) -> bool;
    let cases: [(u64, usize, i32, Test); 6] = [
        (CREATE_HWCTX, 0, libc::ENOENT, |e| matches!(e, DriverError::NoFreeContext { .. })),
        (CREATE_HWCTX, 0, libc::EINVAL, |e| matches!(e, DriverError::Call { .. })),
        (CREATE_HWCTX, 0, libc::ENODEV, |e| matches!(e, DriverError::DeviceLost { .. })),
        (CONFIG_HWCTX, 0, libc::EINVAL, |e| matches!(e, DriverError::Call { .. })),
        (CREATE_BO, 1, libc::ENOMEM, |e| matches!(e, DriverError::HeapFull { .. })),
        (CREATE_BO, 1, libc::EAGAIN, |e| matches!(e, DriverError::HeapFull { .. })),
    ];
    for (request, from, errno, expected) in cases {
        let fake = Fake::new(Faults { fail: Some((request, from, errno)), ..Faults::default() });
        let device = open(&fake);
        let error = context(&device).unwrap_err();
        assert!(expected(&error), "{error}");
        drop(device);
        fake.finish();
    }
    // Contexts that others hold tell a full device from a refused argument.
    let fake = Fake::new(Faults { contexts: 6, ..Faults::default() });
    let device = open(&fake);
    let error = context(&device).unwrap_err();
    let DriverError::NoFreeContext { in_use, limit } = error else { panic!("{error}") };
    assert_eq!((in_use, limit), (Some(6), 6));
    assert_eq!(fake.count(EXEC_CMD), 0);
}

#[test]
fn opening_fails_with_the_fix() {
    let open_with = |faults| {
        let fake = Fake::new(faults);
        let error = Device::open_with(fake.clone(), Path::new(NODE)).unwrap_err();
        fake.finish();
        error
    };
    let error = open_with(Faults { open: Some(libc::EACCES), ..Faults::default() });
    assert!(error.to_string().contains("usermod -aG render"), "{error}");
    let error = open_with(Faults { name: Some("ivpu"), ..Faults::default() });
    assert!(matches!(error, DriverError::ForeignDriver { .. }));
    let error = open_with(Faults { fail: Some((CREATE_BO, 0, libc::ENOMEM)), ..Faults::default() });
    let named = matches!(error, DriverError::OutOfMemory { .. } | DriverError::LockedMemory { .. });
    assert!(named, "{error}");
    let error = open_with(Faults { mmap: Some(libc::EAGAIN), ..Faults::default() });
    let named = matches!(error, DriverError::Call { .. } | DriverError::LockedMemory { .. });
    assert!(named, "{error}");
}

#[test]
fn discovery_lists_npus_and_says_why_there_are_none() {
    let fake = Fake::new(Faults { contexts: 2, ..Faults::default() });
    let found = discover_with(fake.clone(), Path::new("/nonexistent")).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].identity.path, Path::new(NODE));
    assert_eq!(found[0].contexts.as_ref().unwrap().len(), 2);
    fake.finish();
    let none = |faults| discover_with(Fake::new(faults), Path::new("/nonexistent")).unwrap_err();
    let foreign = none(Faults { name: Some("ivpu"), ..Faults::default() });
    assert!(matches!(foreign, DriverError::NoDevice));
    let refused = none(Faults { open: Some(libc::EACCES), ..Faults::default() });
    assert!(matches!(refused, DriverError::Permission { .. }));
}

#[test]
#[allow(unsafe_code)] // Imported memory has several owners.
fn share_buffers_are_exported_and_imported() {
    let fake = Fake::new(Faults::default());
    let device = open(&fake);
    let mut buffer = Buffer::new(&device, BufferKind::Share, 5000).unwrap();
    assert_eq!(buffer.len(), 8192);
    let exported = buffer.export().unwrap();
    // SAFETY: one thread uses both.
    let imported = unsafe { Buffer::import(&device, exported.fd(), 5000) }.unwrap();
    // One handle, which stays open until the last of both goes.
    assert_eq!(imported.handle(), buffer.handle());
    buffer.write(100, b"shared");
    let mut read = [0; 6];
    imported.read(100, &mut read);
    assert_eq!(&read, b"shared");
    drop(imported);
    buffer.flush(5000).unwrap();
    drop(exported);
    assert_eq!(fake.events().last().unwrap(), "close-fd");
    let kept = buffer.export().unwrap().into_fd();
    assert!(kept > 0);
    assert_ne!(fake.events().last().unwrap(), "close-fd");
    let inside = Buffer::new(&device, BufferKind::Device, 1).unwrap();
    assert!(matches!(inside.export(), Err(DriverError::NotShareable)));
    let fail = Some((PRIME_EXPORT, 0, libc::EOPNOTSUPP));
    fake.set_faults(Faults { fail, ..Faults::default() });
    let Err(error) = buffer.export() else { panic!("exported") };
    assert!(error.to_string().contains("6.15"), "{error}");
    drop((buffer, inside, device));
    fake.finish();
}

#[test]
#[should_panic(expected = "outside of the buffer")]
fn writes_stay_inside() {
    let fake = Fake::new(Faults::default());
    let device = open(&fake);
    let mut inside = Buffer::new(&device, BufferKind::Device, 4096).unwrap();
    inside.write(4090, &[0; 7]);
}
