//! Instruction streams (TXN): what the firmware writes to the array's registers.

use thiserror::Error;

use crate::bytes::{get_u32, get_u64, words};
use crate::descriptor::Descriptor;

/// A stream that walks exactly to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// 3 for this NPU, 4 for its successor.
    pub(crate) generation: u32,
    /// Columns of the array that the stream was made for.
    pub(crate) columns: u32,
    /// The highest column that an operation writes to.
    pub(crate) last_column: u32,
    /// Descriptors that take the address of an argument.
    pub(crate) patches: Vec<Patch>,
}

/// A DDR_PATCH: the address of an argument goes into a buffer descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Index of the data buffer.
    pub(crate) argument: usize,
    /// Bytes from the buffer's start.
    pub(crate) offset: u64,
    /// What the descriptor reaches from there.
    pub(crate) descriptor: Descriptor,
}

/// What is wrong with a stream.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum StreamError {
    #[error("a stream of {0} bytes has no header")]
    NoHeader(usize),
    #[error("the header says {said} bytes and the packet {given}")]
    Size { said: u32, given: usize },
    #[error("version {0}.{1} of the stream is not 0.1")]
    Version(u32, u32),
    #[error("{0} rows of the array; there are 6")]
    Rows(u32),
    #[error("operation {index} at byte {at} runs past the end")]
    Overrun { index: u32, at: usize },
    #[error(
        "operation {index} at byte {at} has the code {code:#x}, which the firmware does not know"
    )]
    Code { index: u32, at: usize, code: u8 },
    #[error("operation {index} at byte {at} says {said} bytes")]
    OperationSize { index: u32, at: usize, said: u32 },
    #[error("the {0} operations end at byte {1}, before the end")]
    Rest(u32, usize),
    #[error("DDR_PATCH of register {0:#x} lies in no BLOCKWRITE before it")]
    LoosePatch(u64),
    #[error("DDR_PATCH names argument {0}; the firmware translates the first five")]
    Argument(u64),
}

/// Bits of a register's address that name the column and the row.
const COLUMN_SHIFT: u32 = 25;

/// A BLOCKWRITE so far.
struct Block {
    address: u64,
    data: Vec<u32>,
}

/// Decodes a stream of exactly `bytes`.
pub(crate) fn decode(bytes: &[u8]) -> Result<Stream, StreamError> {
    let field = |at| get_u32(bytes, at).ok_or(StreamError::NoHeader(bytes.len()));
    let (version, geometry, count, said) = (field(0)?, field(4)?, field(8)?, field(12)?);
    if said as usize != bytes.len() || !bytes.len().is_multiple_of(4) {
        return Err(StreamError::Size { said, given: bytes.len() });
    }
    let (major, minor) = (version & 0xFF, (version >> 8) & 0xFF);
    if (major, minor) != (0, 1) {
        return Err(StreamError::Version(major, minor));
    }
    if version >> 24 != 6 {
        return Err(StreamError::Rows(version >> 24));
    }
    let generation = (version >> 16) & 0xFF;
    let mut stream =
        Stream { generation, columns: geometry & 0xFF, last_column: 0, patches: Vec::new() };
    let mut blocks = Vec::new();
    let mut at = 16;
    for index in 0..count {
        let length = operation_bytes(bytes, at, index)?;
        let operation = bytes.get(at..at + length).ok_or(StreamError::Overrun { index, at })?;
        stream.apply(operation, &mut blocks)?;
        at += length;
    }
    if at != bytes.len() {
        return Err(StreamError::Rest(count, at));
    }
    Ok(stream)
}

/// The length of the operation at `at`, from its code and checked against its own size field.
fn operation_bytes(bytes: &[u8], at: usize, index: u32) -> Result<usize, StreamError> {
    let field = |offset| get_u32(bytes, at + offset).ok_or(StreamError::Overrun { index, at });
    let code = field(0)? as u8;
    let (length, size_at) = match code {
        0 => (24, 20),
        1 => {
            let said = field(12)?;
            if said < 16 || !said.is_multiple_of(4) {
                return Err(StreamError::OperationSize { index, at, said });
            }
            (said as usize, 12)
        }
        3 | 4 => (28, 24),
        6 => return Ok(4),
        8 => return Ok(16),
        0x80 => (16, 4),
        0x81 => (48, 4),
        _ => return Err(StreamError::Code { index, at, code }),
    };
    let said = field(size_at)?;
    if said as usize != length {
        return Err(StreamError::OperationSize { index, at, said });
    }
    Ok(length)
}

