//! Maps whose file ends too soon.
//!
//! A read of a map beyond the end of its file, or of a page that the disk does not give, raises
//! `SIGBUS`, which ends a process without a word. Every map of this crate is registered here, and the
//! signal's handler lays zeros over the rest of the map and notes that. The read goes on with zeros, and
//! who loads from the map asks in the end whether all that was read was there.
//!
//! Reading by `pread` instead would need no handler. It would need a buffer for each tensor, the largest
//! of which is more than a gigabyte, and a copy of every byte.

use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

/// A place for a registered map. Places are never freed, so that the handler may walk over them at any
/// time; those of maps that are gone are used again.
struct Place {
    taken: AtomicBool,
    /// Odd while the range changes.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    faulted: AtomicBool,
    next: *const Place,
}

// SAFETY: `next` is set before the place is shared and never changed; all else is atomic.
unsafe impl Sync for Place {}

/// The place that was made last; each knows the one before it.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

/// What is known before the first signal: what to do with those of others, and the size of a page.
struct Before {
    action: libc::sigaction,
    page: usize,
}

static BEFORE: OnceLock<Option<Before>> = OnceLock::new();

/// A map's registration; it ends when this is dropped, which is before the map is.
#[derive(Debug)]
pub(super) struct Guard(&'static Place);

impl std::fmt::Debug for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:#x}..{:#x}", self.start.load(SeqCst), self.end.load(SeqCst))
    }
}

impl Guard {
    /// Registers the addresses of a map.
    pub fn over(map: &[u8]) -> Guard {
        BEFORE.get_or_init(install);
        let place =
            places().find(|place| !place.taken.swap(true, SeqCst)).unwrap_or_else(new_place);
        let start = map.as_ptr() as usize;
        place.set(start..start + map.len());
        Guard(place)
    }

    /// Whether something was read that was not there.
    pub fn faulted(&self) -> bool {
        self.0.faulted.load(SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(0..0);
        self.0.taken.store(false, SeqCst);
    }
}

impl Place {
    fn set(&self, range: Range<usize>) {
        self.version.fetch_add(1, SeqCst);
        self.start.store(range.start, SeqCst);
        self.end.store(range.end, SeqCst);
        self.faulted.store(false, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    /// The end of the map, if an address lies in it. A place that changes meanwhile is that of another
    /// map: who reads a map keeps it.
    fn end_behind(&self, address: usize) -> Option<usize> {
        let version = self.version.load(SeqCst);
        let range = self.start.load(SeqCst)..self.end.load(SeqCst);
        let stable = version.is_multiple_of(2) && self.version.load(SeqCst) == version;
        (stable && range.contains(&address)).then_some(range.end)
    }
}

fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: each pointer is null or that of a place, and places are never freed.
    let place = |pointer: *const Place| unsafe { pointer.as_ref() };
    std::iter::successors(place(PLACES.load(SeqCst)), move |last| place(last.next))
}

/// One more place, taken.
fn new_place() -> &'static Place {
    let place = Box::leak(Box::new(Place {
        taken: AtomicBool::new(true),
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        faulted: AtomicBool::new(false),
        next: PLACES.load(SeqCst),
    }));
    while let Err(newer) = PLACES.compare_exchange(place.next.cast_mut(), place, SeqCst, SeqCst) {
        place.next = newer;
    }
    place
}

/// Takes the signal. `None` where the system refuses: then a fault ends the process, as it did.
fn install() -> Option<Before> {
    // SAFETY: both calls are given valid structures or null; a zeroed `sigaction` is one. The handler does
    // only what a signal's handler may: atomics, `mmap`, `sigaction` and `raise`, which are system calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &mut action) != 0 {
            return None;
        }
        let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).ok()?;
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_fault as *const () as usize;
        // On the stack that threads have for signals: others may take this one for their stack's end.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut ours.sa_mask);
        (libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) == 0)
            .then_some(Before { action, page })
    }
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // Empty only if a fault comes while the first map is being registered: it is another's.
    let Some(Some(before)) = BEFORE.get() else { return pass_to_default(signal) };
    // SAFETY: the system gives a valid structure, and for this signal it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let found = places().find_map(|place| Some((place, place.end_behind(address)?)));
    match found {
        Some((place, end)) if lay_zeros(address, end, before.page) => {
            place.faulted.store(true, SeqCst);
        }
        _ => pass_on(&before.action, signal, info, context),
    }
}

