//! GGUF files written and read back, and the errors of files that are wrong in one way.

use crate::common;
use std::path::Path;

use crate::common::{Scratch, Uniform, small_gguf, tensor};
use pianola_formats::{
    Array, ErrorKind, Gguf, GgufStream, GgufWriter, TensorSource, TensorType, Value, is_gguf,
};
use proptest::prelude::*;

fn read(bytes: Vec<u8>) -> Result<Gguf, pianola_formats::Error> {
    Gguf::from_bytes(Path::new("test.gguf"), bytes)
}

/// The error of a file, which must be of this kind, name the file and contain the text.
fn refuse(bytes: Vec<u8>, kind: ErrorKind, text: &str) {
    let error = read(bytes).expect_err(text);
    assert_eq!(error.kind(), kind, "{error}");
    let message = error.to_string();
    assert!(message.starts_with("test.gguf: ") && message.contains(text), "{message}");
}

/// Replaces the only occurrence of a byte string.
fn patch(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let places: Vec<usize> =
        (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from)).collect();
    assert_eq!(places.len(), 1, "{from:?} occurs at {places:?}");
    bytes[places[0]..][..from.len()].copy_from_slice(to);
}

#[test]
fn written_file_reads_back() {
    let scratch = Scratch::new();
    let path = scratch.join("model.gguf");
    small_gguf().write(&path).unwrap();
    assert!(is_gguf(&path));
    assert!(!is_gguf(&*scratch));

    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.version(), 3);
    assert_eq!(gguf.metadata().len(), 7);
    assert_eq!(gguf.metadata().next(), Some(("general.architecture", &Value::from("test"))));
    assert_eq!(gguf.string("general.architecture"), Some("test"));
    assert_eq!(gguf.unsigned("test.block_count"), Some(2));
    assert_eq!(gguf.float("test.block_count"), Some(2.0));
    assert_eq!(gguf.float("test.epsilon"), Some(f64::from(1e-6f32)));
    assert_eq!(gguf.unsigned("test.epsilon"), None);
    assert_eq!(gguf.boolean("test.flag"), Some(true));
    assert_eq!(gguf.strings("tokenizer.ggml.tokens").unwrap(), ["a", "▁b", ""]);
    assert_eq!(gguf.floats("tokenizer.ggml.scores").unwrap(), [0.0, -1.0, -2.5]);
    assert_eq!(gguf.integers("tokenizer.ggml.token_type").unwrap(), [1, 1, 3]);
    assert_eq!(gguf.integers("tokenizer.ggml.scores"), None);
    assert_eq!(gguf.get("absent"), None);

    let infos = gguf.tensor_infos();
    assert_eq!(infos.len(), 2);
    assert_eq!((infos[0].name.as_str(), infos[0].bytes), ("first", 36));
    assert_eq!(infos[0].shape, [2, 32]);
    let expected = tensor("first", TensorType::Q4_0, &[2, 32], &Uniform(1).vector(64));
    assert_eq!(gguf.tensor("first").unwrap(), expected);
    assert_eq!(gguf.tensor("second").unwrap().to_f32(), [1.0, 2.0, 3.0]);
    let error = gguf.try_tensor("third").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(error.to_string().contains("'third'"), "{error}");
}

#[test]
fn stream_and_writer_agree() {
    let scratch = Scratch::new();
    let path = scratch.join("model.gguf");
    small_gguf().write(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), small_gguf().to_bytes().unwrap());
}

#[test]
fn version_two_reads_alike() {
    let mut bytes = small_gguf().to_bytes().unwrap();
    bytes[4] = 2;
    assert_eq!(read(bytes).unwrap().version(), 2);
}

#[test]
fn alignment_is_followed() {
    let mut writer = small_gguf();
    writer.set("general.alignment", 128u32);
    let bytes = writer.to_bytes().unwrap();
    assert!(bytes.len().is_multiple_of(128));
    assert_eq!(read(bytes).unwrap().tensor("second").unwrap().to_f32(), [1.0, 2.0, 3.0]);
}

