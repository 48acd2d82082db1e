//! xclbin files and instruction streams: sound ones are read as they were written; damaged ones end
//! in an error or in something sound, never in a panic, and never in memory that their size does
//! not justify.

use crate::support::skip;
use std::path::{Path, PathBuf};

use crate::common::files::{NPU1, NPU2, Op, XclbinParts, stream, stream_for, xclbin};
use crate::support::held::measured;
use pianola_npu::amdxdna::Generation;
use pianola_npu::instructions::{Instructions, InstructionsError};
use pianola_npu::xclbin::{Partition, Xclbin, XclbinError};
use proptest::prelude::*;

fn read_xclbin(bytes: Vec<u8>) -> Result<Xclbin, XclbinError> {
    let length = bytes.len();
    // Its lists are bounded by number besides: 64 PDIs of at most 64 groups of 256 numbers.
    let xclbin = measured(length, 64, 64 << 10, || Xclbin::parse(bytes))?;
    for kernel in xclbin.kernels() {
        if let Some(pdi) = xclbin.pdi_of(kernel) {
            assert!(!xclbin.image(pdi).is_empty());
        }
    }
    let _ = xclbin.metadata();
    Ok(xclbin)
}

fn read_stream(bytes: Vec<u8>) -> Result<Instructions, InstructionsError> {
    let length = bytes.len();
    measured(length, 16, 8 << 10, || Instructions::parse(bytes))
}

fn parts() -> impl Strategy<Value = XclbinParts> {
    let pdi =
        (prop::collection::vec(any::<u8>(), 1..300), prop::collection::vec(0..0xFFF_u64, 0..5));
    (
        "[A-Z_]{1,20}:[A-Z]{1,20}",
        0..0x1000_u16,
        0..4_u8,
        1..9_u16,
        prop::collection::vec(0..8_u16, 0..5),
        prop::collection::vec(pdi, 1..5),
        prop::option::of("[<a-z>/]{0,60}"),
    )
        .prop_map(|(name, kernel_id, function, columns, start_columns, pdis, metadata)| {
            let operations_per_cycle = 2048;
            XclbinParts {
                name,
                kernel_id,
                function,
                columns,
                start_columns,
                operations_per_cycle,
                pdis,
                metadata,
            }
        })
}

fn operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(a, value)| Op::Write { address: a.into(), value }),
        (0..1_u32 << 20, prop::collection::vec(any::<u32>(), 0..9))
            .prop_map(|(address, data)| Op::Block { address, data }),
        any::<(u32, u32, u32)>().prop_map(|(a, value, mask)| Op::MaskWrite {
            address: a.into(),
            value,
            mask
        }),
        any::<u32>().prop_map(|address| Op::MaskPoll { address: address.into() }),
        Just(Op::Preempt),
        Just(Op::LoadPdi),
        Just(Op::Sync),
    ]
}

/// Damage: a cut, and bytes set.
fn damage() -> impl Strategy<Value = (Option<prop::sample::Index>, Vec<(prop::sample::Index, u8)>)>
{
    let set = (any::<prop::sample::Index>(), any::<u8>());
    (prop::option::of(any::<prop::sample::Index>()), prop::collection::vec(set, 1..8))
}

