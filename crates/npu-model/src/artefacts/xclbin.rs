//! The container (axlf): a header, a table of sections, sections.

use super::KERNEL_ID;
use crate::bytes::{get_u32, get_u64, put_u16, put_u32, put_u64};

const MAGIC: &[u8; 8] = b"xclbin2\0";
const HEADER: usize = 304;
const SECTION_COUNT: usize = 448;
const SECTIONS: usize = 456;
const SECTION_BYTES: usize = 40;

const EMBEDDED_METADATA: u32 = 2;
const IP_LAYOUT: u32 = 8;
const AIE_PARTITION: u32 = 32;

/// What goes into a container.
pub(super) struct Container<'a> {
    pub(super) pdi: &'a [u8],
    pub(super) columns: u16,
    /// Data buffers in the kernel's signature.
    pub(super) arguments: usize,
}

impl Container<'_> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let sections = [
            (EMBEDDED_METADATA, "metadata", self.metadata().into_bytes()),
            (IP_LAYOUT, "ip_layout", ip_layout()),
            (AIE_PARTITION, "partition", self.partition()),
        ];
        let mut bytes = vec![0; SECTIONS + SECTION_BYTES * sections.len()];
        bytes[..8].copy_from_slice(MAGIC);
        // No signature.
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        bytes[330] = 2;
        let vbnv = b"npu (emulated)";
        bytes[352..352 + vbnv.len()].copy_from_slice(vbnv);
        bytes[416..432].copy_from_slice(&identity(self.pdi));
        put_u32(&mut bytes, SECTION_COUNT, sections.len() as u32);
        for (index, (kind, name, content)) in sections.into_iter().enumerate() {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            let at = SECTIONS + SECTION_BYTES * index;
            let offset = bytes.len() as u64;
            put_u32(&mut bytes, at, kind);
            bytes[at + 4..at + 4 + name.len()].copy_from_slice(name.as_bytes());
            put_u64(&mut bytes, at + 24, offset);
            put_u64(&mut bytes, at + 32, content.len() as u64);
            bytes.extend(content);
        }
        let length = bytes.len() as u64;
        put_u64(&mut bytes, HEADER, length);
        bytes
    }

    /// The kernel's signature, in the words of mlir-aie's tools.
    fn metadata(&self) -> String {
        let argument = |id: usize,
                        name: &str,
                        qualifier: u32,
                        size: u32,
                        offset: usize,
                        kind: &str| {
            format!(
                "<arg name=\"{name}\" addressQualifier=\"{qualifier}\" id=\"{id}\" size=\"{size:#x}\" \
                 offset=\"{offset:#x}\" hostOffset=\"0x0\" hostSize=\"{size:#x}\" type=\"{kind}\"/>"
            )
        };
        let mut arguments = vec![
            argument(0, "opcode", 0, 8, 0, "uint64_t"),
            argument(1, "instr", 1, 8, 8, "char *"),
            argument(2, "ninstr", 0, 4, 0x10, "uint32_t"),
        ];
        for index in 0..self.arguments {
            let name = format!("bo{index}");
            arguments.push(argument(3 + index, &name, 1, 8, 0x14 + 8 * index, "void*"));
        }
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<project><platform><device><core>\
             <kernel name=\"MLIR_AIE\" language=\"c\" type=\"dpu\">\
             <extended-data subtype=\"DPU\" functional=\"0\" dpu_kernel_id=\"{KERNEL_ID:#x}\"/>{}\
             <instance name=\"MLIRAIE\"/></kernel></core></device></platform></project>\n",
            arguments.concat()
        )
    }

    /// Head (184 bytes), start columns, one PDI (96), one group (96), kernel numbers, image.
    fn partition(&self) -> Vec<u8> {
        const COLUMNS: usize = 184;
        const PDI: usize = 192;
        const GROUP: usize = PDI + 96;
        const KERNELS: usize = GROUP + 96;
        const IMAGE: usize = KERNELS + 8;
        let mut bytes = vec![0; IMAGE];
        put_u32(&mut bytes, 8, 2048 * u32::from(self.columns));
        put_u16(&mut bytes, 32, self.columns);
        list(&mut bytes, 40, 1, COLUMNS);
        // The first column is the irregular one, unless all five are taken.
        put_u16(&mut bytes, COLUMNS, if self.columns < 5 { 1 } else { 0 });
        list(&mut bytes, 120, 1, PDI);
        bytes[PDI..PDI + 16].copy_from_slice(&identity(self.pdi));
        list(&mut bytes, PDI + 16, self.pdi.len(), IMAGE);
        list(&mut bytes, PDI + 24, 1, GROUP);
        bytes[GROUP + 4] = 1;
        put_u64(&mut bytes, GROUP + 8, 1);
        list(&mut bytes, GROUP + 16, 1, KERNELS);
        put_u64(&mut bytes, KERNELS, u64::from(KERNEL_ID));
        bytes.extend(self.pdi);
        bytes
    }
}

