//! Buffers that hold tiles of a factor, the ones used longest ago given up first.

use crate::amdxdna::Buffer;

/// Which tile of a matrix: its row and column among tiles.
pub(super) type TileIndex = (usize, usize);

/// Staged tiles of one factor. Tiles of the same product stay until their buffer is needed.
#[derive(Debug)]
pub(super) struct TilePool {
    entries: Vec<Entry>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    buffer: Buffer,
    tile: Option<TileIndex>,
    used: u64,
}

impl TilePool {
    pub(super) fn new(buffers: Vec<Buffer>) -> TilePool {
        let entry = |buffer| Entry { buffer, tile: None, used: 0 };
        TilePool { entries: buffers.into_iter().map(entry).collect(), clock: 0 }
    }

    /// Forgets all tiles: those of another product.
    pub(super) fn clear(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.tile = None);
    }

    /// The buffer of a tile, and whether it must be filled: the tile was not there, and the one
    /// used longest ago has given way. There are as many buffers as a wave has commands, so that no
    /// tile of a wave gives way to another of the same wave.
    pub(super) fn place(&mut self, tile: TileIndex) -> (usize, bool) {
        self.clock += 1;
        let known = self.entries.iter().position(|entry| entry.tile == Some(tile));
        let oldest = || (0..self.entries.len()).min_by_key(|&index| self.entries[index].used);
        let index = known.or_else(oldest).expect("a pool has at least one buffer");
        let entry = &mut self.entries[index];
        entry.used = self.clock;
        entry.tile = Some(tile);
        (index, known.is_none())
    }

    pub(super) fn buffer(&self, index: usize) -> &Buffer {
        &self.entries[index].buffer
    }

    pub(super) fn buffer_mut(&mut self, index: usize) -> &mut Buffer {
        &mut self.entries[index].buffer
    }
}