fn damaged(
    mut bytes: Vec<u8>,
    (cut, set): (Option<prop::sample::Index>, Vec<(prop::sample::Index, u8)>),
) -> Vec<u8> {
    for (index, byte) in set {
        let at = index.index(bytes.len());
        bytes[at] = byte;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes
}

proptest! {
    #[test]
    fn an_xclbin_is_read_as_written(parts in parts()) {
        let xclbin = read_xclbin(xclbin(&parts)).unwrap();
        let kernel = &xclbin.kernels()[0];
        prop_assert_eq!(&kernel.name, &parts.name);
        prop_assert_eq!((kernel.id, kernel.function), (parts.kernel_id, parts.function));
        let partition = xclbin.partition();
        prop_assert_eq!(partition.columns, parts.columns);
        prop_assert_eq!(&partition.start_columns, &parts.start_columns);
        prop_assert_eq!(partition.pdis.len(), parts.pdis.len());
        for (pdi, (image, _)) in partition.pdis.iter().zip(&parts.pdis) {
            prop_assert_eq!(xclbin.image(pdi), image);
        }
        let with_kernel = parts.pdis.iter().position(|(_, ids)| ids.contains(&kernel.id.into()));
        let chosen = xclbin.pdi_of(kernel).map(|pdi| xclbin.image(pdi));
        prop_assert_eq!(chosen, with_kernel.map(|index| &parts.pdis[index].0[..]));
        prop_assert_eq!(xclbin.metadata(), parts.metadata.as_deref());
    }

    #[test]
    fn a_damaged_xclbin_never_panics(parts in parts(), damage in damage()) {
        let _ = read_xclbin(damaged(xclbin(&parts), damage));
    }

    #[test]
    fn a_stream_is_read_as_written(operations in prop::collection::vec(operation(), 0..30)) {
        let bytes = stream(NPU2, 8, &operations);
        let instructions = read_stream(bytes.clone()).unwrap();
        prop_assert_eq!(instructions.bytes(), &bytes[..]);
        prop_assert_eq!(instructions.generation(), Generation::Npu2);
        prop_assert_eq!(instructions.columns(), 8);
        prop_assert_eq!(instructions.buffers(), 0);
        let text: String =
            bytes.chunks(4).map(|word| format!("{:08X}\n", u32::from_le_bytes(word.try_into().unwrap()))).collect();
        prop_assert_eq!(Instructions::parse_text(&text).unwrap(), instructions);
    }

    #[test]
    fn a_damaged_stream_never_panics(buffers in 0..6_u64, damage in damage()) {
        let _ = read_stream(damaged(stream_for(buffers), damage));
    }

    #[test]
    fn patches_must_lie_in_blocks(
        blocks in prop::collection::vec((0..200_u32, 1..20_usize), 1..10),
        register in 0..300_u64,
    ) {
        let mut operations: Vec<Op> = blocks
            .iter()
            .map(|&(word, words)| Op::Block { address: word * 4, data: vec![0; words] })
            .collect();
        operations.push(Op::Patch { register: register * 4, argument: 0, offset: 0 });
        // Both words of an address are written, and none is a block's first.
        let written = |register: u64| blocks.iter().any(|&(word, words)| {
            (u64::from(word)..u64::from(word) + words as u64).contains(&register)
        });
        let first = blocks.iter().any(|&(word, _)| u64::from(word) == register);
        let sound = written(register) && written(register + 1) && !first;
        prop_assert_eq!(read_stream(stream(NPU1, 4, &operations)).is_ok(), sound);
    }
}

#[test]
fn every_cut_of_an_xclbin_is_an_error() {
    let bytes = xclbin(&XclbinParts::default());
    for length in 0..bytes.len() {
        assert!(read_xclbin(bytes[..length].to_vec()).is_err(), "{length} bytes");
    }
    assert_eq!(read_xclbin(b"\x7FELF".to_vec()).unwrap_err(), XclbinError::Foreign);
}

#[test]
fn lists_of_impossible_length_are_refused() {
    let bytes = xclbin(&XclbinParts::default());
    // The first section is IP_LAYOUT, whose count comes first; a count of sections stands at 448.
    let layout = u64::from_le_bytes(bytes[456 + 24..456 + 32].try_into().unwrap()) as usize;
    for at in [layout, 448] {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(read_xclbin(bytes), Err(XclbinError::Outside { .. })));
    }
}

#[test]
fn streams_say_what_is_wrong() {
    let sound = stream_for(3);
    let instructions = read_stream(sound.clone()).unwrap();
    assert_eq!(instructions.buffers(), 3);
    assert_eq!(instructions.patches()[2].offset, 128);
    assert_eq!(instructions.generation(), Generation::Npu1);
    let error = |bytes: Vec<u8>| read_stream(bytes).unwrap_err();
    assert!(matches!(error(stream(0x0605_0100, 4, &[])), InstructionsError::Header { .. }));
    assert!(matches!(error(sound[..sound.len() - 4].to_vec()), InstructionsError::Size { .. }));
    assert!(matches!(error(sound[..18].to_vec()), InstructionsError::Foreign(_)));
    let patch = |argument, register| {
        let block = Op::Block { address: 0x100, data: vec![0; 3] };
        stream(NPU1, 4, &[block, Op::Patch { register, argument, offset: 0 }])
    };
    assert!(read_stream(patch(4, 0x104)).is_ok());
    assert!(matches!(error(patch(5, 0x104)), InstructionsError::TooManyBuffers { argument: 5 }));
    // A descriptor's length, its last word, between two words, behind it, and in another half of 64 bits.
    for register in [0x100, 0x108, 0x106, 0x10C, 1 << 32 | 0x104] {
        assert!(matches!(error(patch(0, register)), InstructionsError::StrayPatch { .. }));
    }
    for far in [Op::Write { address: 1 << 40, value: 0 }, Op::MaskPoll { address: 1 << 32 }] {
        let far = error(stream(NPU1, 4, &[far]));
        assert!(matches!(far, InstructionsError::Register { at: 16, .. }), "{far}");
    }
    let mut counted = sound.clone();
    counted[8] += 1;
    assert!(matches!(error(counted), InstructionsError::Count { .. }));
    let mut unknown = sound;
    unknown[16] = 0x55;
    assert!(matches!(error(unknown), InstructionsError::Opcode { opcode: 0x55, at: 16 }));
    assert!(matches!(
        Instructions::parse_text("06030100\nzz\n"),
        Err(InstructionsError::Foreign(_))
    ));
}

