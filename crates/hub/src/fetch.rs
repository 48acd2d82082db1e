//! From a reference to a path.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::cache::{Lock, RepositoryCache};
use crate::choose::{self, Selection, SizedFile};
use crate::client::{Client, Failure, Failures};
use crate::disk::free_space;
use crate::download::{Job, Watch, download, version_of};
use crate::error::HubError;
use crate::name::Repository;
use crate::progress_table::{Extent, bytes_done};
use crate::repository::{self, Listing};
use crate::settings::Settings;
use crate::sum::Sum;
use crate::url;

/// Receives the progress of a long task, such as a fetch: stages one after the other, each counted in bytes.
pub trait Progress {
    /// A stage begins that will handle `total` bytes.
    fn begin(&mut self, stage: &str, total: u64);
    /// `bytes` bytes of the stage are done.
    fn reach(&mut self, bytes: u64);
    /// The stage is done.
    fn end(&mut self);
    /// Whether nobody waits for the task any more, so that it should end.
    fn is_cancelled(&mut self) -> bool {
        false
    }
    /// Something the user must have been told, such as a model's terms; never left out.
    fn note(&mut self, line: &str);
    /// A line that most users want to see; left out where they asked for silence.
    fn notice(&mut self, line: &str) {
        self.note(line);
    }
}

/// A model that is on this machine now.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Its file or folder.
    pub path: PathBuf,
    /// Which one it is and why, in words.
    pub reason: String,
}

/// What a repository has for this machine, before any of it is fetched.
#[derive(Debug, PartialEq, Eq)]
pub struct Offer {
    /// Paths in the repository.
    pub files: Vec<String>,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes of them that the cache lacks.
    pub missing: u64,
    /// Which they are and why, in words.
    pub reason: String,
}

/// Fetches models.
#[derive(Debug)]
pub struct Hub {
    settings: Settings,
}

impl Hub {
    /// A hub as these settings have it. Nothing is asked of it yet.
    pub fn new(settings: Settings) -> Hub {
        Hub { settings }
    }

    /// A model of a repository that the cache has whole, without asking anybody.
    pub fn cached(&self, repository: &Repository, memory: Option<u64>) -> Option<Fetched> {
        let found = RepositoryCache::new(&self.settings, repository).find(repository, memory)?;
        let (path, reason) = found;
        Some(Fetched { path, reason })
    }

    /// Asks what [`Hub::fetch`] would fetch.
    pub fn offer(&self, repository: &Repository, memory: Option<u64>) -> Result<Offer, HubError> {
        let settings = &self.settings;
        if settings.offline {
            let (name, cache) = (repository.to_string(), settings.cache.clone());
            return Err(HubError::Offline { name, cache });
        }
        let listing = repository::list(repository, &Client::new(settings), settings)?;
        let selection = choose::choose(repository, &listing.files, memory)?;
        let wanted = wanted(&listing, &selection);
        let bytes = wanted.iter().map(|(file, _)| file.size).sum();
        let missing = self.missing(&RepositoryCache::new(settings, repository), &wanted);
        Ok(Offer { files: selection.files, bytes, missing, reason: selection.reason })
    }

    /// Fetches what a repository has for this machine, as far as the cache lacks it. `memory` is what
    /// weights may take, where that is known.
    pub fn fetch(
        &self,
        repository: &Repository,
        memory: Option<u64>,
        report: &mut dyn Progress,
    ) -> Result<Fetched, HubError> {
        let settings = &self.settings;
        if settings.offline {
            let (name, cache) = (repository.to_string(), settings.cache.clone());
            return self.cached(repository, memory).ok_or(HubError::Offline { name, cache });
        }
        let client = Client::new(settings);
        let listing = repository::list(repository, &client, settings)?;
        let selection = choose::choose(repository, &listing.files, memory)?;
        report.notice(&format!("{repository}: {}", selection.reason));
        let cache = RepositoryCache::new(settings, repository);
        let wanted = wanted(&listing, &selection);
        let missing = self.missing(&cache, &wanted);
        check_space(&repository.to_string(), &settings.cache, missing, "HF_HOME")?;
        cache.prepare()?;
        let fetch = FetchFile { hub: self, repository, client: &client, cache: &cache };
        for (file, sum) in wanted {
            fetch.file(&listing.commit, file, sum, report)?;
            cache.link(&listing.commit, &file.path, sum)?;
        }
        cache.set_commit(&repository.revision, &listing.commit)?;
        let snapshot = cache.snapshot(&listing.commit);
        let path = selection.gguf.as_ref().map_or(snapshot.clone(), |path| snapshot.join(path));
        Ok(Fetched { path, reason: selection.reason })
    }

