//! Instruction streams: each argument is moved by one descriptor in each column.

use crate::kernel::Kernel;

const HEADER_WORD: u32 = 0x0603_0100;
const WRITE: u32 = 0;
const BLOCKWRITE: u32 = 1;
const SYNC: u32 = 0x80;
const PATCH: u32 = 0x81;

/// Registers of an interface tile.
const DESCRIPTORS: u32 = 0x1_D000;
const OUT_QUEUE: u32 = 0x1_D204;
const IN_QUEUE: u32 = 0x1_D214;

/// A stream for a kernel.
pub(super) fn make(kernel: &Kernel) -> Vec<u8> {
    let columns = kernel.columns() as u32;
    let sizes = kernel.argument_bytes();
    let mut operations = Operations::default();
    for (argument, size) in sizes.iter().enumerate() {
        let is_output = argument + 1 == sizes.len();
        let words = (*size as u32).div_ceil(4);
        let part = words.div_ceil(columns);
        for column in 0..columns {
            let first = (part * column).min(words);
            let length = part.min(words - first);
            if length == 0 {
                continue;
            }
            let tile = column << 25;
            let descriptor = tile | (DESCRIPTORS + 0x20 * argument as u32);
            operations.block_write(descriptor, &[length, 0, 0, 0, 0, 0, 0, 1 << 25]);
            operations.patch(descriptor + 4, argument as u32, 4 * first);
            let queue = if is_output { OUT_QUEUE } else { IN_QUEUE };
            operations.write(tile | queue, argument as u32);
            if is_output {
                operations.sync(column);
            }
        }
    }
    operations.finish(columns)
}

#[derive(Default)]
struct Operations {
    words: Vec<u32>,
    count: u32,
}

impl Operations {
    fn push(&mut self, words: &[u32]) {
        self.words.extend(words);
        self.count += 1;
    }

    fn write(&mut self, address: u32, value: u32) {
        self.push(&[WRITE, 0, address, 0, value, 24]);
    }

    fn block_write(&mut self, address: u32, data: &[u32]) {
        let size = 16 + 4 * data.len() as u32;
        self.push(&[&[BLOCKWRITE, 0, address, size], data].concat());
    }

    fn patch(&mut self, register: u32, argument: u32, offset: u32) {
        self.push(&[PATCH, 48, 0, 0, 0, 0, register, 0, argument, 0, offset, 0]);
    }

    /// Waits for the column's output.
    fn sync(&mut self, column: u32) {
        self.push(&[SYNC, 16, column << 16, 0x0001_0100]);
    }

    fn finish(self, columns: u32) -> Vec<u8> {
        let size = 16 + 4 * self.words.len() as u32;
        let header = [HEADER_WORD, columns | 1 << 8, self.count, size];
        header.iter().chain(&self.words).flat_map(|word| word.to_le_bytes()).collect()
    }
}