#[test]
fn foreign_files_and_versions_are_named() {
    refuse(b"<!DOCTYPE html>".to_vec(), ErrorKind::Foreign, "HTML page");
    refuse(b"PK\x03\x04".to_vec(), ErrorKind::Foreign, "zip");
    refuse(common::small_safetensors(), ErrorKind::Foreign, "safetensors");
    refuse(Vec::new(), ErrorKind::Foreign, "empty");
    let with_version = |version: u32| {
        let mut bytes = small_gguf().to_bytes().unwrap();
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        bytes
    };
    refuse(with_version(1), ErrorKind::Unsupported, "version 1");
    refuse(with_version(4), ErrorKind::Unsupported, "version 4");
    refuse(with_version(3u32.swap_bytes()), ErrorKind::Unsupported, "big-endian");
}

#[test]
fn unsupported_tensor_type_is_named() {
    let mut bytes = small_gguf().to_bytes().unwrap();
    // Name, 1 dimension of 3, type 0: make it type 16.
    let entry = |ty: u8| {
        let mut entry = b"second".to_vec();
        entry.extend([1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, ty, 0, 0, 0]);
        entry
    };
    patch(&mut bytes, &entry(0), &entry(16));
    refuse(
        bytes,
        ErrorKind::Unsupported,
        "tensor 'second' has type iq2_xxs, which is not supported; supported: f32,",
    );
}

#[test]
fn contradictions_are_refused() {
    let good = small_gguf().to_bytes().unwrap();
    let patched = |from: &[u8], to: &[u8]| {
        let mut bytes = good.clone();
        patch(&mut bytes, from, to);
        bytes
    };
    let malformed = |bytes, text| refuse(bytes, ErrorKind::Malformed, text);
    malformed(patched(b"test.epsilon", b"test.epsi\xffon"), "no UTF-8");
    malformed(patched(b"test.flag\x07\0\0\0\x01", b"test.flag\x07\0\0\0\x02"), "boolean");
    malformed(patched(b"test.flag\x07", b"test.flag\x0d"), "unknown type 13");
    malformed(patched(b"second\x01\0\0\0", b"second\x05\0\0\0"), "5 dimensions");
    malformed(patched(b"second\x01\0\0\0\x03", b"second\x01\0\0\0\0"), "empty shape");
    malformed(patched(b"first\x02\0\0\0\x20", b"first\x02\0\0\0\x21"), "multiple of 32");
    // The second tensor's offset is 64: 36 bytes of the first, aligned.
    let entry = b"second\x01\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0";
    let with_offset = |offset: u64| {
        let (mut from, mut to) = (entry.to_vec(), entry.to_vec());
        from.extend(64u64.to_le_bytes());
        to.extend(offset.to_le_bytes());
        patched(&from, &to)
    };
    malformed(with_offset(63), "offset 63, no multiple of 32");
    malformed(with_offset(32), "'first' and 'second' overlap");
    malformed(with_offset(u64::MAX - 31), "beyond any file");
    refuse(with_offset(96), ErrorKind::Truncated, "tensor 'second' needs bytes");

    // The writer refuses duplicates, so give two names of equal length the same spelling.
    let mut writer = small_gguf();
    writer.set("tesu.flag", false);
    writer.add(tensor("thirds", TensorType::F32, &[1], &[0.0]));
    let twice = writer.to_bytes().unwrap();
    let mut bytes = twice.clone();
    patch(&mut bytes, b"tesu.flag", b"test.flag");
    malformed(bytes, "key 'test.flag' occurs twice");
    let mut bytes = twice;
    patch(&mut bytes, b"thirds", b"second");
    malformed(bytes, "tensor 'second' occurs twice");
}

#[test]
fn special_keys_are_checked() {
    let mut writer = small_gguf();
    writer.set("split.count", 3u16);
    refuse(writer.to_bytes().unwrap(), ErrorKind::Unsupported, "one of 3 parts");
    let mut writer = small_gguf();
    writer.set("general.alignmenu", 48u32);
    let mut bytes = writer.to_bytes().unwrap();
    patch(&mut bytes, b"general.alignmenu", b"general.alignment");
    refuse(bytes, ErrorKind::Malformed, "power of two, found 48");
}