/// Replaces the pages from that of `address` to `end` by zeros.
fn lay_zeros(address: usize, end: usize, page: usize) -> bool {
    let start = address / page * page;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the pages belong to a registered map, which is read-only memory of bytes of any value. A map
    // ends with a whole page, so that nothing else lies there.
    let zeros = unsafe {
        let length = end.next_multiple_of(page) - start;
        libc::mmap(start as *mut libc::c_void, length, libc::PROT_READ, flags, -1, 0)
    };
    zeros != libc::MAP_FAILED
}

/// Does what the process would have done without this module.
fn pass_on(
    before: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    type Plain = extern "C" fn(libc::c_int);
    type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => pass_to_default(signal),
        // SAFETY: the system gave this address as that of a handler, of the kind that the flag says.
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => unsafe {
            std::mem::transmute::<usize, Full>(handler)(signal, info, context);
        },
        // SAFETY: as above.
        handler => unsafe { std::mem::transmute::<usize, Plain>(handler)(signal) },
    }
}

/// Ends the process by the signal, as soon as the handler returns.
fn pass_to_default(signal: libc::c_int) {
    // SAFETY: a zeroed structure asks for what the system does by itself; both are system calls.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, ptr::null_mut());
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    fn file(name: &str, length: u64) -> File {
        let path = std::env::temp_dir().join(format!("pianola-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(length).unwrap();
        file
    }

    fn map(file: &File) -> memmap2::Mmap {
        // SAFETY: nobody else has the file, and what it becomes is read as bytes.
        unsafe { memmap2::Mmap::map(file).unwrap() }
    }

    #[test]
    fn what_is_missing_reads_as_zeros_and_is_noted() {
        const LENGTH: usize = 1 << 20;
        let (cut, whole) = (file("cut", LENGTH as u64), file("whole", LENGTH as u64));
        let (cut_map, whole_map) = (map(&cut), map(&whole));
        let (cut_guard, whole_guard) = (Guard::over(&cut_map), Guard::over(&whole_map));
        assert_eq!(cut_map[LENGTH - 1], 0);
        assert!(!cut_guard.faulted());
        cut.set_len(LENGTH as u64 / 2).unwrap();
        // Several threads meet the end at once, each elsewhere.
        std::thread::scope(|scope| {
            for part in cut_map.chunks(LENGTH / 8) {
                scope.spawn(move || assert!(part.iter().all(|&byte| byte == 0)));
            }
        });
        assert!(cut_guard.faulted() && !whole_guard.faulted());
        // A place is used again, and forgets.
        drop(cut_guard);
        drop(cut_map);
        let guard = Guard::over(&whole_map);
        assert!(!guard.faulted());
    }

    /// Runs itself once more to die of a fault that is not ours.
    #[test]
    fn faults_of_others_still_end_the_process() {
        const INSIDE: &str = "PIANOLA_TEST_FOREIGN_FAULT";
        const NAME: &str = "map::fault::tests::faults_of_others_still_end_the_process";
        let foreign = file("foreign", 1 << 16);
        let map = map(&foreign);
        if std::env::var_os(INSIDE).is_some() {
            let other = file("other", 1 << 16);
            // SAFETY: as above.
            let other = unsafe { memmap2::Mmap::map(&other).unwrap() };
            let _guard = Guard::over(&other);
            foreign.set_len(0).unwrap();
            std::process::exit(i32::from(std::hint::black_box(&map)[1 << 15]));
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        let status = again.args(["--exact", NAME]).env(INSIDE, "1").output().unwrap().status;
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }
}
