//! The section `AIE_PARTITION`: how many columns, and the array's configurations.
//!
//! ```text
//! 8   operations a cycle u32   32  column width u16   40  start columns {count, offset}
//! 120 PDIs {count, offset}, 96 bytes each: uuid[16], image {size, offset} @16, groups @24
//!     group, 96 bytes: type u8 @4, pdi id u64 @8, kernel ids {count, offset} @16, each a u64
//! ```
//!
//! Offsets are from the start of the section.

use std::ops::Range;

use super::{XclbinError, outside};
use crate::bytes::Bytes;

const OPERATIONS_AT: usize = 8;
const WIDTH_AT: usize = 32;
const START_COLUMNS_AT: usize = 40;
const PDIS_AT: usize = 120;
const PDI_BYTES: u64 = 96;
const IMAGE_AT: usize = 16;
const GROUPS_AT: usize = 24;
const GROUP_BYTES: u64 = 96;
const KERNEL_IDS_AT: usize = 16;
/// Entries of any list in a real file are single digits. Lists may overlap each other, so that a
/// small file could claim many large ones; these bounds keep what is read proportional to nothing
/// worse than a few megabytes.
const MAX_PDIS: usize = 64;
const MAX_GROUPS: usize = 64;
const MAX_IDS: usize = 256;
const MAX_COLUMNS: usize = 64;

/// What a context needs to know of the array's part that a kernel uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Operations a cycle, for the driver's scheduler.
    pub operations_per_cycle: u32,
    /// Columns.
    pub columns: u16,
    /// Columns at which the partition may start.
    pub start_columns: Vec<u16>,
    /// The configurations.
    pub pdis: Vec<Pdi>,
}

/// A configuration of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdi {
    /// Its identity.
    pub uuid: [u8; 16],
    /// The kernels that run with it.
    pub kernel_ids: Vec<u64>,
    /// Its bytes, as a range of the file.
    pub(super) image: Range<usize>,
}

const SECTION: &str = "AIE_PARTITION";

impl Partition {
    /// Reads the section, which starts at `start` of the file.
    pub(super) fn parse(section: Bytes<'_>, start: usize) -> Result<Partition, XclbinError> {
        let header = outside("the header", SECTION);
        let operations_per_cycle = section.u32(OPERATIONS_AT).ok_or(header.clone())?;
        let columns = section.u16(WIDTH_AT).ok_or(header)?;
        if columns == 0 {
            return Err(XclbinError::Malformed("a partition of no columns"));
        }
        let start_columns = list(section, START_COLUMNS_AT, 2, MAX_COLUMNS, "start columns")?;
        let start_columns = start_columns.iter().filter_map(|entry| entry.u16(0)).collect();
        let mut pdis = Vec::new();
        for entry in list(section, PDIS_AT, PDI_BYTES, MAX_PDIS, "the list of PDIs")? {
            pdis.push(pdi(section, entry, start)?);
        }
        if pdis.is_empty() {
            return Err(XclbinError::Malformed("a partition without a PDI"));
        }
        Ok(Partition { operations_per_cycle, columns, start_columns, pdis })
    }
}

fn pdi(section: Bytes<'_>, entry: Bytes<'_>, start: usize) -> Result<Pdi, XclbinError> {
    let error = outside("a PDI", SECTION);
    let uuid = entry.uuid(0).ok_or(error.clone())?;
    let (size, offset) = pair(entry, IMAGE_AT).ok_or(error.clone())?;
    let image = section.range(u64::from(offset), u64::from(size)).ok_or(error)?;
    if image.is_empty() {
        return Err(XclbinError::Malformed("an empty PDI"));
    }
    let mut kernel_ids = Vec::new();
    for group in sublist(section, entry, GROUPS_AT, GROUP_BYTES, MAX_GROUPS, "a group")? {
        let ids = sublist(section, group, KERNEL_IDS_AT, 8, MAX_IDS, "kernel numbers")?;
        for id in ids.iter().filter_map(|id| id.u64(0)) {
            if !kernel_ids.contains(&id) {
                kernel_ids.push(id);
            }
        }
    }
    Ok(Pdi { uuid, kernel_ids, image: start + image.start..start + image.end })
}

/// A count and an offset.
fn pair(entry: Bytes<'_>, at: usize) -> Option<(u32, u32)> {
    Some((entry.u32(at)?, entry.u32(at + 4)?))
}

fn list<'a>(
    section: Bytes<'a>,
    at: usize,
    entry_bytes: u64,
    most: usize,
    what: &'static str,
) -> Result<Vec<Bytes<'a>>, XclbinError> {
    sublist(section, section, at, entry_bytes, most, what)
}

/// The entries of a list of `section`, whose count and offset stand at `at` of `entry`.
fn sublist<'a>(
    section: Bytes<'a>,
    entry: Bytes<'_>,
    at: usize,
    entry_bytes: u64,
    most: usize,
    what: &'static str,
) -> Result<Vec<Bytes<'a>>, XclbinError> {
    let error = outside(what, SECTION);
    let (count, offset) = pair(entry, at).ok_or(error.clone())?;
    if count as usize > most {
        return Err(XclbinError::Malformed("a list in AIE_PARTITION is impossibly long"));
    }
    let part = section.part(u64::from(offset), u64::from(count) * entry_bytes).ok_or(error)?;
    Ok(part.0.chunks_exact(entry_bytes as usize).map(Bytes).collect())
}
