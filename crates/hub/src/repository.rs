//! What the hub says of a repository.

use std::collections::HashMap;

use serde::Deserialize;

use crate::choose::SizedFile;
use crate::client::Client;
use crate::error::HubError;
use crate::name::{Repository, is_relative};
use crate::settings::Settings;
use crate::sum::Sum;
use crate::url;

/// A listing has a thousand files a page.
const MOST_PAGES: usize = 50;

/// A commit of a repository and its files.
#[derive(Debug)]
pub(crate) struct Listing {
    pub commit: String,
    pub files: Vec<SizedFile>,
    /// By path.
    pub sums: HashMap<String, Sum>,
}

#[derive(Deserialize)]
struct Information {
    sha: String,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    oid: String,
    size: u64,
}

/// Asks for the newest commit of the revision, and for its files.
pub(crate) fn list(
    repository: &Repository,
    client: &Client,
    settings: &Settings,
) -> Result<Listing, HubError> {
    let api = format!("{}/api/models/{repository}", settings.endpoint);
    let url = format!("{api}/revision/{}", repository.revision);
    let (answer, _) = client.ask(&url, Some(repository))?;
    let Information { sha: commit } = parse(&answer, &url)?;
    // It becomes the name of a folder.
    if !matches!(Sum::parse(&commit), Some(Sum::GitBlob(_))) {
        let detail = "the commit of the repository is none".to_string();
        return Err(HubError::Protocol { url, detail });
    }
    let (mut files, mut sums) = (Vec::new(), HashMap::new());
    let mut next = Some(format!("{api}/tree/{commit}?recursive=true"));
    for _ in 0..MOST_PAGES {
        let Some(url) = next else { break };
        let (answer, link) = client.ask(&url, Some(repository))?;
        let entries: Vec<TreeEntry> = parse(&answer, &url)?;
        for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
            let (file, sum) = file(entry, &url)?;
            sums.insert(file.path.clone(), sum);
            files.push(file);
        }
        next = link.and_then(|link| next_page(&link, &url));
    }
    Ok(Listing { commit, files, sums })
}

fn parse<'a, T: Deserialize<'a>>(answer: &'a [u8], url: &str) -> Result<T, HubError> {
    serde_json::from_slice(answer).map_err(|error| HubError::Protocol {
        url: url::without_query(url).to_string(),
        detail: format!("its answer cannot be read ({error})"),
    })
}

fn file(entry: TreeEntry, url: &str) -> Result<(SizedFile, Sum), HubError> {
    let (sum, size) = match &entry.lfs {
        // Some listings write the kind of sum in front.
        Some(large) => (large.oid.trim_start_matches("sha256:"), large.size),
        None => (entry.oid.as_str(), entry.size),
    };
    let sum = Sum::parse(sum).filter(|sum| matches!(sum, Sum::Sha256(_)) == entry.lfs.is_some());
    match sum {
        Some(sum) if is_relative(&entry.path) => Ok((SizedFile { path: entry.path, size }, sum)),
        _ => Err(HubError::Protocol {
            url: url::without_query(url).to_string(),
            detail: format!("it lists a file {:?} that cannot be", entry.path),
        }),
    }
}

/// The address of the next page, by a `Link` header. It must be the same host's.
fn next_page(link: &str, url: &str) -> Option<String> {
    let target = link.split(',').find_map(|part| {
        let (target, parameters) = part.trim().strip_prefix('<')?.split_once('>')?;
        parameters.contains("rel=\"next\"").then_some(target)
    })?;
    let next = url::join(url, target)?;
    (url::split(&next)?.0 == url::split(url)?.0).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_one_another_on_one_host() {
        let url = "https://hub.example/api/tree/x?recursive=true";
        let link =
            "<https://hub.example/a?b=c>; rel=\"prev\", </api/tree/x?cursor=1>; rel=\"next\"";
        assert_eq!(next_page(link, url).unwrap(), "https://hub.example/api/tree/x?cursor=1");
        assert_eq!(next_page("<https://other.example/>; rel=\"next\"", url), None);
        assert_eq!(next_page("</x>; rel=\"last\"", url), None);
        assert_eq!(next_page("nonsense", url), None);
    }

    #[test]
    fn files_stay_inside_the_repository() {
        let entry = |path: &str, oid: &str| TreeEntry {
            kind: "file".into(),
            path: path.into(),
            oid: oid.into(),
            size: 1,
            lfs: None,
        };
        let sum = "a".repeat(40);
        assert!(file(entry("a/b.json", &sum), "u").is_ok());
        for wrong in ["../b", "/b", "a//b", "a/./b", "", "a\\b"] {
            assert!(file(entry(wrong, &sum), "u").is_err(), "{wrong}");
        }
        assert!(file(entry("a", "../../x"), "u").is_err());
    }
}
