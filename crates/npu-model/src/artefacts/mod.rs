//! Programs for the model: containers and instruction streams that a driver's readers accept.
//!
//! They are made here and are none of AMD's: the PDI is a line of text that no array would load, and
//! the streams move whole tensors where a real design moves tiles. What they have in common with real
//! ones is the format.

mod stream;
mod xclbin;

use crate::kernel::Kernel;

/// A program for the model.
#[derive(Clone, Debug)]
pub struct Artefacts {
    /// The container (axlf).
    pub xclbin: Vec<u8>,
    /// The instruction stream (TXN).
    pub instructions: Vec<u8>,
    /// The PDI in the container, to register a kernel for.
    pub pdi: Vec<u8>,
}

/// The kernel's number in the container, as mlir-aie's tools give it.
pub const KERNEL_ID: u32 = 0x901;

/// A container and an instruction stream for a kernel.
pub fn make(kernel: &Kernel) -> Artefacts {
    let pdi = pdi(kernel);
    let container = xclbin::Container {
        pdi: &pdi,
        columns: kernel.columns() as u16,
        arguments: kernel.argument_bytes().len().max(5),
    };
    Artefacts { xclbin: container.bytes(), instructions: stream::make(kernel), pdi }
}

/// An instruction stream only, for a PDI that serves several shapes.
pub fn instructions(kernel: &Kernel) -> Vec<u8> {
    stream::make(kernel)
}

/// A stream as the text of hexadecimal words that some tools write.
pub fn instructions_as_text(stream: &[u8]) -> String {
    crate::bytes::words(stream).iter().map(|word| format!("{word:08X}\n")).collect()
}

/// The bytes of a stream, from a file of bytes or of hexadecimal words.
pub(crate) fn stream_of_file(file: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(file).ok();
    let words: Option<Vec<u32>> = text.and_then(|text| {
        let words = text.split_whitespace();
        words.map(|word| u32::from_str_radix(word.trim_start_matches("0x"), 16).ok()).collect()
    });
    match words {
        Some(words) if !words.is_empty() => {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        }
        _ => file.to_vec(),
    }
}

pub use xclbin::pdis;

/// A PDI that says what it is. Different kernels have different ones.
fn pdi(kernel: &Kernel) -> Vec<u8> {
    let mut bytes =
        format!("npu (emulated): not a program for hardware. {kernel:?}\n").into_bytes();
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_kernels;

    #[test]
    fn what_is_made_can_be_read() {
        for line in [
            "matmul i8 i32 512x512x512 tile=64x64x64",
            "matmul bf16 f32 128x64x64 tile=16x64x64 columns=1",
            "attention heads=4 kv_heads=2 lq=256 lk=512 dk=64 dv=128",
        ] {
            let kernel = parse_kernels(line).unwrap().remove(0).kernel;
            let made = make(&kernel);
            assert_eq!(pdis(&made.xclbin), Ok(vec![made.pdi.clone()]));
            let stream = crate::stream::decode(&made.instructions).unwrap();
            assert_eq!(stream.generation, 3);
            let sizes = kernel.argument_bytes();
            for (index, size) in sizes.iter().enumerate() {
                let ends = stream.patches.iter().filter(|patch| patch.argument == index);
                let end = ends.map(|patch| patch.offset + patch.descriptor.bytes()).max();
                assert_eq!(end, Some(*size as u64), "{line}, argument {index}");
            }
            let text = instructions_as_text(&made.instructions);
            assert_eq!(stream_of_file(text.as_bytes()), made.instructions);
            assert_eq!(stream_of_file(&made.instructions), made.instructions);
        }
    }

    #[test]
    fn broken_containers_are_errors() {
        let kernel =
            parse_kernels("matmul i8 i32 512x512x512 tile=64x64x64").unwrap().remove(0).kernel;
        let good = make(&kernel).xclbin;
        for length in (0..good.len()).step_by(7) {
            assert!(pdis(&good[..length]).is_err(), "cut to {length}");
        }
        assert!(pdis(&[0; 1000]).is_err());
    }
}
