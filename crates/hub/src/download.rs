//! One file, in blocks, several at once.
//!
//! ```text
//! table ─► first block ─► does the server serve ranges? ─ yes ─► workers, a block each ─┐
//!                                                        └ no ──► one stream ───────────┴► sum ─► rename
//! ```
//!
//! Workers read; the caller's thread reports. What has arrived stays, whatever ends the download, but
//! for a file whose sum is wrong, which is deleted.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Answer, Client, Failure, Failures, reading};
use crate::error::HubError;
use crate::name::Repository;
use crate::progress_table::{Extent, ProgressTable, table_path};
use crate::settings::Pace;
use crate::sum::Sum;
use crate::url;

/// A file to fetch.
pub(crate) struct Job<'a> {
    /// What messages call it.
    pub label: &'a str,
    /// Where to ask for it.
    pub url: &'a str,
    /// The repository it is of.
    pub repository: Option<&'a Repository>,
    pub size: u64,
    /// Its sum, or what the server calls this version of it.
    pub identity: &'a str,
    /// To be compared at the end, where it is known.
    pub sum: Option<&'a Sum>,
    /// Where it goes once it is whole.
    pub target: &'a Path,
    /// Where it lies until then.
    pub unfinished: &'a Path,
}

impl Job<'_> {
    /// What its table belongs to.
    pub fn extent(&self, pace: &Pace) -> Extent<'_> {
        Extent { size: self.size, block: pace.block, identity: self.identity }
    }
}

/// Receives the stages of a download, and says whether to go on.
pub(crate) trait Watch {
    /// So many bytes have arrived; false: give up.
    fn arrived(&mut self, bytes: u64) -> bool;
    /// So many bytes were read again for the sum; false: give up.
    fn checked(&mut self, bytes: u64) -> bool;
}

/// Fetches a file to its place.
pub(crate) fn download(
    job: &Job,
    client: &Client,
    pace: &Pace,
    watch: &mut dyn Watch,
) -> Result<(), HubError> {
    let unfinished = job.unfinished;
    let table = ProgressTable::open(unfinished, &job.extent(pace))?;
    let transfer = Transfer {
        job,
        client,
        pace,
        arrived: AtomicU64::new(table.total()),
        table,
        next: AtomicUsize::new(0),
        ranges: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        failure: Mutex::new(None),
        location: Mutex::new(None),
    };
    transfer.run(watch)?;
    drop(transfer);
    if let Some(sum) = job.sum {
        let found = sum.of_file(unfinished, &mut |bytes| watch.checked(bytes))?;
        if found != sum.text() {
            for path in [unfinished, &table_path(unfinished)] {
                fs::remove_file(path).map_err(HubError::io("remove", path))?;
            }
            let (file, expected) = (job.label.to_string(), sum.text().to_string());
            return Err(HubError::WrongSum { file, expected, found });
        }
    }
    put(unfinished, job.target)
}

/// Gives a whole file its name.
fn put(unfinished: &Path, target: &Path) -> Result<(), HubError> {
    File::options()
        .write(true)
        .open(unfinished)
        .and_then(|file| file.sync_all())
        .map_err(HubError::io("write", unfinished))?;
    fs::rename(unfinished, target).map_err(HubError::io("create", target))?;
    let table = table_path(unfinished);
    fs::remove_file(&table).map_err(HubError::io("remove", &table))
}

/// A download under way.
struct Transfer<'a> {
    job: &'a Job<'a>,
    client: &'a Client,
    pace: &'a Pace,
    table: ProgressTable,
    /// Bytes that are here.
    arrived: AtomicU64,
    /// The next block that nobody works on.
    next: AtomicUsize,
    /// Whether the server has served a range.
    ranges: AtomicBool,
    stop: AtomicBool,
    failure: Mutex<Option<HubError>>,
    /// Who serves the bytes in the end, after redirects.
    location: Mutex<Option<String>>,
}

