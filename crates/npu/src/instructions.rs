//! Instruction streams ("TXN"): what the firmware writes into the array's registers to run a
//! kernel once on given buffers.
//!
//! ```text
//! word 0  major 0 | minor 1 << 8 | generation << 16 | rows << 24      word 2  operations
//! word 1  columns | rows of memory tiles << 8                         word 3  bytes of the stream
//! then operations: the low byte of the first word says which
//! ```
//!
//! A stream is accepted only if it walks exactly to its end and does nothing unknown: the firmware
//! does not check it, and a wrong write can hang the device.

use std::collections::{BTreeMap, BTreeSet};

use crate::amdxdna::{Generation, MAX_BUFFERS};
use crate::bytes::Bytes;

/// Why a stream cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstructionsError {
    /// Not whole words, or a word that is not hexadecimal.
    #[error("not an instruction stream: {0}")]
    Foreign(&'static str),
    /// A header of another version or device.
    #[error(
        "unknown instruction header {word:#010x}: known are version 0.1 for npu1 (0x06030100) and \
         npu2 (0x06040100)"
    )]
    Header {
        /// Word 0.
        word: u32,
    },
    /// The header's size is not the file's.
    #[error("the stream says it has {claimed} bytes, the file has {actual}")]
    Size {
        /// By the header.
        claimed: u32,
        /// By the file.
        actual: usize,
    },
    /// An operation that this reader does not know.
    #[error(
        "unknown operation {opcode:#04x} at byte {at}: the stream is damaged or of newer tools"
    )]
    Opcode {
        /// The low byte.
        opcode: u8,
        /// Where.
        at: usize,
    },
    /// An operation whose size contradicts its kind or the end of the stream.
    #[error("the operation at byte {at} has a wrong size or is cut off")]
    OperationSize {
        /// Where.
        at: usize,
    },
    /// The number of operations is not the header's.
    #[error("the stream has {actual} operations, its header says {claimed}")]
    Count {
        /// By the header.
        claimed: u32,
        /// By the walk.
        actual: u32,
    },
    /// A buffer's address would be written where no descriptor was.
    #[error(
        "the operation at byte {at} patches register {register:#x}, which is the address of no \
         descriptor that a block before it wrote"
    )]
    StrayPatch {
        /// Where.
        at: usize,
        /// The register.
        register: u64,
    },
    /// A register outside of the array.
    #[error("the operation at byte {at} names register {register:#x}; registers have 32 bits")]
    Register {
        /// Where.
        at: usize,
        /// The register.
        register: u64,
    },
    /// More buffers than a command can name.
    #[error("the stream uses argument {argument}; a command has at most {MAX_BUFFERS} buffers")]
    TooManyBuffers {
        /// The argument's index.
        argument: u64,
    },
}

/// A place where the firmware puts a buffer's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The register of the address.
    pub register: u64,
    /// Which data buffer; 0 is the first.
    pub argument: usize,
    /// Bytes added to the buffer's address.
    pub offset: u64,
}

/// A checked stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instructions {
    bytes: Vec<u8>,
    generation: Generation,
    columns: u8,
    used_columns: u32,
    patches: Vec<Patch>,
}

const HEADER_BYTES: usize = 16;

impl Instructions {
    /// Checks a file, binary or text: a binary stream starts with its major version, a zero, which
    /// no text has. Endings do not tell; builds have left binary streams named `insts.txt`.
    pub fn parse_file(bytes: Vec<u8>) -> Result<Instructions, InstructionsError> {
        if bytes.first() == Some(&0) {
            return Instructions::parse(bytes);
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| InstructionsError::Foreign("it is neither a binary stream nor text"))?;
        Instructions::parse_text(text)
    }

    /// Checks a binary stream.
    pub fn parse(bytes: Vec<u8>) -> Result<Instructions, InstructionsError> {
        let file = Bytes(&bytes);
        if !bytes.len().is_multiple_of(4) || bytes.len() < HEADER_BYTES {
            return Err(InstructionsError::Foreign("its size is no header and whole words"));
        }
        let word = |index: usize| file.u32(index * 4).unwrap_or(0);
        let generation = match word(0) {
            0x0603_0100 => Generation::Npu1,
            0x0604_0100 => Generation::Npu2,
            word => return Err(InstructionsError::Header { word }),
        };
        let (claimed, actual) = (word(3), bytes.len());
        if claimed as usize != actual {
            return Err(InstructionsError::Size { claimed, actual });
        }
        let columns = word(1) as u8;
        let mut walk = Walk::new(file);
        walk.run(word(2))?;
        let Walk { patches, used_columns, .. } = walk;
        Ok(Instructions { generation, columns, used_columns, patches, bytes })
    }

