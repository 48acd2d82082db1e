//! `.npy` arrays: what Python writes is read, what is written Python could read, the rest refused.

use std::fs;

use crate::common::Scratch;
use pianola_formats::ErrorKind;
use pianola_formats::npy::{F32Writer, read_f32, read_tokens};
use proptest::prelude::*;

/// A file as `numpy.save` lays it out, in the given version.
fn npy(version: u8, descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    let prefix = if version == 1 { 10 } else { 12 };
    let length = (prefix + text.len() + 1).next_multiple_of(64) - prefix;
    match version {
        1 => bytes.extend((length as u16).to_le_bytes()),
        _ => bytes.extend((length as u32).to_le_bytes()),
    }
    bytes.extend(text.as_bytes());
    bytes.resize(prefix + length - 1, b' ');
    bytes.push(b'\n');
    bytes.extend(data);
    bytes
}

fn tokens(bytes: &[u8]) -> Result<Vec<u32>, pianola_formats::Error> {
    let scratch = Scratch::new();
    let path = scratch.join("tokens.npy");
    fs::write(&path, bytes).unwrap();
    read_tokens(&path)
}

fn floats(bytes: &[u8]) -> Result<(Vec<usize>, Vec<f32>), pianola_formats::Error> {
    let scratch = Scratch::new();
    let path = scratch.join("floats.npy");
    fs::write(&path, bytes).unwrap();
    read_f32(&path)
}

#[test]
fn tokens_of_every_integer_type_and_version() {
    for version in 1..=3 {
        let read = |descr, shape, data: &[u8]| tokens(&npy(version, descr, "False", shape, data));
        assert_eq!(read("<u2", "(2,)", &[1, 0, 0xff, 0xff]).unwrap(), [1, 65535]);
        assert_eq!(read("<i4", "(1, 2)", &[1, 0, 0, 0, 0, 1, 0, 0]).unwrap(), [1, 256]);
        assert_eq!(read("<u4", "(1,)", &[0xff; 4]).unwrap(), [u32::MAX]);
        assert_eq!(read("<i8", "(1,)", &[5, 0, 0, 0, 0, 0, 0, 0]).unwrap(), [5]);
        assert_eq!(read("<u8", "(1,)", &[6, 0, 0, 0, 0, 0, 0, 0]).unwrap(), [6]);
        assert_eq!(read("<i8", "(0,)", &[]).unwrap(), [0; 0]);
    }
    // One row is the same in either order.
    let row = npy(1, "<u2", "True", "(1, 2)", &[1, 0, 2, 0]);
    assert_eq!(tokens(&row).unwrap(), [1, 2]);
}

#[test]
fn what_is_no_token_list_is_refused() {
    let refuse = |bytes: Vec<u8>, kind: ErrorKind, text: &str| {
        let error = tokens(&bytes).expect_err(text);
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.to_string().contains("tokens.npy: "), "{error}");
        assert_eq!(error.kind(), kind, "{error}");
    };
    let unsupported = ErrorKind::Unsupported;
    refuse(npy(1, "<i4", "False", "(1,)", &[0xff; 4]), ErrorKind::Malformed, "element 0 is -1");
    refuse(npy(1, "<i8", "False", "(1,)", &[0x7f; 8]), ErrorKind::Malformed, "no token");
    refuse(npy(1, ">i4", "False", "(1,)", &[0; 4]), unsupported, "little-endian");
    refuse(npy(1, "<f4", "False", "(1,)", &[0; 4]), unsupported, "'<f4'");
    refuse(npy(1, "<i4", "False", "(2, 1)", &[0; 8]), unsupported, "single row");
    refuse(npy(1, "<i4", "False", "()", &[0; 4]), unsupported, "shape []");
    refuse(npy(1, "<i4", "False", "(2,)", &[0; 7]), ErrorKind::Truncated, "needs 8 bytes");
    refuse(npy(1, "<i4", "False", "(2,)", &[0; 9]), ErrorKind::Malformed, "needs 8 bytes");
    let huge = "(18446744073709551615, 18446744073709551615)";
    refuse(npy(1, "<i4", "False", huge, &[0; 4]), ErrorKind::Truncated, "more bytes than fit");
    refuse(npy(1, "<i4", "Maybe", "(1,)", &[0; 4]), ErrorKind::Malformed, "the header is");
    refuse(npy(1, "<i4", "False", "(1 1,)", &[0; 4]), ErrorKind::Malformed, "the header is");
    refuse(npy(4, "<i4", "False", "(1,)", &[0; 4]), unsupported, "version 4");
    refuse(b"\x93NUMPY\x02\0\xff\xff\xff\xff{".to_vec(), ErrorKind::Truncated, "4294967295");
    refuse(b"\x93NUMPY\x01".to_vec(), ErrorKind::Truncated, "within its header");
    refuse(b"GGUF".to_vec(), ErrorKind::Foreign, "GGUF");
}

