//! Writers of xclbin files and instruction streams, by the documented offsets.

/// What goes into an xclbin.
#[derive(Clone, Debug)]
pub struct XclbinParts {
    pub name: String,
    pub kernel_id: u16,
    pub function: u8,
    pub columns: u16,
    pub start_columns: Vec<u16>,
    pub operations_per_cycle: u32,
    pub pdis: Vec<(Vec<u8>, Vec<u64>)>,
    pub metadata: Option<String>,
}

impl Default for XclbinParts {
    fn default() -> XclbinParts {
        XclbinParts {
            name: "MLIR_AIE:MLIRAIE".into(),
            kernel_id: 0x901,
            function: 0,
            columns: 4,
            start_columns: vec![1],
            operations_per_cycle: 2048,
            pdis: vec![((0..200).collect(), vec![0x901])],
            metadata: Some("<project/>".into()),
        }
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, value: &[u8]) {
    if bytes.len() < at + value.len() {
        bytes.resize(at + value.len(), 0);
    }
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn put_list(bytes: &mut Vec<u8>, at: usize, count: usize, offset: usize) {
    put(bytes, at, &(count as u32).to_le_bytes());
    put(bytes, at + 4, &(offset as u32).to_le_bytes());
}

fn partition(parts: &XclbinParts) -> Vec<u8> {
    let mut bytes = vec![0; 184];
    put(&mut bytes, 8, &parts.operations_per_cycle.to_le_bytes());
    put(&mut bytes, 32, &parts.columns.to_le_bytes());
    let at = bytes.len();
    put_list(&mut bytes, 40, parts.start_columns.len(), at);
    for column in &parts.start_columns {
        bytes.extend(column.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let first = bytes.len();
    put_list(&mut bytes, 120, parts.pdis.len(), first);
    bytes.resize(first + parts.pdis.len() * 96, 0);
    for (index, (image, ids)) in parts.pdis.iter().enumerate() {
        let entry = first + index * 96;
        put(&mut bytes, entry, &[index as u8 + 1; 16]);
        let at = bytes.len();
        put_list(&mut bytes, entry + 16, image.len(), at);
        bytes.extend(image);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let group = bytes.len();
        put_list(&mut bytes, entry + 24, 1, group);
        bytes.resize(group + 96, 0);
        bytes[group + 4] = 1;
        let at = bytes.len();
        put_list(&mut bytes, group + 16, ids.len(), at);
        for id in ids {
            bytes.extend(id.to_le_bytes());
        }
    }
    bytes
}

fn ip_layout(parts: &XclbinParts) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 80];
    put(&mut bytes, 0, &1_u32.to_le_bytes());
    put(&mut bytes, 8, &7_u32.to_le_bytes());
    let properties = u32::from(parts.kernel_id) << 16 | u32::from(parts.function) << 4 | 1;
    put(&mut bytes, 12, &properties.to_le_bytes());
    put(&mut bytes, 24, parts.name.as_bytes());
    bytes
}

/// A whole file.
pub fn xclbin(parts: &XclbinParts) -> Vec<u8> {
    let mut sections = vec![(8_u32, ip_layout(parts)), (32, partition(parts))];
    if let Some(metadata) = &parts.metadata {
        sections.push((2, metadata.clone().into_bytes()));
    }
    // A section that the reader has no use for.
    sections.push((6, vec![0xEE; 48]));
    let mut bytes = b"xclbin2\0".to_vec();
    put(&mut bytes, 416, &[0xAB; 16]);
    put(&mut bytes, 448, &(sections.len() as u32).to_le_bytes());
    bytes.resize(456 + sections.len() * 40, 0);
    for (index, (kind, section)) in sections.iter().enumerate() {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let at = bytes.len() as u64;
        let entry = 456 + index * 40;
        put(&mut bytes, entry, &kind.to_le_bytes());
        put(&mut bytes, entry + 24, &at.to_le_bytes());
        put(&mut bytes, entry + 32, &(section.len() as u64).to_le_bytes());
        bytes.extend(section);
    }
    let length = bytes.len() as u64;
    put(&mut bytes, 304, &length.to_le_bytes());
    bytes
}

/// An operation of an instruction stream.
#[derive(Clone, Debug)]
pub enum Op {
    Write { address: u64, value: u32 },
    Block { address: u32, data: Vec<u32> },
    MaskWrite { address: u64, value: u32, mask: u32 },
    MaskPoll { address: u64 },
    Preempt,
    LoadPdi,
    Sync,
    Patch { register: u64, argument: u64, offset: u64 },
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn long(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

impl Op {
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Op::Write { address, value } => {
                let [low, high] = long(*address);
                words(&[0, 0, low, high, *value, 24])
            }
            Op::Block { address, data } => {
                let mut all = vec![1, 0, *address, 16 + 4 * data.len() as u32];
                all.extend(data);
                words(&all)
            }
            Op::MaskWrite { address, value, mask } => {
                let [low, high] = long(*address);
                words(&[3, 0, low, high, *value, *mask, 28])
            }
            Op::MaskPoll { address } => {
                let [low, high] = long(*address);
                words(&[4, 0, low, high, 1, 1, 28])
            }
            Op::Preempt => words(&[6]),
            Op::LoadPdi => words(&[8, 0, 0, 0]),
            Op::Sync => words(&[0x80, 16, 0, 0]),
            Op::Patch { register, argument, offset } => {
                let (register, argument, offset) =
                    (long(*register), long(*argument), long(*offset));
                let mut all = vec![0x81, 48, 0, 0, 0, 0];
                all.extend([register, argument, offset].concat());
                words(&all)
            }
        }
    }
}

/// A whole stream.
pub fn stream(header: u32, columns: u32, operations: &[Op]) -> Vec<u8> {
    let body: Vec<u8> = operations.iter().flat_map(Op::bytes).collect();
    let size = 16 + body.len() as u32;
    let mut bytes = words(&[header, columns | 1 << 8, operations.len() as u32, size]);
    bytes.extend(body);
    bytes
}

pub const NPU1: u32 = 0x0603_0100;
pub const NPU2: u32 = 0x0604_0100;

/// A stream that names so many buffers and does what real ones do.
pub fn stream_for(buffers: u64) -> Vec<u8> {
    let mut operations = vec![Op::LoadPdi, Op::Write { address: 0x21_4000, value: 3 }];
    for argument in 0..buffers {
        let address = 0x1D000 + 0x20 * argument as u32;
        operations.push(Op::Block { address, data: vec![7; 8] });
        let register = u64::from(address) + 4;
        operations.push(Op::Patch { register, argument, offset: 64 * argument });
    }
    operations.push(Op::MaskWrite { address: 0x1D214, value: 1, mask: 0xFF });
    operations.push(Op::Sync);
    stream(NPU1, 4, &operations)
}
