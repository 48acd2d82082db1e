//! Command packets (ERT), as the kernel reads them from a CMD buffer.

use thiserror::Error;

use crate::bytes::{get_u32, get_u64, words};
use crate::config::CHAIN_BYTES;

/// The state that the kernel leaves in a packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandState {
    New = 1,
    Completed = 4,
    Error = 5,
    Abort = 6,
    Timeout = 8,
}

/// One run of a compute unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Index of the compute unit.
    pub(crate) unit: u32,
    /// Where the instructions are.
    pub(crate) instructions: u64,
    /// Their size in bytes.
    pub(crate) instruction_bytes: u64,
    /// Addresses of the data buffers; zero where there is none.
    pub(crate) buffers: Vec<u64>,
    /// What the firmware refuses, though the kernel passes it on.
    pub(crate) defect: Option<String>,
    /// Bytes that it takes in the command list of a chain.
    slot_bytes: usize,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Start(Start),
    /// Handles of CMD buffers.
    Chain(Vec<u64>),
}

/// Why the kernel does not pass a packet on: it signals the command's fence and leaves the state as
/// it is.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum PacketError {
    #[error("a packet of {count} words after the header does not fit its buffer of {bytes} bytes")]
    Truncated { count: u32, bytes: usize },
    #[error("the type in bits 31 to 28 of the header is {0}; it has to be 3")]
    Type(u32),
    #[error("opcode {0} is not START_CU (0), START_NPU (20) or CMD_CHAIN (19)")]
    Opcode(u32),
    #[error("no bit is set in the mask of compute units")]
    NoUnit,
    #[error("{0} bytes of arguments are more than the firmware's message takes")]
    TooLong(usize),
    #[error("the packet ends before its fixed part")]
    TooShort,
    #[error("a chain in a chain, or commands of different opcodes in one chain")]
    Mixed,
    #[error("a chain's commands take {0} bytes; the command list has {CHAIN_BYTES}")]
    ChainTooLong(usize),
    #[error("handle {0} in a chain is not a CMD buffer")]
    ChainHandle(u64),
    #[error("the context was lost")]
    ContextLost,
}

const START_CU: u32 = 0;
const CMD_CHAIN: u32 = 19;
const START_NPU: u32 = 20;
/// Words of arguments in the firmware's message for START_CU and START_NPU.
const MAX_CU_WORDS: usize = 19;
const MAX_NPU_WORDS: usize = 34;
/// START_CU's first argument: "run a transaction".
const RUN_TRANSACTION: u64 = 3;

/// Decodes the packet at the start of a CMD buffer.
pub(crate) fn decode(bytes: &[u8]) -> Result<Packet, PacketError> {
    let header = get_u32(bytes, 0).ok_or(PacketError::TooShort)?;
    let count = (header >> 12) & 0x7FF;
    let end = 4 + 4 * count as usize;
    let body = bytes.get(4..end).ok_or(PacketError::Truncated { count, bytes: bytes.len() })?;
    let kind = header >> 28;
    if kind != 3 {
        return Err(PacketError::Type(kind));
    }
    let opcode = (header >> 23) & 0x1F;
    if opcode == CMD_CHAIN {
        return chain(body);
    }
    if opcode != START_CU && opcode != START_NPU {
        return Err(PacketError::Opcode(opcode));
    }
    let masks = 1 + ((header >> 10) & 3) as usize;
    let payload = body.get(4 * masks..).filter(|payload| !payload.is_empty());
    let payload = payload.ok_or(PacketError::TooShort)?;
    // The kernel takes the first bit of the first mask that has one, and forgets which mask it was.
    let mask = words(&body[..4 * masks]).into_iter().find(|mask| *mask != 0);
    let unit = mask.ok_or(PacketError::NoUnit)?.trailing_zeros();
    let start = if opcode == START_CU { start_cu(unit, payload) } else { start_npu(unit, payload) };
    start.map(Packet::Start)
}

/// u64 3 @0, u64 instructions @8, u32 words @16, then u64 addresses.
fn start_cu(unit: u32, payload: &[u8]) -> Result<Start, PacketError> {
    if payload.len() > 4 * MAX_CU_WORDS {
        return Err(PacketError::TooLong(payload.len()));
    }
    let opcode = get_u64(payload, 0).ok_or(PacketError::TooShort)?;
    let instructions = get_u64(payload, 8).ok_or(PacketError::TooShort)?;
    let count = get_u32(payload, 16).ok_or(PacketError::TooShort)?;
    let (buffers, rest) = addresses(&payload[20..]);
    let defect = if opcode != RUN_TRANSACTION {
        Some(format!("START_CU's first argument is {opcode}; it has to be {RUN_TRANSACTION}"))
    } else if rest != 0 {
        Some("START_CU's addresses end in the middle of one".to_owned())
    } else {
        None
    };
    let slot_bytes = 8 + payload.len();
    let instruction_bytes = 4 * u64::from(count);
    Ok(Start { unit, instructions, instruction_bytes, buffers, defect, slot_bytes })
}

