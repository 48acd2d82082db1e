//! How far each block of a download has come, on disk.
//!
//! ```text
//! pianola download 1 ⏎ size ⏎ block ⏎ identity ⏎ boot ⏎   text
//! done[0] done[1] …                                         u32 each, little-endian
//! ```
//!
//! An entry is the number of bytes that the block has from its start; it is written after the bytes.
//! That is enough when the process is killed: what it has written is in the system's hands. When the
//! machine goes down, only bytes that were synchronised before are sure, which the highest bit of an
//! entry says; so entries without it count only within one boot of the machine.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

use crate::error::HubError;

const DURABLE: u32 = 1 << 31;

/// What a table belongs to. Another size, another cut or another identity is another download.
pub(crate) struct Extent<'a> {
    pub size: u64,
    pub block: u64,
    /// The file's sum or version.
    pub identity: &'a str,
}

/// The unfinished file and its table, both open.
pub(crate) struct ProgressTable {
    data: File,
    table: File,
    path: PathBuf,
    start: u64,
    size: u64,
    block: u64,
    entries: Vec<AtomicU32>,
}

/// Where the table of an unfinished file lies.
pub(crate) fn table_path(data: &Path) -> PathBuf {
    let mut path = data.as_os_str().to_os_string();
    path.push(".blocks");
    path.into()
}

/// Bytes that an unfinished download has already; 0 where it is another one's.
pub(crate) fn bytes_done(data: &Path, extent: &Extent) -> u64 {
    let boot = boot();
    read(data, extent, &boot)
        .map_or(0, |entries| entries.iter().map(|entry| u64::from(entry & !DURABLE)).sum())
}

impl ProgressTable {
    /// Opens what an earlier attempt left, or begins anew.
    pub fn open(data: &Path, extent: &Extent) -> Result<ProgressTable, HubError> {
        let boot = boot();
        let blocks = extent.size.div_ceil(extent.block) as usize;
        let found = read(data, extent, &boot);
        let entries = found.unwrap_or_else(|| vec![0; blocks]);
        let table_path = table_path(data);
        let header = header(extent, &boot);
        let mut bytes = header.clone().into_bytes();
        bytes.extend(entries.iter().flat_map(|entry| entry.to_le_bytes()));
        // The table first, in one piece: it must never be about older data.
        let new = table_path.with_extension("new");
        fs::write(&new, &bytes).map_err(HubError::io("write", &new))?;
        fs::rename(&new, &table_path).map_err(HubError::io("create", &table_path))?;
        let open = |path: &Path| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.open(path).map_err(HubError::io("create", path))
        };
        let (file, table) = (open(data)?, open(&table_path)?);
        file.set_len(extent.size).map_err(HubError::io("write", data))?;
        Ok(ProgressTable {
            data: file,
            table,
            path: data.to_path_buf(),
            start: header.len() as u64,
            size: extent.size,
            block: extent.block,
            entries: entries.into_iter().map(AtomicU32::new).collect(),
        })
    }

    /// Blocks in all.
    pub fn blocks(&self) -> usize {
        self.entries.len()
    }

    /// The first byte of a block that is missing, and the end of the block.
    pub fn missing(&self, block: usize) -> (u64, u64) {
        let start = block as u64 * self.block;
        (start + self.done(block), (start + self.block).min(self.size))
    }

    /// Whether a block is whole.
    pub fn is_done(&self, block: usize) -> bool {
        let (from, end) = self.missing(block);
        from == end
    }

    /// Bytes done in all.
    pub fn total(&self) -> u64 {
        (0..self.blocks()).map(|block| self.done(block)).sum()
    }

    fn done(&self, block: usize) -> u64 {
        u64::from(self.entries[block].load(Ordering::Relaxed) & !DURABLE)
    }

    /// Stores bytes that begin at `at`, and returns how many of them were new. What a block has
    /// already is left as it is. One block is written by one thread at a time.
    pub fn store(&self, mut at: u64, mut bytes: &[u8]) -> Result<u64, HubError> {
        let mut new = 0;
        while !bytes.is_empty() && at < self.size {
            let block = (at / self.block) as usize;
            let (from, end) = self.missing(block);
            let (piece, rest) = bytes.split_at(bytes.len().min((end - at) as usize));
            let known = from.saturating_sub(at).min(piece.len() as u64);
            let fresh = &piece[known as usize..];
            if from >= at && !fresh.is_empty() {
                write_at(&self.data, fresh, from).map_err(HubError::io("write", &self.path))?;
                self.record(block, self.done(block) + fresh.len() as u64, end)?;
                new += fresh.len() as u64;
            }
            at += piece.len() as u64;
            bytes = rest;
        }
        Ok(new)
    }

    /// Notes how much of a block is there, after the bytes themselves were written.
    fn record(&self, block: usize, done: u64, end: u64) -> Result<(), HubError> {
        let mut entry = done as u32;
        if block as u64 * self.block + done == end {
            self.data.sync_data().map_err(HubError::io("write", &self.path))?;
            entry |= DURABLE;
        }
        let place = self.start + 4 * block as u64;
        write_at(&self.table, &entry.to_le_bytes(), place)
            .map_err(HubError::io("write", &self.path))?;
        self.entries[block].store(entry, Ordering::Relaxed);
        Ok(())
    }
}

