//! Whether a buffer passes between the NPU's driver and another one (PRIME): bytes that one side writes are
//! read by the other, in buffers of either.
//!
//! Never yet done on a real device. What is compared is what the processor sees through the NPU's mapping; no
//! kernel of the array reads or writes the buffer.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::amdxdna::{Buffer, BufferKind, Device};

/// Bytes of the buffers that are tried: some hundred pages, so that they do not lie in one piece.
pub const BYTES: usize = 1 << 20;

/// What another driver says of a failure.
pub type Failure = Box<dyn std::error::Error>;

/// Another driver, which takes descriptors of memory and gives them.
pub trait OtherDriver {
    /// The memory behind a descriptor as a buffer of the driver's.
    fn import(&mut self, fd: OwnedFd, bytes: usize) -> Result<Box<dyn OtherBuffer>, Failure>;

    /// A buffer of the driver's own, with a descriptor of its memory.
    fn export(&mut self, bytes: usize) -> Result<(Box<dyn OtherBuffer>, OwnedFd), Failure>;
}

/// A buffer of another driver's. Its device has ended what a call asked for when the call returns.
pub trait OtherBuffer {
    /// Lets the device write.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure>;

    /// Lets the device read.
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Failure>;
}

/// Whose memory was shared, and which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Whether the NPU's driver made the buffer.
    pub of_npu: bool,
    /// Whether the bytes went to the NPU's side.
    pub to_npu: bool,
}

/// What became of one passage.
#[derive(Debug)]
pub struct Outcome {
    /// Which.
    pub passage: Passage,
    /// Whether the bytes arrived, or why not.
    pub result: Result<(), String>,
}

/// Tries all four passages.
pub fn check(device: &Device, other: &mut dyn OtherDriver) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for of_npu in [true, false] {
        let pair = match of_npu {
            true => lend(device, other),
            false => borrow(device, other),
        };
        match pair {
            Ok((mut npu, mut theirs)) => {
                for to_npu in [true, false] {
                    let result = pass(&mut npu, &mut *theirs, to_npu);
                    let result = result.map_err(|failure| failure.to_string());
                    outcomes.push(Outcome { passage: Passage { of_npu, to_npu }, result });
                }
            }
            Err(failure) => {
                let failed = |to_npu| Outcome {
                    passage: Passage { of_npu, to_npu },
                    result: Err(failure.to_string()),
                };
                outcomes.extend([true, false].map(failed));
            }
        }
    }
    outcomes
}

type Pair = (Buffer, Box<dyn OtherBuffer>);

/// A buffer of the NPU's for the other driver.
fn lend(device: &Device, other: &mut dyn OtherDriver) -> Result<Pair, Failure> {
    let buffer = Buffer::new(device, BufferKind::Share, BYTES)?;
    let theirs = other.import(buffer.export()?.to_owned_fd()?, BYTES)?;
    Ok((buffer, theirs))
}

/// A buffer of the other driver's for the NPU.
#[allow(unsafe_code)]
fn borrow(device: &Device, other: &mut dyn OtherDriver) -> Result<Pair, Failure> {
    let (theirs, fd) = other.export(BYTES)?;
    // SAFETY: of the other owners only `theirs` is known, and it is used by this module alone, in turns: a
    // call of it has ended before the mapping is used, and the reverse.
    let buffer = unsafe { Buffer::import(device, fd.as_raw_fd(), BYTES) }?;
    Ok((buffer, theirs))
}

/// One side writes a pattern of its own over what is there, the other reads it.
fn pass(npu: &mut Buffer, theirs: &mut dyn OtherBuffer, to_npu: bool) -> Result<(), Failure> {
    let sent = pattern(if to_npu { 0x5DEE_CE66 } else { 0x2545_F491 });
    let mut found = vec![0; BYTES];
    if to_npu {
        npu.fill(0, BYTES, 0xAA);
        npu.flush(BYTES)?;
        theirs.write(&sent)?;
        npu.invalidate(BYTES)?;
        npu.read(0, &mut found);
    } else {
        npu.write(0, &sent);
        npu.flush(BYTES)?;
        theirs.read(&mut found)?;
    }
    match found.iter().zip(&sent).position(|(found, sent)| found != sent) {
        None => Ok(()),
        Some(at) => {
            let wrong = found.iter().zip(&sent).filter(|(found, sent)| found != sent).count();
            Err(format!("{wrong} of {BYTES} bytes are others, the first at {at}").into())
        }
    }
}

/// Bytes that tell one place from another.
fn pattern(seed: u32) -> Vec<u8> {
    let word = |at: u32| (at ^ seed).wrapping_mul(0x9E37_79B9).to_le_bytes();
    (0..BYTES as u32 / 4).flat_map(word).collect()
}