    /// Bytes of these files that the cache lacks.
    fn missing(&self, cache: &RepositoryCache, wanted: &[(&SizedFile, &Sum)]) -> u64 {
        let missing = wanted.iter().filter(|(file, sum)| !cache.has(sum, file.size));
        let left = missing.map(|(file, sum)| {
            let block = self.settings.pace.block;
            let extent = Extent { size: file.size, block, identity: sum.text() };
            file.size - bytes_done(&cache.unfinished(sum), &extent)
        });
        left.sum()
    }

    /// Fetches the GGUF file at an address into a folder. One that is there already and came from the
    /// same address is left alone.
    pub fn fetch_address(
        &self,
        address: &str,
        folder: &Path,
        report: &mut dyn Progress,
    ) -> Result<PathBuf, HubError> {
        let shown = url::without_query(address).to_string();
        let not_gguf =
            |detail: &str| HubError::NotGguf { url: shown.clone(), detail: detail.into() };
        let name = file_name(&shown).ok_or_else(|| not_gguf("its name does not end in .gguf"))?;
        let (target, staging) = (folder.join(&name), folder.join(".partial"));
        let _lock = Lock::wait(&staging.join(format!("{name}.lock")), report)?;
        // Where it came from is kept: other addresses may end in the same name.
        let origin = staging.join(format!("{name}.origin"));
        if target.exists() {
            if fs::read_to_string(&origin).is_ok_and(|origin| origin == address) {
                return Ok(target);
            }
            let name = name.trim_end_matches(".gguf").to_string();
            return Err(HubError::Taken { url: shown, path: target, name });
        }
        if self.settings.offline {
            return Err(HubError::Offline { name: shown, cache: folder.to_path_buf() });
        }
        let client = Client::new(&self.settings);
        let probe = self.probe(&client, address)?;
        if probe.start != *b"GGUF" {
            return Err(not_gguf(&format!("it begins with \"{}\"", probe.start.escape_ascii())));
        }
        let unfinished = staging.join(format!("{name}.pianola"));
        let job = Job {
            label: &name,
            url: address,
            repository: None,
            size: probe.size,
            identity: &probe.version,
            sum: None,
            target: &target,
            unfinished: &unfinished,
        };
        let left = probe.size - bytes_done(&unfinished, &job.extent(&self.settings.pace));
        check_space(&name, folder, left, "PIANOLA_HOME")?;
        report.notice(&format!("{name}: {shown} gives no sum to compare, only a size is checked"));
        fs::write(&origin, address).map_err(HubError::io("write", &origin))?;
        fetch_job(&job, &client, &self.settings, report)?;
        Ok(target)
    }

    /// Asks for the first bytes of a file, and for its size and version.
    fn probe(&self, client: &Client, address: &str) -> Result<Probe, HubError> {
        let shown = url::without_query(address);
        let mut failures = Failures::default();
        loop {
            let failure = match self.probe_once(client, address) {
                Ok(probe) => return Ok(probe),
                Err(Failure::Unreachable { host, detail }) => {
                    return Err(HubError::Unreachable { host, detail });
                }
                Err(Failure::Expired { url, status }) => {
                    return Err(HubError::Status { url, status, detail: String::new() });
                }
                Err(failure) => failure,
            };
            std::thread::sleep(failures.count(failure, shown, &self.settings.pace)?);
        }
    }

