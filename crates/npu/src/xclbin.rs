//! xclbin files: what an NPU kernel's build leaves, the array's configuration with its directory.
//!
//! ```text
//! 0    "xclbin2\0"           304  header: length u64 … uuid @416 … section count u32 @448
//! 456  section headers, 40 bytes each: kind u32, name[16], pad 4, offset u64, size u64
//! ```
//!
//! Three sections matter: `AIE_PARTITION` (32) with the PDIs, `IP_LAYOUT` (8) with the kernels, and
//! `EMBEDDED_METADATA` (2), XML with the kernels' arguments, which is kept as text. A file is
//! hostile until checked: each offset and count is compared with its section before it is used.

use std::ops::Range;

use crate::bytes::Bytes;

mod partition;

pub use partition::{Partition, Pdi};

const MAGIC: &[u8] = b"xclbin2\0";
const LENGTH_AT: usize = 304;
const UUID_AT: usize = 416;
const SECTION_COUNT_AT: usize = 448;
const SECTIONS_AT: u64 = 456;
const SECTION_HEADER: u64 = 40;
const METADATA: u32 = 2;
const IP_LAYOUT: u32 = 8;
const AIE_PARTITION: u32 = 32;
/// An entry of `IP_LAYOUT`; the first stands at 8.
const IP_ENTRY: u64 = 80;

