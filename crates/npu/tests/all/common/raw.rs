//! Memory at addresses that requests carry.
#![allow(unsafe_code)] // The stand-in receives raw addresses, like the kernel.

/// An address that the driver under test passed. Where it lies, the test crashes: that is a
/// failure, too.
#[derive(Clone, Copy)]
pub struct Raw(*mut u8);

impl Raw {
    /// An address out of a structure, or of a mapping of the stand-in's own.
    pub fn at(address: u64) -> Raw {
        Raw(address as *mut u8)
    }

    /// The value at an offset.
    pub fn get<T: Copy>(self, offset: usize) -> T {
        // SAFETY: the driver vouches for structures and addresses of its requests (`Calls::ioctl`).
        unsafe { self.0.add(offset).cast::<T>().read_unaligned() }
    }

    /// Sets the value at an offset.
    pub fn set<T>(self, offset: usize, value: T) {
        // SAFETY: as above.
        unsafe { self.0.add(offset).cast::<T>().write_unaligned(value) }
    }

    /// Copies out of memory.
    pub fn read(self, out: &mut [u8]) {
        // SAFETY: as above; `out` is elsewhere.
        unsafe { self.0.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) }
    }

    /// Copies into memory.
    pub fn write(self, bytes: &[u8]) {
        // SAFETY: as above; `bytes` are elsewhere.
        unsafe { self.0.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
}
