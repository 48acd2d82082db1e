//! Faults that tests plant in kernels, to see that checks notice them.
//!
//! Each is a change inside the kernels of a device, as small as such a mistake can be: never an
//! edited output. A device plants one in what it records while the fault is set.

use crate::error::DeviceError;

/// Names the fault to plant, for a whole program: `PIANOLA_FAULT=lost-split`.
const VARIABLE: &str = "PIANOLA_FAULT";

/// A mistake in a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A product leaves out 32 columns of one output.
    DroppedBlock = 1,
    /// A product takes 32 weights of one output for twice what they are.
    WrongScale = 2,
    /// A product does not write an output of its last row.
    StaleRow = 3,
    /// The last of several rows is multiplied with what belongs to the row before, or the columns
    /// behind the last whole step of a sum are left out.
    WrongTail = 4,
    /// The newest key and value of a head are not stored.
    StaleKey = 5,
    /// Keys and values of a head are stored in each other's place.
    SwappedKv = 6,
    /// Attention of a head reads the first page in place of the second.
    WrongPage = 7,
    /// Attention sees one token more than its window has.
    LongWindow = 8,
    /// Attention of a head forgets a part that was computed by itself.
    LostSplit = 9,
    /// Attention of a head reads the pages of the row before, which is another sequence's.
    OtherLane = 10,
    /// A query is rotated by the angle of the row before.
    WrongPosition = 11,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 11] = [
        Fault::DroppedBlock,
        Fault::WrongScale,
        Fault::StaleRow,
        Fault::WrongTail,
        Fault::StaleKey,
        Fault::SwappedKv,
        Fault::WrongPage,
        Fault::LongWindow,
        Fault::LostSplit,
        Fault::OtherLane,
        Fault::WrongPosition,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Fault::DroppedBlock => "dropped-block",
            Fault::WrongScale => "wrong-scale",
            Fault::StaleRow => "stale-row",
            Fault::WrongTail => "wrong-tail",
            Fault::StaleKey => "stale-key",
            Fault::SwappedKv => "swapped-kv",
            Fault::WrongPage => "wrong-page",
            Fault::LongWindow => "long-window",
            Fault::LostSplit => "lost-split",
            Fault::OtherLane => "other-lane",
            Fault::WrongPosition => "wrong-position",
        }
    }

    /// The fault that the environment asks for.
    pub fn from_environment() -> Result<Option<Fault>, DeviceError> {
        let name = std::env::var(VARIABLE).unwrap_or_default();
        if name.is_empty() {
            return Ok(None);
        }
        let named = Fault::ALL.into_iter().find(|fault| fault.name() == name);
        named.map(Some).ok_or_else(|| {
            let names = Fault::ALL.map(Fault::name).join(", ");
            DeviceError::Unsupported(format!("{VARIABLE} is '{name}', not one of {names}"))
        })
    }
}