/// Count and offset of a list.
fn list(bytes: &mut [u8], at: usize, count: usize, offset: usize) {
    put_u32(bytes, at, count as u32);
    put_u32(bytes, at + 4, offset as u32);
}

/// A count, then an entry of 80 bytes: type @0, properties @4, address @8, name @16.
fn ip_layout() -> Vec<u8> {
    let mut bytes = vec![0; 88];
    put_u32(&mut bytes, 0, 1);
    // IP_PS_KERNEL.
    put_u32(&mut bytes, 8, 7);
    // Number, function 0, subtype DPU.
    put_u32(&mut bytes, 12, KERNEL_ID << 16 | 1);
    put_u64(&mut bytes, 16, u64::MAX);
    let name = b"MLIR_AIE:MLIRAIE";
    bytes[24..24 + name.len()].copy_from_slice(name);
    bytes
}

/// An identifier of the content (FNV-1a, twice).
fn identity(content: &[u8]) -> [u8; 16] {
    let hash = |seed: u64| {
        content
            .iter()
            .fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
    };
    let mut identity = [0; 16];
    put_u64(&mut identity, 0, hash(0xCBF2_9CE4_8422_2325));
    put_u64(&mut identity, 8, hash(0x9E37_79B9_7F4A_7C15));
    identity
}

/// All PDIs of a container, real or made here.
pub fn pdis(container: &[u8]) -> Result<Vec<Vec<u8>>, &'static str> {
    if container.get(..8) != Some(MAGIC) {
        return Err("not an xclbin");
    }
    if get_u64(container, HEADER) != Some(container.len() as u64) {
        return Err("the xclbin is not as long as its header says");
    }
    let count = get_u32(container, SECTION_COUNT).unwrap_or(0) as usize;
    let headers = (0..count).map(|index| SECTIONS + SECTION_BYTES * index);
    let partition = headers
        .take_while(|at| get_u32(container, *at).is_some())
        .find(|at| get_u32(container, *at) == Some(AIE_PARTITION))
        .and_then(|at| range(container, get_u64(container, at + 24)?, get_u64(container, at + 32)?))
        .ok_or("the xclbin has no AIE_PARTITION section")?;
    let read = |index: u64| {
        let offset = u64::from(get_u32(partition, 124)?) + 96 * index;
        let pdi = range(partition, offset, 96)?;
        let image = range(partition, get_u32(pdi, 20)?.into(), get_u32(pdi, 16)?.into())?;
        Some(image.to_vec())
    };
    let count = get_u32(partition, 120).unwrap_or(0).min(1024);
    let pdis: Option<Vec<_>> = (0..u64::from(count)).map(read).collect();
    pdis.filter(|pdis| !pdis.is_empty()).ok_or("the xclbin has no PDI, or a broken one")
}

fn range(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let end = offset.checked_add(size)?;
    bytes.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
}