fn header(extent: &Extent, boot: &str) -> String {
    format!("{}{boot}\n", fixed_header(extent))
}

/// The header but for the boot.
fn fixed_header(extent: &Extent) -> String {
    // An identity may be any text of a server's.
    let identity: String =
        Sha256::digest(extent.identity).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("pianola download 1\n{}\n{}\n{identity}\n", extent.size, extent.block)
}

/// The entries of a table that is about this download and whose file is there.
fn read(data: &Path, extent: &Extent, boot: &str) -> Option<Vec<u32>> {
    let bytes = fs::read(table_path(data)).ok()?;
    let rest = bytes.strip_prefix(fixed_header(extent).as_bytes())?;
    let line = rest.iter().position(|&byte| byte == b'\n')?;
    let (its_boot, entries) = (&rest[..line], &rest[line + 1..]);
    let same_boot = its_boot == boot.as_bytes() && !boot.is_empty();
    let blocks = extent.size.div_ceil(extent.block) as usize;
    if entries.len() != 4 * blocks || fs::metadata(data).ok()?.len() != extent.size {
        return None;
    }
    let entries = entries.chunks_exact(4).enumerate().map(|(block, bytes)| {
        let entry = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let most = extent.block.min(extent.size - block as u64 * extent.block);
        let plausible = u64::from(entry & !DURABLE) <= most;
        let trusted = same_boot || entry & DURABLE != 0;
        if plausible && trusted { entry } else { 0 }
    });
    Some(entries.collect())
}

/// What tells one run of the machine from the next; empty where that is unknown.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_string()
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        (bytes, offset) = (&bytes[written..], offset + written as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: Extent = Extent { size: 25, block: 10, identity: "sum" };

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("pianola-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_download_continues_where_it_stopped() {
        let folder = folder("table");
        let data = folder.join("x");
        let table = ProgressTable::open(&data, &EXTENT).unwrap();
        assert_eq!((table.blocks(), table.total()), (3, 0));
        assert_eq!(table.store(10, b"abcde").unwrap(), 5);
        assert_eq!(table.store(20, b"vwxyz").unwrap(), 5);
        drop(table);
        assert_eq!(bytes_done(&data, &EXTENT), 10);
        let table = ProgressTable::open(&data, &EXTENT).unwrap();
        assert_eq!(table.missing(0), (0, 10));
        assert_eq!(table.missing(1), (15, 20));
        assert!(table.is_done(2) && !table.is_done(1));
        // A stream of the whole file fills what is missing and leaves the rest.
        assert_eq!(table.store(0, b"0123456789ABCDEfghijVWXYZ").unwrap(), 15);
        assert_eq!(fs::read(&data).unwrap(), b"0123456789abcdefghijvwxyz");
        // Bytes beyond the end are nobody's.
        assert_eq!(table.store(25, b"more").unwrap(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn another_file_or_a_damaged_table_begins_anew() {
        let folder = folder("table-other");
        let data = folder.join("x");
        ProgressTable::open(&data, &EXTENT).unwrap().store(0, b"0123456789").unwrap();
        assert_eq!(bytes_done(&data, &EXTENT), 10);
        assert_eq!(bytes_done(&data, &Extent { identity: "other", ..EXTENT }), 0);
        assert_eq!(bytes_done(&data, &Extent { size: 26, ..EXTENT }), 0);
        let table = table_path(&data);
        let mut bytes = fs::read(&table).unwrap();
        bytes.truncate(bytes.len() - 1);
        fs::write(&table, &bytes).unwrap();
        assert_eq!(bytes_done(&data, &EXTENT), 0);
        // An entry that no block can have.
        bytes.extend([0]);
        let place = bytes.len() - 12;
        bytes[place..place + 4].copy_from_slice(&11u32.to_le_bytes());
        fs::write(&table, &bytes).unwrap();
        assert_eq!(bytes_done(&data, &EXTENT), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn after_a_reboot_only_synchronised_blocks_count() {
        let folder = folder("table-boot");
        let data = folder.join("x");
        let table = ProgressTable::open(&data, &EXTENT).unwrap();
        table.store(0, b"0123456789").unwrap();
        table.store(10, b"abc").unwrap();
        let entries = |boot: &str| read(&data, &EXTENT, boot).unwrap();
        assert_eq!(entries(&boot()), [10 | DURABLE, 3, 0]);
        assert_eq!(entries("another"), [10 | DURABLE, 0, 0]);
        assert_eq!(entries(""), [10 | DURABLE, 0, 0]);
        fs::remove_dir_all(folder).unwrap();
    }
}
