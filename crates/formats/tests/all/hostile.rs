//! Hostile files: cut, flipped, or crafted to claim the impossible. Reading ends in an error or in
//! a sound model, never in a panic, and never allocates more than the file's size justifies.

use crate::support::held;
use std::fs;
use std::path::Path;

use crate::common::{Scratch, safetensors, small_gguf, small_safetensors};
use pianola_formats::npy::{read_f32, read_tokens};
use pianola_formats::{Error, Gguf, GgufWriter, Safetensors, TensorSource};
use proptest::prelude::*;

/// Bytes that decoded structures may take for each byte of file. The densest case is metadata
/// made of the shortest pairs: 14 bytes of file become two copies of the key, a value, an entry
/// of the list and one of the table of keys, whose vectors may have twice the room they need.
const BYTES_PER_BYTE: usize = 16;
/// For error messages and the like, whatever the file's size.
const FIXED_BYTES: usize = 8 << 10;

/// Runs a reader, and fails if it held more memory at once than `file_bytes` justify.
fn measured<T>(file_bytes: usize, read: impl FnOnce() -> T) -> T {
    held::measured(file_bytes, BYTES_PER_BYTE, FIXED_BYTES, read)
}

/// Reads a GGUF file and, if it is sound, every weight in it.
fn read_gguf(bytes: &[u8]) -> Result<(), Error> {
    let owned = bytes.to_vec();
    let gguf = measured(bytes.len(), || Gguf::from_bytes(Path::new("hostile.gguf"), owned))?;
    decode_all(&gguf, bytes.len());
    Ok(())
}

fn read_safetensors(bytes: &[u8]) -> Result<(), Error> {
    let owned = bytes.to_vec();
    let path = Path::new("hostile.safetensors");
    let file = measured(bytes.len(), || Safetensors::from_bytes(path, owned))?;
    decode_all(&file, bytes.len());
    Ok(())
}

fn decode_all(source: &dyn TensorSource, file_bytes: usize) {
    let mut stored = 0;
    for info in source.tensor_infos() {
        let tensor = source.tensor(&info.name).expect("listed");
        // A weight takes at least half a byte in a file and four in memory.
        let values = measured(tensor.bytes.len(), || tensor.to_f32());
        assert_eq!(values.len(), tensor.elements());
        stored += tensor.bytes.len();
    }
    assert!(stored <= file_bytes, "tensors share bytes");
}

fn check_every_cut(bytes: &[u8], needed: usize, read: impl Fn(&[u8]) -> Result<(), Error>) {
    read(bytes).expect("the whole file is sound");
    for length in 0..bytes.len() {
        let result = read(&bytes[..length]);
        assert_eq!(result.is_err(), length < needed, "cut to {length} of {}", bytes.len());
    }
}

fn check_every_flip(bytes: &[u8], read: impl Fn(&[u8]) -> Result<(), Error>) {
    let mut refused = 0;
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        refused += usize::from(read(&flipped).is_err());
    }
    assert!(refused > 100, "only {refused} flips were noticed");
}

/// Puts sizes that overflow, exhaust memory or just miss at every position.
fn check_huge_numbers(bytes: &[u8], read: impl Fn(&[u8]) -> Result<(), Error>) {
    let length = bytes.len() as u64;
    let numbers =
        [u64::MAX, u64::MAX - 31, i64::MAX as u64, 1 << 60, 1 << 32, 1 << 31, length, length / 8];
    for at in 0..bytes.len() - 8 {
        for number in numbers {
            let mut crafted = bytes.to_vec();
            crafted[at..at + 8].copy_from_slice(&number.to_le_bytes());
            let _ = read(&crafted);
        }
    }
}

#[test]
fn gguf_cut_anywhere() {
    let bytes = small_gguf().to_bytes().unwrap();
    // The last tensor has 12 bytes, padded to 32: the padding may be missing.
    check_every_cut(&bytes, bytes.len() - 20, read_gguf);
}

#[test]
fn gguf_with_any_bit_flipped() {
    check_every_flip(&small_gguf().to_bytes().unwrap(), read_gguf);
}

#[test]
fn gguf_with_huge_numbers_anywhere() {
    check_huge_numbers(&small_gguf().to_bytes().unwrap(), read_gguf);
}