/// What `scripts/npu-xclbins` describes to AMD's tool: columns, and of each kernel its name, its number and
/// the bytes of its PDI.
type Described = (&'static str, u16, &'static [(&'static str, u16, usize)]);

const DESCRIBED: [Described; 4] = [
    ("one_column", 1, &[("MLIR_AIE:MLIRAIE", 0x901, 20_000)]),
    ("two_columns", 2, &[("MLIR_AIE:MLIRAIE", 0x901, 3001)]),
    ("four_columns", 4, &[("MLIR_AIE:MLIRAIE", 0x901, 20_000)]),
    ("two_kernels", 4, &[("MLIR_AIE:MLIRAIE", 0x901, 20_000), ("OTHER:MLIRAIE", 0x902, 3001)]),
];

/// A file that AMD's tool wrote says what the tool was told.
fn check_described(path: &Path, xclbin: &Xclbin) {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let Some((_, columns, expected)) = DESCRIBED.iter().find(|(name, ..)| Some(*name) == stem)
    else {
        return;
    };
    let partition = xclbin.partition();
    assert_eq!((partition.columns, &partition.start_columns[..]), (*columns, &[0, 1][..]));
    assert_eq!(partition.operations_per_cycle, 2048);
    let image = |kernel| xclbin.pdi_of(kernel).map_or(0, |pdi| xclbin.image(pdi).len());
    let found: Vec<_> =
        xclbin.kernels().iter().map(|one| (one.name.as_str(), one.id, image(one))).collect();
    assert_eq!(found, *expected, "{}", path.display());
    assert!(xclbin.kernels().iter().all(|kernel| kernel.function == 0));
    assert!(xclbin.metadata().is_some_and(|text| text.contains("MLIR_AIE")));
}

/// xclbin files that others wrote: `PIANOLA_TEST_XCLBIN` names their folder (`scripts/npu-xclbins` makes one
/// with AMD's own tool).
#[test]
fn real_files_are_read() {
    let Some(folder) = std::env::var_os("PIANOLA_TEST_XCLBIN") else {
        skip::skip("PIANOLA_TEST_XCLBIN names no folder");
        return;
    };
    let mut count = 0;
    for entry in std::fs::read_dir(PathBuf::from(folder)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "xclbin") {
            continue;
        }
        let xclbin = read_xclbin(std::fs::read(&path).unwrap());
        let xclbin = xclbin.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        check_described(&path, &xclbin);
        let partition = xclbin.partition();
        assert!((1..=8).contains(&partition.columns), "{}", path.display());
        for kernel in xclbin.kernels() {
            let image = xclbin.pdi_of(kernel).map_or(0, |pdi| xclbin.image(pdi).len());
            let Partition { columns, start_columns, operations_per_cycle, .. } = partition;
            println!(
                "{}: {} {:#x} function {} PDI {image} columns {columns} at {start_columns:?} {operations_per_cycle}",
                path.display(),
                kernel.name,
                kernel.id,
                kernel.function
            );
        }
        count += 1;
    }
    assert!(count > 0, "no .xclbin in the folder");
}

/// Instruction streams of real builds: `PIANOLA_TEST_INSTRUCTIONS` names their folder.
#[test]
fn real_streams_are_read() {
    let Some(folder) = std::env::var_os("PIANOLA_TEST_INSTRUCTIONS") else {
        skip::skip("PIANOLA_TEST_INSTRUCTIONS names no folder");
        return;
    };
    let mut count = 0;
    for entry in std::fs::read_dir(PathBuf::from(folder)).unwrap() {
        let path = entry.unwrap().path();
        let stream = Instructions::parse_file(std::fs::read(&path).unwrap());
        count += 1;
        let stream = match stream {
            // Sound, but of a kernel that no command can name all buffers of.
            Err(error @ InstructionsError::TooManyBuffers { .. }) => {
                println!("{}: {error}", path.display());
                continue;
            }
            stream => stream.unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        };
        let (device, columns) = (stream.generation().name(), stream.columns());
        let used = stream.used_columns();
        println!("{}: {device} {columns} columns, {used} used", path.display());
        println!("  {:?}", stream.patches());
    }
    assert!(count > 0, "no file in the folder");
}
