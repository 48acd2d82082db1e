//! Why a model could not be had, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model could not be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not a name of the hub, nor an address.
    #[error(
        "'{given}' is not a model of the hub: {reason}; write owner/name, owner/name:quant or https://…"
    )]
    Name {
        /// As the user wrote it.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No variable says where a user's files go.
    #[error(
        "there is no folder for models of the hub: HF_HOME, XDG_CACHE_HOME and HOME are all unset; set HF_HOME to a folder"
    )]
    NoHome,
    /// The owner of the repository asks for consent first.
    #[error(
        "{repository} is gated: accept its terms at {page} while signed in, then {}",
        match .token { true => "pull again (the token in use must belong to that account and may read gated repositories)", false => "set HF_TOKEN to a token of that account" }
    )]
    Gated {
        /// `owner/name`.
        repository: String,
        /// Where the terms are.
        page: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// The hub knows no such repository, or does not say so to strangers.
    #[error(
        "the hub has no repository {repository}{}; check its spelling at {page}",
        match .token { true => " that this token may read", false => " that is public (a private one needs HF_TOKEN)" }
    )]
    NoRepository {
        /// `owner/name`.
        repository: String,
        /// Where it would be.
        page: String,
        /// Whether a token was sent.
        token: bool,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repository} has no revision {revision}; leave it out for the newest")]
    NoRevision {
        /// `owner/name`.
        repository: String,
        /// As asked for.
        revision: String,
    },
    /// The hub does not accept the token.
    #[error(
        "the hub does not accept the token that HF_TOKEN or the file of `hf auth login` holds; replace it, or unset it for public models"
    )]
    Token,
    /// No file goes by what was asked for.
    #[error("{repository} has no GGUF file for '{choice}'; it has {found}")]
    NoChoice {
        /// `owner/name`.
        repository: String,
        /// What was asked for behind the colon.
        choice: String,
        /// The files there are.
        found: String,
    },
    /// Several files go by it.
    #[error("{repository} has several files for {choice}; name one of them: {found}")]
    Ambiguous {
        /// `owner/name`.
        repository: String,
        /// What was asked for, in words.
        choice: String,
        /// The files in question.
        found: String,
    },
    /// Nothing in the repository can be run.
    #[error(
        "{repository} has no file that runs here (a GGUF file of a supported type, or safetensors with config.json); it has {found}"
    )]
    NothingRuns {
        /// `owner/name`.
        repository: String,
        /// The files there are.
        found: String,
    },
    /// The file is cut into several.
    #[error(
        "{file} of {repository} is one of several parts of a model, which are not read; choose another of {others}, or join the parts with `llama-gguf-split --merge`"
    )]
    Split {
        /// `owner/name`.
        repository: String,
        /// One of the parts.
        file: String,
        /// Files that are whole.
        others: String,
    },
    /// The network may not be used and the cache has nothing.
    #[error("{name} is not in the cache {}, and HF_HUB_OFFLINE forbids fetching it; unset that variable", .cache.display())]
    Offline {
        /// As the user wrote it.
        name: String,
        /// The hub's cache.
        cache: PathBuf,
    },
    /// The host cannot be reached.
    #[error(
        "cannot reach {host} ({detail}); check the network, https_proxy and HF_ENDPOINT. Some models need no hub: `pianola pull --help` shows which come as packages"
    )]
    Unreachable {
        /// Host and port.
        host: String,
        /// The system's words.
        detail: String,
    },
    /// The connection failed again and again, or brought nothing.
    #[error(
        "{file}: {detail}, {failures} times without progress; check the network, then pull again: what has arrived is kept"
    )]
    Interrupted {
        /// The file being fetched.
        file: String,
        /// The last failure.
        detail: String,
        /// Attempts that brought nothing.
        failures: u32,
    },
    /// The host asks to be left alone for long.
    #[error(
        "{host} limits requests and asks to wait {seconds} seconds; pull again then (with HF_TOKEN the hub allows more)"
    )]
    RateLimited {
        /// Host and port.
        host: String,
        /// As it said.
        seconds: u64,
    },
    /// An answer that is of no use.
    #[error("{url} was answered with status {status}{}", match .detail.is_empty() { true => String::new(), false => format!(" ({})", .detail) })]
    Status {
        /// Without its query.
        url: String,
        /// HTTP's number.
        status: u16,
        /// The server's words.
        detail: String,
    },
    /// An answer that contradicts the request.
    #[error("{url} sent an invalid answer: {detail}; try again later, or another HF_ENDPOINT")]
    Protocol {
        /// Without its query.
        url: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The file is another one than before.
    #[error(
        "{file} was replaced on the server while it was being fetched; pull again for the new one"
    )]
    Changed {
        /// The file being fetched.
        file: String,
    },
    /// All bytes arrived, and they are the wrong ones.
    #[error(
        "{file} arrived with the sum {found} instead of {expected} and was deleted; pull again to fetch it anew"
    )]
    WrongSum {
        /// The file.
        file: String,
        /// By the hub.
        expected: String,
        /// Of what came.
        found: String,
    },
    /// What lies behind an address is no model.
    #[error("{url} is not a GGUF file: {detail}")]
    NotGguf {
        /// Without its query.
        url: String,
        /// What it is instead.
        detail: String,
    },
    /// The store has a file of that name from elsewhere.
    #[error("{} is there already and not from {url}; `pianola rm {name}` removes it", .path.display())]
    Taken {
        /// Without its query.
        url: String,
        /// The file.
        path: PathBuf,
        /// As `pianola list` shows it.
        name: String,
    },
    /// The disk is too small.
    #[error("{name} needs {} more in {}, {} are free; make room, or set {variable} to a folder on a larger disk", megabytes(*.needed), .path.display(), megabytes(*.available))]
    TooLittleSpace {
        /// The model.
        name: String,
        /// A folder on the disk in question.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes left on the disk.
        available: u64,
        /// The variable that moves the folder.
        variable: &'static str,
    },
    /// A model of another program that several names fit.
    #[error("'{name}' is not one model but several: {found}; give one of these names")]
    SeveralLocal {
        /// As the user wrote it.
        name: String,
        /// Their full names.
        found: String,
    },
    /// A model of another program that is not there.
    #[error("{name} is not here{}; `pianola list` shows what is", match .unreadable.is_empty() { true => String::new(), false => format!(" ({})", .unreadable) })]
    NoLocal {
        /// As the user wrote it.
        name: String,
        /// Stores that could not be read, and why.
        unreadable: String,
    },
    /// The file system refused.
    #[error("cannot {action} {}: {source}; allow it, or set HF_HOME to a folder of yours with room", .path.display())]
    Io {
        /// What was tried: "read", "create", …
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Whoever asked for it does not wait any more.
    #[error("the pull was cancelled; pull again to go on: what has arrived is kept")]
    Cancelled,
}

impl HubError {
    /// Turns an error of the file system into one that says what was tried on which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HubError {
        let path = path.to_path_buf();
        move |source| HubError::Io { action, path, source }
    }
}

/// `98.4 MB`: decimal, as disks and networks are sold.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