impl Stream {
    fn apply(&mut self, operation: &[u8], blocks: &mut Vec<Block>) -> Result<(), StreamError> {
        match operation[0] {
            0 | 3 | 4 => self.touch(get_u64(operation, 8).unwrap_or(0)),
            1 => {
                let address = u64::from(get_u32(operation, 8).unwrap_or(0));
                self.touch(address);
                blocks.push(Block { address, data: words(&operation[16..]) });
            }
            0x81 => self.patches.push(patch(operation, blocks)?),
            _ => {}
        }
        Ok(())
    }

    fn touch(&mut self, address: u64) {
        let column = (address as u32) >> COLUMN_SHIFT;
        self.last_column = self.last_column.max(column);
    }

    /// Whether an argument is read or written at all.
    pub(crate) fn uses(&self, argument: usize) -> bool {
        self.patches.iter().any(|patch| patch.argument == argument)
    }
}

/// Register @24, argument @32, offset @40. The register is the word of a descriptor that holds the
/// address, the second; the one before it is the length.
fn patch(operation: &[u8], blocks: &[Block]) -> Result<Patch, StreamError> {
    let register = get_u64(operation, 24).unwrap_or(0);
    let argument = get_u64(operation, 32).unwrap_or(0);
    let offset = get_u64(operation, 40).unwrap_or(0);
    if argument >= 5 {
        return Err(StreamError::Argument(argument));
    }
    // The latest write of those registers counts.
    let found = blocks.iter().rev().find_map(|block| {
        let word = register.checked_sub(block.address)?.checked_div(4)? as usize;
        let aligned = register.is_multiple_of(4) && word >= 1 && word + 1 < block.data.len();
        aligned.then(|| Descriptor::decode(&block.data[word - 1..]))
    });
    let descriptor = found.ok_or(StreamError::LoosePatch(register))?;
    Ok(Patch { argument: argument as usize, offset, descriptor })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(operations: &[&[u32]]) -> Vec<u8> {
        let body: Vec<u32> = operations.concat();
        let bytes = 16 + 4 * body.len() as u32;
        let header = [0x0603_0100, 4 | 1 << 8, operations.len() as u32, bytes];
        header.iter().chain(&body).flat_map(|word| word.to_le_bytes()).collect()
    }

    const BLOCK: [u32; 12] = [1, 0, 0x0201_D000, 48, 256, 0, 0, 0, 0, 0, 0, 0];
    const PATCH: [u32; 12] = [0x81, 48, 0, 0, 0, 0, 0x0201_D004, 0, 2, 0, 64, 0];

    #[test]
    fn patches_find_their_descriptor() {
        let stream = decode(&stream(&[&BLOCK, &PATCH, &[0x80, 16, 0, 0], &[6]])).unwrap();
        assert_eq!((stream.generation, stream.columns, stream.last_column), (3, 4, 1));
        let [patch] = &stream.patches[..] else { panic!("one patch") };
        assert_eq!((patch.argument, patch.offset, patch.descriptor.bytes()), (2, 64, 1024));
    }

    #[test]
    fn streams_that_do_not_walk_to_their_end() {
        let good = stream(&[&BLOCK, &PATCH]);
        assert_eq!(decode(&good[..8]), Err(StreamError::NoHeader(8)));
        assert_eq!(
            decode(&good[..good.len() - 4]),
            Err(StreamError::Size { said: 112, given: 108 })
        );
        let mut fewer = good.clone();
        fewer[8] = 1;
        assert_eq!(decode(&fewer), Err(StreamError::Rest(1, 64)));
        let mut more = good;
        more[8] = 3;
        assert_eq!(decode(&more), Err(StreamError::Overrun { index: 2, at: 112 }));
        assert_eq!(decode(&stream(&[&PATCH])), Err(StreamError::LoosePatch(0x0201_D004)));
        let mut sixth = PATCH;
        sixth[8] = 5;
        assert_eq!(decode(&stream(&[&BLOCK, &sixth])), Err(StreamError::Argument(5)));
        assert_eq!(
            decode(&stream(&[&[9, 0]])),
            Err(StreamError::Code { index: 0, at: 16, code: 9 })
        );
        assert_eq!(
            decode(&stream(&[&[0, 0, 0, 0, 0, 20]])),
            Err(StreamError::OperationSize { index: 0, at: 16, said: 20 })
        );
    }
}
