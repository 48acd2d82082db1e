//! An open device node, and its requests as safe functions: every address that a request carries
//! is made from a slice or a structure here.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::abi::{self, Answer, Request};
use super::calls::{Calls, Errno};
use super::error::DriverError;

/// An open `/dev/accel/accel*`; closed when dropped.
pub(crate) struct Node {
    pub(crate) calls: Arc<dyn Calls>,
    pub(crate) fd: RawFd,
    pub(crate) path: PathBuf,
}

/// A request that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) errno: Errno,
}

impl Node {
    /// Opens a node.
    pub(crate) fn open(calls: Arc<dyn Calls>, path: &Path) -> Result<Node, DriverError> {
        let failed = |errno| DriverError::open(path, errno);
        let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(libc::EINVAL))?;
        let fd = calls.open(&text).map_err(failed)?;
        Ok(Node { calls, fd, path: path.to_path_buf() })
    }

    /// Makes a request that carries no addresses, or addresses that the caller vouches for.
    ///
    /// # Safety
    /// Addresses and lengths in `argument` must describe memory that is valid for what the request
    /// does with it.
    unsafe fn request<R: Request>(&self, argument: &mut R) -> Result<(), Failure> {
        // SAFETY: `R` is the structure of this number (`Request`), and the caller vouches for what
        // is inside.
        let result =
            unsafe { self.calls.ioctl(self.fd, R::NUMBER, std::ptr::from_mut(argument).cast()) };
        result.map_err(|errno| Failure { call: R::NAME, errno })
    }

    /// The driver's name and version.
    pub(crate) fn version(&self) -> Result<(String, i32, i32), Failure> {
        let mut name = [0_u8; 64];
        let mut version = abi::Version {
            name_length: name.len() as u64,
            name: name.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: `name` has `name_length` bytes; the other two strings have length zero.
        unsafe { self.request(&mut version) }?;
        let length = name.len().min(version.name_length as usize);
        let text = String::from_utf8_lossy(&name[..length]);
        Ok((text.trim_end_matches('\0').to_string(), version.major, version.minor))
    }

    /// Asks the device a question. What the driver does not fill in stays zero. The size that it
    /// returns is of no use: it is what was written, needed or left over, by question and version.
    pub(crate) fn info<A: Answer>(&self) -> Result<A, Failure> {
        let mut answer = A::default();
        let mut request = abi::GetInfo {
            parameter: A::PARAMETER,
            size: size_of::<A>() as u32,
            buffer: std::ptr::from_mut(&mut answer) as u64,
        };
        // SAFETY: the buffer is `answer`, of the size given, and any bits are valid in it.
        unsafe { self.request(&mut request) }?;
        Ok(answer)
    }

    /// Creates a buffer and returns its handle.
    pub(crate) fn create_buffer(&self, kind: u32, size: u64) -> Result<u32, Failure> {
        let mut request = abi::CreateBuffer { size, kind, ..Default::default() };
        // SAFETY: no address is passed.
        unsafe { self.request(&mut request) }?;
        Ok(request.handle)
    }

    /// Where a buffer is.
    pub(crate) fn buffer_info(&self, handle: u32) -> Result<abi::BufferInfo, Failure> {
        let mut request = abi::BufferInfo { handle, ..Default::default() };
        // SAFETY: no address is passed.
        unsafe { self.request(&mut request) }?;
        Ok(request)
    }

    /// Closes a handle. An error would mean that it is closed already.
    pub(crate) fn close_buffer(&self, handle: u32) {
        let mut request = abi::CloseBuffer { handle, pad: 0 };
        // SAFETY: no address is passed.
        let _ = unsafe { self.request(&mut request) };
    }

    /// Moves caches to memory (`from_device` false) or drops them (true).
    pub(crate) fn sync_buffer(
        &self,
        handle: u32,
        from_device: bool,
        offset: u64,
        size: u64,
    ) -> Result<(), Failure> {
        let direction = if from_device { abi::SYNC_FROM_DEVICE } else { abi::SYNC_TO_DEVICE };
        let mut request = abi::SyncBuffer { handle, direction, offset, size };
        // SAFETY: no address is passed.
        unsafe { self.request(&mut request) }
    }

    /// Creates a hardware context; returns its handle and that of its timeline.
    pub(crate) fn create_context(
        &self,
        tiles: u32,
        operations_per_cycle: u32,
    ) -> Result<(u32, u32), Failure> {
        let qos = abi::QualityOfService { priority: abi::NORMAL_PRIORITY, ..Default::default() };
        let mut request = abi::CreateContext {
            qos: std::ptr::from_ref(&qos) as u64,
            operations_per_cycle,
            tiles,
            ..Default::default()
        };
        // SAFETY: the kernel reads `qos`, which outlives the call.
        unsafe { self.request(&mut request) }?;
        Ok((request.handle, request.syncobj))
    }

    /// Gives a context back. An error would mean that it is gone already.
    pub(crate) fn destroy_context(&self, handle: u32) {
        let mut request = abi::DestroyContext { handle, pad: 0 };
        // SAFETY: no address is passed.
        let _ = unsafe { self.request(&mut request) };
    }

    /// Closes a context's timeline.
    pub(crate) fn destroy_syncobj(&self, handle: u32) {
        let mut request = abi::DestroySyncobj { handle, pad: 0 };
        // SAFETY: no address is passed.
        let _ = unsafe { self.request(&mut request) };
    }

    /// Configures a context's compute units: the handle of each one's PDI and its function.
    ///
    /// # Panics
    /// If there are more than [`abi::MAX_UNITS`].
    pub(crate) fn configure(&self, context: u32, units: &[(u32, u8)]) -> Result<(), Failure> {
        let mut config = abi::ContextUnits { count: units.len() as u16, ..Default::default() };
        for (entry, &(buffer, function)) in config.units[..units.len()].iter_mut().zip(units) {
            *entry = abi::ComputeUnitConfig { buffer, function, pad: [0; 3] };
        }
        let mut request = abi::ConfigContext {
            handle: context,
            parameter: abi::CONFIG_CU,
            value: std::ptr::from_ref(&config) as u64,
            size: (8 + std::mem::size_of_val(units)) as u32,
            pad: 0,
        };
        // SAFETY: the kernel reads at most the units used, which is a part of `config`.
        unsafe { self.request(&mut request) }
    }

    /// Submits a command buffer with the buffers it uses; returns its point on the timeline.
    pub(crate) fn execute(
        &self,
        context: u32,
        command: u32,
        arguments: &[u32],
    ) -> Result<u64, Failure> {
        let mut request = abi::Execute {
            context,
            kind: abi::EXECUTE_BUFFER,
            commands: u64::from(command),
            arguments: if arguments.is_empty() { 0 } else { arguments.as_ptr() as u64 },
            command_count: 1,
            argument_count: arguments.len() as u32,
            ..Default::default()
        };
        // SAFETY: with a count of one, `commands` is the handle itself; the kernel reads
        // `argument_count` handles from `arguments`.
        unsafe { self.request(&mut request) }?;
        Ok(request.sequence)
    }

    /// Waits for a point of a timeline; `ETIME` where the limit passes first.
    pub(crate) fn wait(&self, syncobj: u32, point: u64, limit: Duration) -> Result<(), Failure> {
        let mut request = abi::TimelineWait {
            handles: std::ptr::from_ref(&syncobj) as u64,
            points: std::ptr::from_ref(&point) as u64,
            timeout_ns: deadline(limit),
            count: 1,
            flags: abi::WAIT_ALL_FOR_SUBMIT,
            ..Default::default()
        };
        // SAFETY: one handle and one point, both on this stack.
        unsafe { self.request(&mut request) }
    }

    /// A buffer as a file descriptor.
    pub(crate) fn export(&self, handle: u32) -> Result<RawFd, Failure> {
        let flags = (libc::O_CLOEXEC | libc::O_RDWR) as u32;
        let mut request = abi::HandleToFd { handle, flags, fd: -1 };
        // SAFETY: no address is passed.
        unsafe { self.request(&mut request) }?;
        Ok(request.fd)
    }

    /// A buffer of another driver's.
    pub(crate) fn import(&self, fd: RawFd) -> Result<u32, Failure> {
        let mut request = abi::FdToHandle { handle: 0, flags: 0, fd };
        // SAFETY: no address is passed.
        unsafe { self.request(&mut request) }?;
        Ok(request.handle)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.calls.close(self.fd);
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({}, descriptor {})", self.path.display(), self.fd)
    }
}

/// `limit` from now, in nanoseconds of the monotonic clock, which is the kernel's.
fn deadline(limit: Duration) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    i64::try_from(now.saturating_add(limit).as_nanos()).unwrap_or(i64::MAX)
}

/// The limit of locked memory in bytes; none where it is unlimited or unknown.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
