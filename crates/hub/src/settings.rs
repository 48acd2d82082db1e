//! Where the hub and its cache are, from the variables that Hugging Face's own programs read.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::HubError;

/// The hub, unless `HF_ENDPOINT` names another. The one place that knows it.
pub(crate) const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Where to fetch from and where to keep it.
#[derive(Clone)]
pub struct Settings {
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    /// The folder of `models--owner--name`.
    pub cache: PathBuf,
    /// Sent to the endpoint, and to nobody else.
    pub token: Option<String>,
    /// Whether only the cache may be used.
    pub offline: bool,
    /// Patience and the size of steps.
    pub pace: Pace,
}

impl std::fmt::Debug for Settings {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("offline", &self.offline)
            .field("pace", &self.pace)
            .finish()
    }
}

/// How downloads are cut and how long they wait.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Blocks fetched at once.
    pub connections: usize,
    /// Bytes that one request asks for.
    pub block: u64,
    /// A connection that brings no byte for so long is given up.
    pub stall: Duration,
    /// Failures in a row without progress before a download is given up.
    pub failures: u32,
    /// The wait after the first failure; it doubles with each further one, up to 32 times this.
    pub backoff: Duration,
    /// The longest `Retry-After` that is waited for.
    pub longest_wait: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            connections: 4,
            block: 16 << 20,
            stall: Duration::from_secs(30),
            failures: 6,
            backoff: Duration::from_millis(500),
            longest_wait: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// The user's.
    pub fn from_environment() -> Result<Settings, HubError> {
        Settings::from(|variable| std::env::var_os(variable))
    }

    /// A hub at this address, without a token, and a cache in this folder.
    pub fn at(endpoint: &str, cache: impl Into<PathBuf>) -> Settings {
        Settings {
            endpoint: endpoint.trim_end_matches('/').to_string(),
            cache: cache.into(),
            token: None,
            offline: false,
            pace: Pace::default(),
        }
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Settings, HubError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let folder = |name: &str| set(name).map(PathBuf::from);
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let user =
            folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
        let home = folder("HF_HOME").or_else(|| user.map(|user| user.join("huggingface")));
        let cache = folder("HF_HUB_CACHE").or_else(|| home.as_ref().map(|home| home.join("hub")));
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_string());
        let mut settings = Settings::at(&endpoint, cache.ok_or(HubError::NoHome)?);
        let on =
            |value: String| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false" | "no");
        settings.offline = text("HF_HUB_OFFLINE").is_some_and(on);
        let file = folder("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")));
        let token = text("HF_TOKEN").or_else(|| std::fs::read_to_string(file?).ok());
        // Whatever else it may hold could not stand in a header.
        let token = token.map(|token| token.trim().to_string());
        settings.token = token.filter(|t| !t.is_empty() && t.chars().all(|c| c.is_ascii_graphic()));
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::from(|name| {
            variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1.into())
        })
    }

    #[test]
    fn the_cache_is_where_other_programs_have_it() {
        let place = |variables: &[(&str, &str)]| with(variables).unwrap().cache;
        let (home, user) = (("HOME", "/h"), ("XDG_CACHE_HOME", "/c"));
        assert_eq!(place(&[home]), PathBuf::from("/h/.cache/huggingface/hub"));
        assert_eq!(place(&[home, user]), PathBuf::from("/c/huggingface/hub"));
        assert_eq!(place(&[home, user, ("HF_HOME", "/f")]), PathBuf::from("/f/hub"));
        assert_eq!(place(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/b")]), PathBuf::from("/b"));
        assert!(matches!(with(&[]), Err(HubError::NoHome)));
    }

    #[test]
    fn the_endpoint_and_the_token_are_read() {
        let home = ("HOME", "/h");
        assert_eq!(with(&[home]).unwrap().endpoint, DEFAULT_ENDPOINT);
        let set =
            with(&[home, ("HF_ENDPOINT", "http://127.0.0.1:1/"), ("HF_TOKEN", " t\n")]).unwrap();
        assert_eq!(
            (set.endpoint.as_str(), set.token.as_deref()),
            ("http://127.0.0.1:1", Some("t"))
        );
        assert!(!format!("{set:?}").contains("\"t\""));
        assert!(with(&[home, ("HF_TOKEN", "a\nb")]).unwrap().token.is_none());
        assert!(with(&[home, ("HF_HUB_OFFLINE", "1")]).unwrap().offline);
        assert!(!with(&[home, ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
    }
}