    fn probe_once(&self, client: &Client, address: &str) -> Result<Probe, Failure> {
        let answer = client.get(address, Some((0, 4)), None)?;
        let size = match answer.partial {
            true => answer.content_range().and_then(|(_, _, all)| all),
            false => answer.length(),
        };
        let url = url::without_query(&answer.url).to_string();
        let Some(size) = size else {
            let detail = "it does not say how long the file is".to_string();
            return Err(HubError::Protocol { url, detail }.into());
        };
        let version = version_of(&answer).unwrap_or_default();
        let mut start = [0; 4];
        answer.into_reader().read_exact(&mut start).map_err(crate::client::reading)?;
        Ok(Probe { start, size, version })
    }
}

/// What is known of a file at an address before it is fetched.
struct Probe {
    start: [u8; 4],
    size: u64,
    version: String,
}

/// The chosen files with their sums, in the order in which they are fetched.
fn wanted<'a>(listing: &'a Listing, selection: &Selection) -> Vec<(&'a SizedFile, &'a Sum)> {
    let find = |path: &String| {
        let file = listing.files.iter().find(|file| file.path == *path)?;
        Some((file, listing.sums.get(path)?))
    };
    selection.files.iter().filter_map(find).collect()
}

/// The name of the file at the end of an address, if it is a plain one of a GGUF file.
fn file_name(address: &str) -> Option<String> {
    let name = url::decode(address.rsplit('/').next()?)?;
    let plain = crate::name::is_relative(&name) && !name.contains('/') && !name.starts_with('.');
    (plain && name.ends_with(".gguf") && name.len() > ".gguf".len()).then_some(name)
}

/// Fetches single files of a repository.
struct FetchFile<'a> {
    hub: &'a Hub,
    repository: &'a Repository,
    client: &'a Client,
    cache: &'a RepositoryCache,
}

impl FetchFile<'_> {
    /// Fetches a file unless the cache has it.
    fn file(
        &self,
        commit: &str,
        file: &SizedFile,
        sum: &Sum,
        report: &mut dyn Progress,
    ) -> Result<(), HubError> {
        if self.cache.has(sum, file.size) {
            return Ok(());
        }
        let _lock = self.cache.lock(sum, report)?;
        // Whoever had the lock may have fetched it.
        if self.cache.has(sum, file.size) {
            return Ok(());
        }
        let settings = &self.hub.settings;
        let (repository, path) = (self.repository, url::encode(&file.path));
        let url = format!("{}/{repository}/resolve/{commit}/{path}", settings.endpoint);
        let (target, unfinished) = (self.cache.blob(sum), self.cache.unfinished(sum));
        let job = Job {
            label: &file.path,
            url: &url,
            repository: Some(repository),
            size: file.size,
            identity: sum.text(),
            sum: Some(sum),
            target: &target,
            unfinished: &unfinished,
        };
        fetch_job(&job, self.client, settings, report)
    }
}

/// Fetches one file, with its stages reported.
fn fetch_job(
    job: &Job,
    client: &Client,
    settings: &Settings,
    report: &mut dyn Progress,
) -> Result<(), HubError> {
    let done = bytes_done(job.unfinished, &job.extent(&settings.pace));
    let stage = match done * 100 / job.size.max(1) {
        0 => format!("fetching {}", job.label),
        percent => format!("fetching {} ({percent} % is here)", job.label),
    };
    report.begin(&stage, job.size);
    let mut watch = Stages { label: job.label, size: job.size, checking: false, report };
    download(job, client, &settings.pace, &mut watch)?;
    watch.report.end();
    Ok(())
}

struct Stages<'a> {
    label: &'a str,
    size: u64,
    checking: bool,
    report: &'a mut dyn Progress,
}

impl Watch for Stages<'_> {
    fn arrived(&mut self, bytes: u64) -> bool {
        self.report.reach(bytes);
        !self.report.is_cancelled()
    }

    fn checked(&mut self, bytes: u64) -> bool {
        if !self.checking {
            self.checking = true;
            self.report.end();
            self.report.begin(&format!("checking {}", self.label), self.size);
        }
        self.arrived(bytes)
    }
}

fn check_space(
    name: &str,
    folder: &Path,
    needed: u64,
    variable: &'static str,
) -> Result<(), HubError> {
    match free_space(folder) {
        Some(available) if available < needed => Err(HubError::TooLittleSpace {
            name: name.to_string(),
            path: folder.to_path_buf(),
            needed,
            available,
            variable,
        }),
        _ => Ok(()),
    }
}
