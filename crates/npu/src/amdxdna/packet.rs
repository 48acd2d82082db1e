//! Commands as the kernel's driver reads them: a header word, a mask of compute units, a payload.
//!
//! ```text
//! header: state[3:0]  extra masks[11:10]  words after the header[22:12]  opcode[27:23]  type[31:28]
//! ```

/// The opcode in the header.
#[derive(Clone, Copy)]
enum Opcode {
    StartCu = 0,
    Chain = 19,
    StartNpu = 20,
}

/// The state in a command's header. Only [`CommandState::Completed`] is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// Not yet seen by the device.
    New,
    /// In the driver's queue.
    Queued,
    /// On the device.
    Running,
    /// Done.
    Completed,
    /// The firmware reported an error.
    Error,
    /// Given up by the driver, for example when it reset the context.
    Abort,
    /// On its way.
    Submitted,
    /// The driver's own time limit passed.
    Timeout,
    /// The firmware did not answer.
    NoResponse,
    /// A number that has no meaning.
    Unknown(u8),
}

impl CommandState {
    /// The state in a header word.
    pub(crate) fn of_header(header: u32) -> CommandState {
        match header & 0xF {
            1 => CommandState::New,
            2 => CommandState::Queued,
            3 => CommandState::Running,
            4 => CommandState::Completed,
            5 => CommandState::Error,
            6 => CommandState::Abort,
            7 => CommandState::Submitted,
            8 => CommandState::Timeout,
            9 => CommandState::NoResponse,
            other => CommandState::Unknown(other as u8),
        }
    }

    /// Whether the driver has ended the context along with the command.
    pub(crate) fn ends_context(self) -> bool {
        matches!(self, CommandState::Abort | CommandState::Timeout | CommandState::NoResponse)
    }
}

/// Data buffers that a command can name: the firmware adds the address aperture to no more.
pub const MAX_BUFFERS: usize = 5;
/// Commands that one chain holds: each takes 112 bytes of a slot of 4 KiB.
pub const MAX_CHAIN: usize = 36;
/// Bytes of a command buffer; every packet here is smaller.
pub const COMMAND_BYTES: usize = 4096;
/// Word of a chain that says which command failed: after the header, count and submit index.
pub(crate) const CHAIN_ERROR_WORD: usize = 3;
/// What the firmware is to do with the instructions of a `START_CU` packet: run a transaction.
const RUN_TRANSACTION: u64 = 3;

/// A command's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet(Vec<u32>);

impl Packet {
    /// Runs instructions on a compute unit, as mlir-aie's kernels expect it: opcode, instructions,
    /// their count in words, and data buffers, padded with zeros to five.
    ///
    /// # Panics
    /// If there are more than [`MAX_BUFFERS`] buffers or 32 units: packages are checked for that.
    pub fn start_cu(unit: u32, instructions: u64, words: u32, buffers: &[u64]) -> Packet {
        assert!(buffers.len() <= MAX_BUFFERS, "more buffers than a command can name");
        let mut payload = vec![unit_mask(unit)];
        push(&mut payload, RUN_TRANSACTION);
        push(&mut payload, instructions);
        payload.push(words);
        for index in 0..MAX_BUFFERS {
            push(&mut payload, buffers.get(index).copied().unwrap_or(0));
        }
        Packet::new(Opcode::StartCu, payload)
    }

    /// Runs instructions on a compute unit through the firmware's own entry: their address and
    /// bytes, no properties, then the arguments.
    ///
    /// # Panics
    /// If the arguments do not fit into a command buffer.
    pub fn start_npu(unit: u32, instructions: u64, bytes: u32, arguments: &[u64]) -> Packet {
        let mut payload = vec![unit_mask(unit)];
        push(&mut payload, instructions);
        payload.extend([bytes, 0]);
        for &argument in arguments {
            push(&mut payload, argument);
        }
        Packet::new(Opcode::StartNpu, payload)
    }

    /// Runs commands one after another, by the handles of their buffers.
    ///
    /// # Panics
    /// If there are none or more than [`MAX_CHAIN`].
    pub fn chain(commands: &[u32]) -> Packet {
        assert!((1..=MAX_CHAIN).contains(&commands.len()), "a chain of {}", commands.len());
        let mut payload = vec![commands.len() as u32, 0, 0, 0, 0, 0];
        for &handle in commands {
            push(&mut payload, u64::from(handle));
        }
        Packet::new(Opcode::Chain, payload)
    }

    fn new(opcode: Opcode, payload: Vec<u32>) -> Packet {
        let words = payload.len() as u32;
        assert!((words as usize + 1) * 4 <= COMMAND_BYTES, "a packet of {words} words");
        const NEW: u32 = 1;
        const TYPE: u32 = 3;
        let header = NEW | words << 12 | (opcode as u32) << 23 | TYPE << 28;
        let mut all = vec![header];
        all.extend(payload);
        Packet(all)
    }

    /// Whether it is a chain.
    pub(crate) fn is_chain(&self) -> bool {
        self.0[0] >> 23 & 0x1F == Opcode::Chain as u32
    }

    /// The words, header first.
    pub fn words(&self) -> &[u32] {
        &self.0
    }
}

fn unit_mask(unit: u32) -> u32 {
    1_u32.checked_shl(unit).expect("a context has at most 32 compute units")
}

fn push(words: &mut Vec<u32>, value: u64) {
    words.extend([value as u32, (value >> 32) as u32]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_cu_has_the_documented_words() {
        let packet = Packet::start_cu(0, 0x1_0400_8000, 77, &[0xA_0000_0001, 2, 3]);
        let expected = [0x3001_0001, 1, 3, 0, 0x0400_8000, 1, 77, 1, 0xA, 2, 0, 3, 0, 0, 0, 0, 0];
        assert_eq!(packet.words(), expected);
        assert_eq!(Packet::start_cu(4, 0, 0, &[]).words()[1], 16);
    }

    #[test]
    fn start_npu_gives_the_address_and_the_bytes() {
        let packet = Packet::start_npu(1, 0x0400_0000, 256, &[0x1_0000_0002]);
        // 7 words after the header, opcode 20.
        assert_eq!(packet.words()[0], 1 | 7 << 12 | 20 << 23 | 3 << 28);
        assert_eq!(packet.words()[1..], [2, 0x0400_0000, 0, 256, 0, 2, 1]);
    }

    #[test]
    fn a_chain_lists_handles_without_a_mask() {
        let packet = Packet::chain(&[7, 9]);
        assert_eq!(packet.words()[0], 1 | 10 << 12 | 19 << 23 | 3 << 28);
        assert_eq!(packet.words()[1..], [2, 0, 0, 0, 0, 0, 7, 0, 9, 0]);
        assert!(Packet::chain(&[1; MAX_CHAIN]).words().len() * 4 <= COMMAND_BYTES);
    }

    #[test]
    fn states_are_read_from_the_low_bits() {
        assert_eq!(CommandState::of_header(0x3001_0004), CommandState::Completed);
        assert_eq!(CommandState::of_header(0x3001_0008), CommandState::Timeout);
        assert_eq!(CommandState::of_header(0), CommandState::Unknown(0));
        assert!(!CommandState::Error.ends_context());
    }
}