/// u64 instructions @0, u32 bytes @8, u32 properties @12, the properties' words, then u64 addresses.
fn start_npu(unit: u32, payload: &[u8]) -> Result<Start, PacketError> {
    let instructions = get_u64(payload, 0).ok_or(PacketError::TooShort)?;
    let bytes = get_u32(payload, 8).ok_or(PacketError::TooShort)?;
    let properties = get_u32(payload, 12).ok_or(PacketError::TooShort)?;
    let arguments = &payload[16..];
    if arguments.len() > 4 * MAX_NPU_WORDS {
        return Err(PacketError::TooLong(arguments.len()));
    }
    let skipped = arguments.get(4 * properties as usize..);
    let (buffers, rest) = addresses(skipped.unwrap_or_default());
    let defect = if skipped.is_none() {
        Some(format!("START_NPU names {properties} properties and ends before them"))
    } else if rest != 0 {
        Some("START_NPU's addresses end in the middle of one".to_owned())
    } else {
        None
    };
    let slot_bytes = 24 + arguments.len();
    let instruction_bytes = u64::from(bytes);
    Ok(Start { unit, instructions, instruction_bytes, buffers, defect, slot_bytes })
}

fn addresses(bytes: &[u8]) -> (Vec<u64>, usize) {
    let chunks = bytes.chunks_exact(8);
    let rest = chunks.remainder().len();
    (chunks.map(|chunk| get_u64(chunk, 0).unwrap_or(0)).collect(), rest)
}

/// u32 count @0, submit index @4, error index @8, reserved @12, then u64 handles @24.
fn chain(body: &[u8]) -> Result<Packet, PacketError> {
    let count = get_u32(body, 0).ok_or(PacketError::TooShort)? as usize;
    let handles = body.get(24..).ok_or(PacketError::TooShort)?;
    if count == 0 || handles.len() / 8 < count {
        return Err(PacketError::TooShort);
    }
    Ok(Packet::Chain(addresses(&handles[..8 * count]).0))
}

/// The kernel copies a chain's commands into one list, all of one opcode.
pub(crate) fn check_chain(starts: &[(u32, Start)]) -> Result<(), PacketError> {
    if starts.iter().any(|(opcode, _)| *opcode != starts[0].0) {
        return Err(PacketError::Mixed);
    }
    let bytes = starts.iter().map(|(_, start)| start.slot_bytes).sum();
    if bytes > CHAIN_BYTES { Err(PacketError::ChainTooLong(bytes)) } else { Ok(()) }
}

/// The opcode in a header.
pub(crate) fn opcode(bytes: &[u8]) -> u32 {
    (get_u32(bytes, 0).unwrap_or(0) >> 23) & 0x1F
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(header: u32, body: &[u32]) -> Vec<u8> {
        std::iter::once(&header).chain(body).flat_map(|word| word.to_le_bytes()).collect()
    }

    fn matmul(count: u32) -> Vec<u8> {
        let mut body =
            vec![1, 3, 0, 0x400_0000, 0, 42, 0x1000, 1, 0x2000, 2, 0x3000, 3, 0, 0, 0, 0];
        body.resize(16.max(count as usize), 0);
        packet(0x3000_0001 | count << 12, &body)
    }

    #[test]
    fn start_cu_as_the_open_designs_want_it() {
        let bytes = matmul(16);
        assert_eq!(&bytes[..4], &0x3001_0001u32.to_le_bytes());
        let Packet::Start(start) = decode(&bytes).unwrap() else { panic!("not a start") };
        assert_eq!((start.unit, start.instructions, start.instruction_bytes), (0, 0x400_0000, 168));
        assert_eq!(start.buffers, [0x1_0000_1000, 0x2_0000_2000, 0x3_0000_3000, 0, 0]);
        assert_eq!(start.defect, None);
    }

    #[test]
    fn start_npu_skips_properties() {
        let bytes = packet(0x3A00_0001 | 8 << 12, &[4, 0x8000, 0, 64, 1, 99, 0x70, 0]);
        let Packet::Start(start) = decode(&bytes).unwrap() else { panic!("not a start") };
        assert_eq!((start.unit, start.instruction_bytes, start.buffers), (2, 64, vec![0x70]));
    }

    #[test]
    fn what_the_kernel_refuses() {
        assert_eq!(decode(&[]), Err(PacketError::TooShort));
        assert_eq!(decode(&matmul(16)[..40]), Err(PacketError::Truncated { count: 16, bytes: 40 }));
        assert_eq!(decode(&packet(0x0001_0001, &[0; 16])), Err(PacketError::Type(0)));
        assert_eq!(decode(&packet(0x3281_0001, &[1; 16])), Err(PacketError::Opcode(5)));
        assert_eq!(decode(&packet(0x3001_0001, &[0; 16])), Err(PacketError::NoUnit));
        assert_eq!(decode(&packet(0x3000_1001, &[1])), Err(PacketError::TooShort));
        assert_eq!(decode(&matmul(21)), Err(PacketError::TooLong(80)));
    }

    #[test]
    fn chains_hold_one_opcode_and_four_kibibytes() {
        let body = [2, 0, 0, 0, 0, 0, 7, 0, 9, 0];
        assert_eq!(decode(&packet(0x3980_0001 | 10 << 12, &body)), Ok(Packet::Chain(vec![7, 9])));
        assert_eq!(decode(&packet(0x3980_0001 | 9 << 12, &body)), Err(PacketError::TooShort));
        let Packet::Start(start) = decode(&matmul(16)).unwrap() else { panic!("not a start") };
        let sixty = vec![(0, start.clone()); 60];
        assert_eq!(check_chain(&sixty), Ok(()));
        assert_eq!(
            check_chain(&vec![(0, start.clone()); 61]),
            Err(PacketError::ChainTooLong(61 * 68))
        );
        assert_eq!(check_chain(&[(0, start.clone()), (20, start)]), Err(PacketError::Mixed));
    }
}
