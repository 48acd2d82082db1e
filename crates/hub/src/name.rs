//! What users write for a model that is not on this machine.

use crate::error::HubError;
use crate::settings::{DEFAULT_ENDPOINT, Settings};
use crate::url;

/// A model somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A repository of the hub.
    Repository(Repository),
    /// A file at an address.
    Address(String),
}

/// A repository of the hub, and what is wanted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// Whose it is.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// A branch, tag or commit.
    pub revision: String,
    /// A quantisation or a file.
    pub choice: Option<String>,
}

impl std::fmt::Display for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl Reference {
    /// Reads `hf:owner/name[:choice]`, `https://…` or `owner/name[:choice]`. None where it looks like
    /// none of them, as a path or a plain name does not.
    pub fn parse(text: &str, settings: &Settings) -> Result<Option<Reference>, HubError> {
        let wrong = |reason| HubError::Name { given: text.to_string(), reason };
        if let Some(name) = text.strip_prefix("hf:") {
            let found =
                repository(name).ok_or_else(|| wrong("it must have an owner and a name"))?;
            return Ok(Some(Reference::Repository(found)));
        }
        if text.contains("://") {
            let (origin, _) =
                url::split(text).ok_or_else(|| wrong("the address cannot be read"))?;
            let own =
                url::split(&settings.endpoint).is_some_and(|(endpoint, _)| endpoint == origin);
            let page = on_hub(text, settings);
            if !origin.https && !own {
                return Err(wrong("a file is fetched over https only"));
            }
            return Ok(Some(
                page.map_or(Reference::Address(text.to_string()), Reference::Repository),
            ));
        }
        let path_like = text.starts_with(['.', '/', '~']) || text.contains('\\');
        let file_like =
            text.ends_with(".safetensors") || (text.ends_with(".gguf") && !text.contains(':'));
        if path_like || file_like {
            return Ok(None);
        }
        Ok(repository(text).map(Reference::Repository))
    }
}

/// Reads `owner/name[:choice]`.
fn repository(text: &str) -> Option<Repository> {
    let (name, choice) = match text.split_once(':') {
        Some((name, choice)) => (name, Some(choice)),
        None => (text, None),
    };
    let (owner, name) = name.split_once('/')?;
    let safe_choice = choice.is_none_or(is_relative);
    let revision = "main".to_string();
    (is_part(owner) && is_part(name) && safe_choice).then(|| Repository {
        owner: owner.to_string(),
        name: name.to_string(),
        revision,
        choice: choice.map(str::to_string),
    })
}

/// The repository that an address of the hub's pages or files means.
fn on_hub(text: &str, settings: &Settings) -> Option<Repository> {
    // An address copied from the hub is also meant where a mirror is set.
    let rest = [settings.endpoint.as_str(), DEFAULT_ENDPOINT]
        .into_iter()
        .find_map(|endpoint| text.strip_prefix(endpoint)?.strip_prefix('/'))?;
    let path = url::decode(url::without_query(rest).trim_end_matches('/'))?;
    let mut parts = path.splitn(5, '/');
    let mut found = repository(&format!("{}/{}", parts.next()?, parts.next()?))?;
    match (parts.next(), parts.next(), parts.next()) {
        (None, ..) | (Some("tree"), None, _) => {}
        (Some("tree" | "resolve" | "blob"), Some(revision), file) => {
            found.revision = Some(revision).filter(|part| is_part(part))?.to_string();
            found.choice = file.filter(|file| is_relative(file)).map(str::to_string);
        }
        _ => return None,
    }
    Some(found)
}

/// Whether this can be an owner, a name or a revision: it becomes part of a path.
fn is_part(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty()
        && text.len() <= 96
        && text.chars().all(plain)
        && !text.starts_with(['.', '-'])
        && !text.contains("--")
        && !text.contains("..")
}

/// Whether a path of a repository stays inside it on every system.
pub(crate) fn is_relative(path: &str) -> bool {
    let odd = |c: char| c.is_control() || matches!(c, '\\' | ':');
    !path.is_empty()
        && path.len() <= 512
        && !path.contains(odd)
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::at("http://127.0.0.1:9", "/cache")
    }

    fn read(text: &str) -> Option<(String, String, Option<String>)> {
        match Reference::parse(text, &settings()).unwrap()? {
            Reference::Repository(r) => Some((r.to_string(), r.revision, r.choice)),
            Reference::Address(url) => Some((url, String::new(), None)),
        }
    }

    fn main(name: &str, choice: Option<&str>) -> Option<(String, String, Option<String>)> {
        Some((name.into(), "main".into(), choice.map(str::to_string)))
    }

    #[test]
    fn repositories_are_read() {
        assert_eq!(read("me/Tiny-GGUF"), main("me/Tiny-GGUF", None));
        assert_eq!(read("me/tiny:q4_k_m"), main("me/tiny", Some("q4_k_m")));
        assert_eq!(read("me/tiny:sub/tiny-q8_0.gguf"), main("me/tiny", Some("sub/tiny-q8_0.gguf")));
        assert_eq!(read("hf:me/tiny.gguf"), main("me/tiny.gguf", None));
    }

    #[test]
    fn paths_and_names_are_left_alone() {
        for other in
            ["gemma3:270m", "./me/tiny", "/me/tiny", "~/x", "a/b/c", "models/x.gguf", "x", ""]
        {
            assert_eq!(read(other), None, "{other}");
        }
        for other in ["../tiny", "me/..", "me/ti ny", "me/tiny:../x", "me--x/y", "C:\\a/b"] {
            assert_eq!(read(other), None, "{other}");
        }
        assert!(Reference::parse("hf:tiny", &settings()).is_err());
        assert!(Reference::parse("hf:../tiny", &settings()).is_err());
    }

    #[test]
    fn addresses_of_the_hub_are_repositories() {
        for endpoint in [DEFAULT_ENDPOINT, "http://127.0.0.1:9"] {
            let read = |rest: &str| read(&format!("{endpoint}/{rest}"));
            assert_eq!(read("me/tiny"), main("me/tiny", None));
            assert_eq!(read("me/tiny/tree/main"), main("me/tiny", None));
            let file = read("me/tiny/resolve/v1/a%20b.gguf?download=true");
            assert_eq!(file, Some(("me/tiny".into(), "v1".into(), Some("a b.gguf".into()))));
            assert_eq!(read("me/tiny/blob/main/x.gguf"), main("me/tiny", Some("x.gguf")));
        }
    }

    #[test]
    fn other_addresses_are_files() {
        let url = "https://example.org/x.gguf";
        let found = Reference::parse(url, &settings()).unwrap();
        assert_eq!(found, Some(Reference::Address(url.into())));
        assert!(Reference::parse("http://example.org/x.gguf", &settings()).is_err());
        assert!(Reference::parse("https://u:p@example.org/x", &settings()).is_err());
    }
}