#[test]
fn nested_arrays_are_refused() {
    let mut writer = GgufWriter::new();
    writer.set("k", Vec::<u8>::new());
    let mut bytes = writer.to_bytes().unwrap();
    // key length 1, "k", array, element type u8: make the elements arrays.
    patch(&mut bytes, b"k\x09\0\0\0\0\0\0\0", b"k\x09\0\0\0\x09\0\0\0");
    refuse(bytes, ErrorKind::Unsupported, "key 'k' is an array of arrays");
}

#[test]
fn broken_text_in_values_is_replaced() {
    let mut bytes = small_gguf().to_bytes().unwrap();
    patch(&mut bytes, "▁b".as_bytes(), b"\xff\xfe\x80b");
    let gguf = read(bytes).unwrap();
    assert_eq!(gguf.strings("tokenizer.ggml.tokens").unwrap()[1], "\u{fffd}\u{fffd}\u{fffd}b");
}

#[test]
fn writer_refuses_what_the_reader_would() {
    let refuse = |writer: &GgufWriter<'_>, text: &str| {
        let error = writer.to_bytes().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().contains(text), "{error}");
    };
    let zeros = [0.0; 64];
    let mut writer = small_gguf();
    refuse(writer.add(tensor("first", TensorType::F32, &[1], &[0.0])), "given twice");
    let mut writer = GgufWriter::new();
    refuse(writer.add(tensor("x", TensorType::Q8_0, &[4, 16], &zeros)), "multiple of 32");
    let mut writer = GgufWriter::new();
    refuse(writer.add(tensor("x", TensorType::F32, &[63], &zeros)), "256 bytes declared");
    let mut writer = GgufWriter::new();
    refuse(writer.set("general.alignment", 24u32), "power of two");

    let scratch = Scratch::new();
    let path = scratch.join("partial.gguf");
    let info = tensor("x", TensorType::F32, &[64], &zeros).info();
    let mut stream = GgufStream::create(&path, &[], vec![info]).unwrap();
    assert!(stream.push(&[0; 255]).is_err());
    assert!(stream.finish().unwrap_err().to_string().contains("not written"));
    assert_eq!(std::fs::read_dir(&*scratch).unwrap().count(), 0);
}

/// Any value but NaN, which is not equal to itself.
fn any_value() -> impl Strategy<Value = Value> {
    let number = |v: f32| !v.is_nan();
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_filter("NaN", move |v| number(*v)).prop_map(Value::F32),
        any::<i32>().prop_map(|v| Value::F64(f64::from(v) / 3.0)),
        any::<bool>().prop_map(Value::Bool),
        "\\PC{0,12}".prop_map(Value::String),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i8>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<u16>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i16>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<u32>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<i64>(), 0..9).prop_map(Value::from),
        prop::collection::vec(-1e9f32..1e9, 0..9).prop_map(Value::from),
        prop::collection::vec(-1e9f64..1e9, 0..9).prop_map(Value::from),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(Value::from),
        prop::collection::vec("\\PC{0,6}", 0..9).prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_metadata_round_trips(pairs in prop::collection::btree_map("[a-z.]{1,20}", any_value(), 0..12)) {
        let mut writer = small_gguf();
        for (key, value) in &pairs {
            writer.set(format!("random.{key}"), value.clone());
        }
        let gguf = read(writer.to_bytes().unwrap()).unwrap();
        for (key, value) in &pairs {
            prop_assert_eq!(gguf.get(&format!("random.{key}")), Some(value));
        }
        prop_assert_eq!(gguf.metadata().len(), pairs.len() + 7);
        prop_assert_eq!(gguf.tensor("second").unwrap().to_f32(), [1.0, 2.0, 3.0]);
    }

    /// Getters agree with the stored value whatever its width.
    #[test]
    fn integers_of_any_width_are_found(value in any::<i64>()) {
        let mut writer = GgufWriter::new();
        writer.set("wide", value).set("array", Value::Array(Array::I64(vec![value])));
        let gguf = read(writer.to_bytes().unwrap()).unwrap();
        prop_assert_eq!(gguf.unsigned("wide"), u64::try_from(value).ok());
        prop_assert_eq!(gguf.float("wide"), Some(value as f64));
        prop_assert_eq!(gguf.integers("array"), Some(vec![value]));
    }
}