#[test]
fn gguf_counts_are_refused_before_anything_is_allocated() {
    for (tensors, pairs) in [(1u64 << 60, 0), (0, 1u64 << 60), (u64::MAX, u64::MAX), (1000, 0)] {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(pairs.to_le_bytes());
        bytes.resize(1024, 0);
        let error = read_gguf(&bytes).unwrap_err().to_string();
        assert!(error.contains("more than its 1024 bytes can hold"), "{error}");
    }
}

/// The densest files: as many strings, pairs or tensors as fit, all valid.
#[test]
fn gguf_of_many_small_things_stays_small() {
    let mut writer = GgufWriter::new();
    writer.set("tokens", vec![String::new(); 50_000]);
    read_gguf(&writer.to_bytes().unwrap()).unwrap();

    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(20_000u64.to_le_bytes());
    for key in 0..20_000u32 {
        let key = format!("{key:x}");
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend([0, 0, 0, 0, 7]);
    }
    read_gguf(&bytes).unwrap();

    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(20_000u64.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    for tensor in 0..20_000u64 {
        let name = format!("{tensor:x}");
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend([0; 8]); // a scalar of type f32
        bytes.extend((tensor * 32).to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + 20_000 * 32, 0);
    read_gguf(&bytes).unwrap();
}

#[test]
fn safetensors_cut_anywhere() {
    let bytes = small_safetensors();
    check_every_cut(&bytes, bytes.len(), read_safetensors);
}

#[test]
fn safetensors_with_any_bit_flipped() {
    check_every_flip(&small_safetensors(), read_safetensors);
}

#[test]
fn safetensors_with_huge_numbers_anywhere() {
    check_huge_numbers(&small_safetensors(), read_safetensors);
}

#[test]
fn safetensors_of_many_small_things_stays_small() {
    let entries: Vec<String> = (0..5_000)
        .map(|i| format!(r#""{i:x}":{{"dtype":"","shape":[],"data_offsets":[0,0]}}"#))
        .collect();
    read_safetensors(&safetensors(&format!("{{{}}}", entries.join(",")), &[])).unwrap();
    let long = format!(
        r#"{{"x":{{"dtype":"F32","shape":[{}1],"data_offsets":[0,4]}}}}"#,
        "1,".repeat(50_000)
    );
    assert!(read_safetensors(&safetensors(&long, &[0; 4])).is_err());
}

#[test]
fn npy_cut_flipped_and_huge() {
    let scratch = Scratch::new();
    let path = scratch.join("hostile.npy");
    let read = |bytes: &[u8]| -> Result<(), Error> {
        fs::write(&path, bytes).unwrap();
        let tokens = measured(bytes.len(), || read_tokens(&path)).map(|_| ());
        let floats = measured(bytes.len(), || read_f32(&path)).map(|_| ());
        tokens.or(floats)
    };
    for (descr, data) in
        [("<i4", [1, 0, 0, 0, 2, 0, 0, 0]), ("<f4", [0, 0, 0x80, 0x3f, 0, 0, 0, 0])]
    {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}");
        let mut bytes = b"\x93NUMPY\x01\0".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        check_every_cut(&bytes, bytes.len(), read);
        check_every_flip(&bytes, read);
        check_huge_numbers(&bytes, read);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_bytes_after_a_valid_start(
        tensors in 0u64..4,
        pairs in 0u64..4,
        bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 2 => 0u8..13, 1 => any::<u8>()], 0..300),
    ) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(tensors.to_le_bytes());
        file.extend(pairs.to_le_bytes());
        file.extend(&bytes);
        let _ = read_gguf(&file);
        let _ = read_gguf(&bytes);
        let _ = read_safetensors(&bytes);
    }

    /// Several changes at once get past checks that one change does not.
    #[test]
    fn several_bytes_changed(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        for (bytes, read) in [
            (small_gguf().to_bytes().unwrap(), read_gguf as fn(&[u8]) -> Result<(), Error>),
            (small_safetensors(), read_safetensors),
        ] {
            let mut changed = bytes;
            for (at, byte) in &changes {
                let at = at.index(changed.len());
                changed[at] = *byte;
            }
            let _ = read(&changed);
        }
    }

    #[test]
    fn any_json_as_safetensors_header(
        header in "\\{(\"[a-c]\":(\\{(\"(dtype|shape|data_offsets)\":(\"F32\"|[0-9]{1,20}|\\[[0-9]{1,3}(,[0-9]{1,20})?\\]|null),?){0,4}\\}|1|\\[\\]),?){0,3}\\}",
        data in prop::collection::vec(any::<u8>(), 0..32),
    ) {
        let _ = read_safetensors(&safetensors(&header, &data));
    }
}