#[test]
fn floats_read_with_their_shape() {
    let data: Vec<u8> =
        [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let (shape, values) = floats(&npy(1, "<f4", "False", "(2, 3)", &data)).unwrap();
    assert_eq!(shape, [2, 3]);
    assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let error = floats(&npy(1, "<f4", "True", "(2, 3)", &data)).unwrap_err();
    assert!(error.to_string().contains("fortran_order"), "{error}");
    assert!(floats(&npy(1, "<f8", "False", "(3,)", &data)).is_err());
}

#[test]
fn written_matrix_reads_back_and_appears_only_when_finished() {
    let scratch = Scratch::new();
    let path = scratch.join("logits.npy");
    let mut writer = F32Writer::create(&path, 3).unwrap();
    writer.push_rows(&[1.0, 2.0, 3.0]).unwrap();
    assert!(writer.push_rows(&[1.0]).is_err());
    writer.push_rows(&[]).unwrap();
    let many: Vec<f32> = (0..30_000).map(|i| i as f32).collect();
    writer.push_rows(&many).unwrap();
    assert!(!path.exists());
    writer.finish().unwrap();
    let (shape, values) = read_f32(&path).unwrap();
    assert_eq!(shape, [10_001, 3]);
    assert_eq!(values[..3], [1.0, 2.0, 3.0]);
    assert_eq!(values[3..], many);
    // NumPy wants the data at a multiple of 64 and the header to end its line.
    let bytes = fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[127]), (128 + values.len() * 4, b'\n'));

    let abandoned = F32Writer::create(scratch.join("abandoned.npy"), 1).unwrap();
    drop(abandoned);
    assert_eq!(fs::read_dir(&*scratch).unwrap().count(), 1);
    assert_eq!(F32Writer::create(&path, 0).unwrap_err().kind(), ErrorKind::Argument);
    // The largest shape fits the header.
    let widest = F32Writer::create(scratch.join("widest.npy"), usize::MAX).unwrap();
    widest.finish().unwrap();
    assert_eq!(read_f32(scratch.join("widest.npy")).unwrap().0, [0, usize::MAX]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever the header says, reading ends in an error or in as many values as there is data.
    #[test]
    fn random_headers_never_panic(
        version in 0u8..5,
        text in "[{}()',:<|>'0-9a-z_ \\\\]{0,60}|\\{'descr': '<[if][0-9]{1,3}', 'fortran_order': (True|False), 'shape': \\([0-9, ]{0,40}\\)[,} ]{0,3}",
        data in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((text.len() as u16).to_le_bytes()),
            _ => bytes.extend((text.len() as u32).to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        bytes.extend(&data);
        if let Ok(tokens) = tokens(&bytes) {
            prop_assert!(tokens.len() <= data.len() / 2);
        }
        if let Ok((shape, values)) = floats(&bytes) {
            prop_assert_eq!(values.len() * 4, data.len());
            prop_assert_eq!(shape.iter().product::<usize>(), values.len());
        }
    }
}