/// Why a file is no xclbin that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XclbinError {
    /// Another kind of file.
    #[error("not an xclbin: it does not start with `xclbin2`")]
    Foreign,
    /// The file is shorter than its own header says.
    #[error("the xclbin is cut off: its header says {claimed} bytes, the file has {actual}")]
    CutOff {
        /// By the header.
        claimed: u64,
        /// By the file.
        actual: u64,
    },
    /// Something does not lie inside what should hold it.
    #[error("the xclbin is damaged: {what} lies outside of {inside}")]
    Outside {
        /// The thing.
        what: &'static str,
        /// What should hold it.
        inside: &'static str,
    },
    /// A section that a kernel needs.
    #[error(
        "the xclbin has no section {0}: it is not of an NPU kernel (mlir-aie's aiecc makes one)"
    )]
    NoSection(&'static str),
    /// A section that may be there once only.
    #[error("the xclbin has the section {0} twice")]
    TwoSections(&'static str),
    /// A value that cannot be.
    #[error("the xclbin is damaged: {0}")]
    Malformed(&'static str),
}

/// A kernel of `IP_LAYOUT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Kernel and instance, as in `MLIR_AIE:MLIRAIE`.
    pub name: String,
    /// The number by which a PDI is chosen.
    pub id: u16,
    /// What a compute unit is configured as: 0 is a DPU.
    pub function: u8,
}

/// A checked xclbin.
#[derive(Clone, Debug)]
pub struct Xclbin {
    bytes: Vec<u8>,
    uuid: [u8; 16],
    kernels: Vec<Kernel>,
    partition: Partition,
    metadata: Option<Range<usize>>,
}

impl Xclbin {
    /// Checks a file's bytes and finds what a context needs.
    pub fn parse(bytes: Vec<u8>) -> Result<Xclbin, XclbinError> {
        let file = Bytes(&bytes);
        if !bytes.starts_with(MAGIC) {
            return Err(XclbinError::Foreign);
        }
        let actual = bytes.len() as u64;
        let header = outside("the header", "the file");
        let claimed = file.u64(LENGTH_AT).ok_or(header.clone())?;
        if claimed > actual {
            return Err(XclbinError::CutOff { claimed, actual });
        }
        let uuid = file.uuid(UUID_AT).ok_or(header.clone())?;
        let count = file.u32(SECTION_COUNT_AT).ok_or(header)?;
        let sections = Sections::find(file, count)?;
        let layout = sections.ip_layout.ok_or(XclbinError::NoSection("IP_LAYOUT"))?;
        let kernels = kernels(Bytes(&bytes[layout]))?;
        let partition = sections.partition.ok_or(XclbinError::NoSection("AIE_PARTITION"))?;
        let partition = Partition::parse(Bytes(&bytes[partition.clone()]), partition.start)?;
        let metadata = sections.metadata;
        if let Some(range) = &metadata
            && std::str::from_utf8(&bytes[range.clone()]).is_err()
        {
            return Err(XclbinError::Malformed("the kernels' XML is not UTF-8"));
        }
        Ok(Xclbin { uuid, kernels, partition, metadata, bytes })
    }

    /// The identity of the build.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The kernels, in the order of the file.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The columns and PDIs.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// The kernels' XML, if the file has it.
    pub fn metadata(&self) -> Option<&str> {
        let bytes = &self.bytes[self.metadata.clone()?];
        std::str::from_utf8(bytes).ok()
    }

    /// A PDI's image.
    pub fn image(&self, pdi: &Pdi) -> &[u8] {
        &self.bytes[pdi.image.clone()]
    }

    /// The PDI that runs a kernel.
    pub fn pdi_of(&self, kernel: &Kernel) -> Option<&Pdi> {
        let id = u64::from(kernel.id);
        self.partition.pdis.iter().find(|pdi| pdi.kernel_ids.contains(&id))
    }
}

/// The sections that are used, as ranges of the file.
#[derive(Default)]
struct Sections {
    metadata: Option<Range<usize>>,
    ip_layout: Option<Range<usize>>,
    partition: Option<Range<usize>>,
}

impl Sections {
    fn find(file: Bytes<'_>, count: u32) -> Result<Sections, XclbinError> {
        let table_bytes = u64::from(count) * SECTION_HEADER;
        let outside_table = outside("the section table", "the file");
        let table = file.part(SECTIONS_AT, table_bytes).ok_or(outside_table.clone())?;
        let mut sections = Sections::default();
        for index in 0..u64::from(count) {
            let entry = table.part(index * SECTION_HEADER, SECTION_HEADER);
            let entry = entry.ok_or(outside_table.clone())?;
            let kind = entry.u32(0).ok_or(outside_table.clone())?;
            let offset = entry.u64(24).ok_or(outside_table.clone())?;
            let size = entry.u64(32).ok_or(outside_table.clone())?;
            let range = file.range(offset, size).ok_or(outside("a section", "the file"))?;
            if size > 0 && offset < SECTIONS_AT + table_bytes {
                return Err(XclbinError::Malformed("a section overlaps the header"));
            }
            let (place, name) = match kind {
                METADATA => (&mut sections.metadata, "EMBEDDED_METADATA"),
                IP_LAYOUT => (&mut sections.ip_layout, "IP_LAYOUT"),
                AIE_PARTITION => (&mut sections.partition, "AIE_PARTITION"),
                _ => continue,
            };
            if place.replace(range).is_some() {
                return Err(XclbinError::TwoSections(name));
            }
        }
        Ok(sections)
    }
}

fn outside(what: &'static str, inside: &'static str) -> XclbinError {
    XclbinError::Outside { what, inside }
}

/// Reads `IP_LAYOUT`: a count, then type, properties, base address and name of each entry.
fn kernels(section: Bytes<'_>) -> Result<Vec<Kernel>, XclbinError> {
    /// Memories and their controllers, which stand in the same table.
    const OTHER_TYPES: std::ops::RangeInclusive<u32> = 2..=6;
    let error = outside("a kernel", "IP_LAYOUT");
    let count = section.u32(0).ok_or(error.clone())?;
    section.range(8, u64::from(count) * IP_ENTRY).ok_or(error.clone())?;
    let mut kernels = Vec::new();
    for index in 0..u64::from(count) {
        let entry = section.part(8 + index * IP_ENTRY, IP_ENTRY).ok_or(error.clone())?;
        let kind = entry.u32(0).ok_or(error.clone())?;
        let properties = entry.u32(4).ok_or(error.clone())?;
        if OTHER_TYPES.contains(&kind) {
            continue;
        }
        let name = &entry.0[16..];
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let name = std::str::from_utf8(&name[..end])
            .map_err(|_| XclbinError::Malformed("a kernel's name is not UTF-8"))?;
        kernels.push(Kernel {
            name: name.to_string(),
            // Of a kernel for a processor (to which a DPU belongs) the properties are: subtype in
            // bits 0 and 1, function in bits 4 and 5, number in bits 16 to 27.
            id: (properties >> 16 & 0xFFF) as u16,
            function: (properties >> 4 & 3) as u8,
        });
    }
    Ok(kernels)
}