    /// Checks a stream of text, one hexadecimal word a line.
    pub fn parse_text(text: &str) -> Result<Instructions, InstructionsError> {
        let mut bytes = Vec::with_capacity(text.len() / 2);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let digits = line.strip_prefix("0x").unwrap_or(line);
            let word = u32::from_str_radix(digits, 16);
            let word = word.map_err(|_| {
                InstructionsError::Foreign("a line of the text is no hexadecimal word")
            })?;
            bytes.extend(word.to_le_bytes());
        }
        Instructions::parse(bytes)
    }

    /// The stream as the device reads it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its length in words.
    pub fn words(&self) -> u32 {
        (self.bytes.len() / 4) as u32
    }

    /// The array it was made for.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The columns that its header names: of the partition or, by some tools, of the device.
    pub fn columns(&self) -> u8 {
        self.columns
    }

    /// Columns from the partition's first to the last one that it writes to.
    pub fn used_columns(&self) -> u32 {
        self.used_columns
    }

    /// Where buffers' addresses go.
    pub fn patches(&self) -> &[Patch] {
        &self.patches
    }

    /// Data buffers that the stream uses.
    pub fn buffers(&self) -> usize {
        self.patches.iter().map(|patch| patch.argument + 1).max().unwrap_or(0)
    }
}

/// A walk over the operations.
struct Walk<'a> {
    file: Bytes<'a>,
    /// Register ranges that blocks wrote so far, joined where they touch: start and end.
    blocks: BTreeMap<u64, u64>,
    /// First registers of those blocks: of a descriptor its length, never its address.
    first_words: BTreeSet<u64>,
    patches: Vec<Patch>,
    used_columns: u32,
}

/// A register's address has its column from this bit on, counted from the partition's first.
const COLUMN_BIT: u32 = 25;

impl<'a> Walk<'a> {
    fn new(file: Bytes<'a>) -> Walk<'a> {
        let (blocks, first_words) = Default::default();
        Walk { file, blocks, first_words, patches: Vec::new(), used_columns: 0 }
    }

    fn run(&mut self, claimed: u32) -> Result<(), InstructionsError> {
        let mut at = HEADER_BYTES;
        let mut actual = 0;
        while at < self.file.0.len() {
            at += self.operation(at)?;
            actual += 1;
        }
        if actual != claimed {
            return Err(InstructionsError::Count { claimed, actual });
        }
        Ok(())
    }

    /// Checks one operation and returns its size in bytes.
    fn operation(&mut self, at: usize) -> Result<usize, InstructionsError> {
        let error = InstructionsError::OperationSize { at };
        let opcode = self.file.u32(at).ok_or(error.clone())? as u8;
        // The size that the kind has, and where the operation repeats it.
        let (fixed, size_at) = match opcode {
            0x00 => (Some(24), Some(20)),
            0x01 => (None, Some(12)),
            0x03 | 0x04 => (Some(28), Some(24)),
            0x06 => (Some(4), None),
            0x08 => (Some(16), None),
            0x80 => (Some(16), Some(4)),
            0x81 => (Some(48), Some(4)),
            opcode => return Err(InstructionsError::Opcode { opcode, at }),
        };
        let said = match size_at {
            Some(offset) => Some(self.file.u32(at + offset).ok_or(error.clone())? as usize),
            None => None,
        };
        let size = fixed.or(said).ok_or(error.clone())?;
        let is_block = opcode == 0x01;
        let fits = at.checked_add(size).is_some_and(|end| end <= self.file.0.len());
        let whole = !is_block || (size >= 16 && size.is_multiple_of(4));
        if said.is_some_and(|said| said != size) || !fits || !whole {
            return Err(error);
        }
        if matches!(opcode, 0x00 | 0x01 | 0x03 | 0x04) {
            // A block's address has 32 bits, those of the other operations 64.
            let register = match is_block {
                true => self.file.u32(at + 8).map(u64::from),
                false => self.file.u64(at + 8),
            };
            let register = register.ok_or(error.clone())?;
            let address = u32::try_from(register)
                .map_err(|_| InstructionsError::Register { at, register })?;
            self.used_columns = self.used_columns.max((address >> COLUMN_BIT) + 1);
        }
        match opcode {
            0x01 => self.block(at, size).ok_or(error)?,
            0x81 => self.patch(at)?,
            _ => {}
        }
        Ok(size)
    }

    fn block(&mut self, at: usize, size: usize) -> Option<()> {
        let mut start = u64::from(self.file.u32(at + 8)?);
        let mut end = start + (size as u64 - 16);
        self.first_words.insert(start);
        while let Some((&other, &other_end)) = self.blocks.range(..=end).next_back()
            && other_end >= start
        {
            self.blocks.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.blocks.insert(start, end);
        Some(())
    }

    fn patch(&mut self, at: usize) -> Result<(), InstructionsError> {
        let cut_off = InstructionsError::OperationSize { at };
        let register = self.file.u64(at + 24).ok_or(cut_off.clone())?;
        let argument = self.file.u64(at + 32).ok_or(cut_off.clone())?;
        let offset = self.file.u64(at + 40).ok_or(cut_off)?;
        // The address is a descriptor's second and third word.
        let block = self.blocks.range(..=register).next_back();
        let inside = block.is_some_and(|(_, &end)| register.saturating_add(8) <= end);
        if !inside || !register.is_multiple_of(4) || self.first_words.contains(&register) {
            return Err(InstructionsError::StrayPatch { at, register });
        }
        let index = usize::try_from(argument).ok().filter(|&index| index < MAX_BUFFERS);
        let argument = index.ok_or(InstructionsError::TooManyBuffers { argument })?;
        self.patches.push(Patch { register, argument, offset });
        Ok(())
    }
}