impl Transfer<'_> {
    fn run(&self, watch: &mut dyn Watch) -> Result<(), HubError> {
        const REPORTS: Duration = Duration::from_millis(50);
        let mut cancelled = false;
        let (reporter, working) = (&thread::current(), &AtomicUsize::new(0));
        thread::scope(|scope| {
            let begin = |count: usize| {
                for _ in 0..count {
                    working.fetch_add(1, Ordering::Relaxed);
                    scope.spawn(move || {
                        self.work();
                        working.fetch_sub(1, Ordering::Release);
                        reporter.unpark();
                    });
                }
            };
            begin(1);
            // The others begin once the first has seen that ranges are served.
            let mut others = self.pace.connections.min(self.table.blocks()).saturating_sub(1);
            while working.load(Ordering::Acquire) > 0 {
                if self.ranges.load(Ordering::Relaxed) {
                    begin(std::mem::take(&mut others));
                }
                if !watch.arrived(self.arrived.load(Ordering::Relaxed)) {
                    cancelled = true;
                    self.stop.store(true, Ordering::Relaxed);
                }
                thread::park_timeout(REPORTS);
            }
        });
        let failure = lock(&self.failure).take();
        match failure {
            Some(error) => Err(error),
            None if cancelled => Err(HubError::Cancelled),
            None => {
                watch.arrived(self.arrived.load(Ordering::Relaxed));
                Ok(())
            }
        }
    }

    /// Fetches one block after another until there are none, or something ends all.
    fn work(&self) {
        loop {
            let block = self.next.fetch_add(1, Ordering::Relaxed);
            if block >= self.table.blocks() || self.stop.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = self.finish(block) {
                self.stop.store(true, Ordering::Relaxed);
                lock(&self.failure).get_or_insert(error);
                return;
            }
        }
    }

    /// Fetches what is missing of a block, however many requests it takes.
    fn finish(&self, block: usize) -> Result<(), HubError> {
        // A connection that brings so much before it breaks is worth another one.
        let enough = self.pace.block.min(1 << 20);
        let mut failures = Failures::default();
        let mut since = self.table.missing(block).0;
        while !self.table.is_done(block) && !self.stop.load(Ordering::Relaxed) {
            let Err(failure) = self.attempt(block) else { continue };
            let reached = self.table.missing(block).0;
            if reached - since >= enough {
                failures.clear();
                since = reached;
            }
            self.wait(failures.count(failure, self.job.label, self.pace)?);
        }
        Ok(())
    }

    /// Waits, unless all ends meanwhile.
    fn wait(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time && !self.stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50).min(time - start.elapsed().min(time)));
        }
    }

    /// One request for what is missing of a block.
    fn attempt(&self, block: usize) -> Result<(), Failure> {
        let (from, end) = self.table.missing(block);
        let whole = from == 0 && end == self.job.size;
        let answer = self.request((!whole).then_some((from, end)))?;
        let shown = || url::without_query(&answer.url).to_string();
        let passing = |detail: String| Failure::Passing { detail, wait: None };
        if answer.partial {
            let (first, last) = match answer.content_range() {
                Some((first, last, all)) if all.is_none_or(|all| all == self.job.size) => {
                    (first, last)
                }
                _ => return Err(passing(format!("{} serves a range of another file", shown()))),
            };
            if first != from || last < first || last >= end {
                let asked = format!("bytes {from} to {}", end - 1);
                return Err(passing(format!("{} serves other bytes than {asked}", shown())));
            }
            if answer.length().is_some_and(|length| length != last - first + 1) {
                return Err(passing(format!("{} serves a range of another length", shown())));
            }
            self.ranges.store(true, Ordering::Relaxed);
            return self.pour(answer, from, last + 1);
        }
        if answer.length().is_some_and(|length| length != self.job.size) {
            let detail = format!(
                "the file has another size than the {} bytes it is said to have",
                self.job.size
            );
            return Err(HubError::Protocol { url: shown(), detail }.into());
        }
        // A server that serves ranges and then does not: its stream would be read by several.
        if self.ranges.load(Ordering::Relaxed) {
            return Err(passing(format!("{} serves the whole file instead of a range", shown())));
        }
        self.pour(answer, 0, self.job.size)
    }

    /// Asks whoever served the last range, or else where the file is.
    fn request(&self, range: Option<(u64, u64)>) -> Result<Answer, Failure> {
        let known = lock(&self.location).clone();
        let url = known.as_deref().unwrap_or(self.job.url);
        let answer = match self.client.get(url, range, self.job.repository) {
            Err(failure @ (Failure::Expired { .. } | Failure::Unreachable { .. })) => {
                *lock(&self.location) = None;
                return Err(failure);
            }
            answer => answer?,
        };
        // The hub says by its sum what it redirects to; another server, what version it serves.
        let version = match self.job.sum {
            Some(_) => answer.linked_etag.clone(),
            None => version_of(&answer),
        };
        if version.is_some_and(|version| version != self.job.identity) {
            return Err(HubError::Changed { file: self.job.label.to_string() }.into());
        }
        if answer.url != self.job.url {
            *lock(&self.location) = Some(answer.url.clone());
        }
        Ok(answer)
    }

    /// Stores the bytes of an answer that begin at `at` and end before `end`.
    fn pour(&self, answer: Answer, mut at: u64, end: u64) -> Result<(), Failure> {
        let sized = answer.length().is_some();
        let mut body = answer.into_reader();
        let mut buffer = vec![0; 128 << 10];
        while at < end {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let most = buffer.len().min((end - at) as usize);
            let read = body.read(&mut buffer[..most]).map_err(reading)?;
            if read == 0 {
                let detail = "the connection was closed early".to_string();
                return Err(Failure::Passing { detail, wait: None });
            }
            let new = self.table.store(at, &buffer[..read])?;
            self.arrived.fetch_add(new, Ordering::Relaxed);
            at += read as u64;
        }
        // The end must be seen, or the connection could not serve the next request; an error costs no
        // more than that.
        if sized {
            let _ = body.read(&mut buffer);
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a server calls this version of a file: its tag, or else its date.
pub(crate) fn version_of(answer: &Answer) -> Option<String> {
    answer.etag().or_else(|| answer.header("last-modified").map(str::to_string))
}
