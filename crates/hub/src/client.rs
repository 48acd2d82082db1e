//! HTTP, one request at a time: redirects by hand, so that the token goes to the hub alone, and errors
//! told apart into those that pass and those that stay.

use std::io::Read;
use std::time::Duration;

use ureq::http::{HeaderMap, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Timeout};

use crate::error::HubError;
use crate::name::Repository;
use crate::settings::{Pace, Settings};
use crate::url::{self, Origin};

const MOST_REDIRECTS: usize = 10;
/// An answer of the API is read into memory.
const MOST_ANSWER: u64 = 16 << 20;
const CONNECT: Duration = Duration::from_secs(15);

/// Asks the hub and whom it redirects to.
pub(crate) struct Client {
    agent: Agent,
    /// For this machine itself, which no proxy leads to.
    direct: Agent,
    hub: Option<Origin>,
    endpoint: String,
    token: Option<String>,
    pace: Pace,
}

/// An answer of status 200 or 206.
pub(crate) struct Answer {
    /// Who answered in the end.
    pub url: String,
    /// What the hub says the file is, before it redirected to it.
    pub linked_etag: Option<String>,
    /// Whether it is a part of the file.
    pub partial: bool,
    headers: HeaderMap,
    body: Body,
}

/// Why a request brought nothing.
pub(crate) enum Failure {
    /// Trying again may help, after the wait that the server asked for.
    Passing { detail: String, wait: Option<Duration> },
    /// Nobody answers there at all.
    Unreachable { host: String, detail: String },
    /// A host that the hub redirected to refuses: its address may have expired.
    Expired { url: String, status: u16 },
    /// Trying again would not help.
    Final(HubError),
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Failure {
        Failure::Final(error)
    }
}

impl Answer {
    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// What identifies the version of the file, without quotes.
    pub fn etag(&self) -> Option<String> {
        self.header("etag").map(plain_etag)
    }

    /// Bytes of the body, where the server says.
    pub fn length(&self) -> Option<u64> {
        self.body.content_length()
    }

    /// `Content-Range` as first byte, last byte and bytes in all.
    pub fn content_range(&self) -> Option<(u64, u64, Option<u64>)> {
        let range = self.header("content-range")?.trim().strip_prefix("bytes")?.trim();
        let (range, all) = range.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let all = match all.trim() {
            "*" => None,
            all => Some(all.parse().ok()?),
        };
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?, all))
    }

    /// The body, as a reader.
    pub fn into_reader(self) -> impl Read {
        self.body.into_reader()
    }

    /// The whole body.
    pub fn read(mut self) -> Result<Vec<u8>, Failure> {
        let limited = self.body.with_config().limit(MOST_ANSWER);
        limited.read_to_vec().map_err(|error| passing(&error))
    }
}

/// An entity tag without quotes and without the mark of weakness.
fn plain_etag(tag: &str) -> String {
    tag.trim().trim_start_matches("W/").trim_matches('"').to_string()
}

fn passing(error: &ureq::Error) -> Failure {
    Failure::Passing { detail: words(error), wait: None }
}

/// What went wrong with a connection, in words.
fn words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(Timeout::PerRead | Timeout::RecvResponse | Timeout::RecvBody) => {
            "nothing arrived any more".to_string()
        }
        ureq::Error::Timeout(_) => "no connection within the time limit".to_string(),
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

/// A failure while a body is read.
pub(crate) fn reading(error: std::io::Error) -> Failure {
    passing(&ureq::Error::from(error))
}

impl Client {
    /// A client for the hub of these settings.
    pub fn new(settings: &Settings) -> Client {
        // Certificates of the system, or of SSL_CERT_FILE: a company's own may be among them. A machine
        // without any gets the list that is built in.
        let certificates = rustls_native_certs::load_native_certs().certs;
        let roots = match certificates.is_empty() {
            true => RootCerts::WebPki,
            false => certificates.iter().map(|c| Certificate::from_der(c).to_owned()).into(),
        };
        let builder = || {
            Agent::config_builder()
                .tls_config(TlsConfig::builder().root_certs(roots.clone()).build())
                .http_status_as_error(false)
                .max_redirects(0)
                .max_idle_connections_per_host(settings.pace.connections)
                .timeout_connect(Some(CONNECT))
                .timeout_per_read(Some(settings.pace.stall))
                .timeout_per_write(Some(settings.pace.stall))
                // Sums and ranges are those of the file itself.
                .accept_encoding("identity")
                .user_agent(concat!("pianola/", env!("CARGO_PKG_VERSION")))
        };
        Client {
            agent: builder().build().new_agent(),
            direct: builder().proxy(None).build().new_agent(),
            hub: url::split(&settings.endpoint).map(|(origin, _)| origin),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
            pace: settings.pace.clone(),
        }
    }

    /// Asks for a file, or for the bytes from `range.0` up to and without `range.1`; `asked` is the
    /// repository that an error is to name.
    pub fn get(
        &self,
        url: &str,
        range: Option<(u64, u64)>,
        asked: Option<&Repository>,
    ) -> Result<Answer, Failure> {
        let mut url = url.to_string();
        let mut linked_etag = None;
        for _ in 0..=MOST_REDIRECTS {
            let shown = || url::without_query(&url).to_string();
            let wrong = |detail: &str| HubError::Protocol { url: shown(), detail: detail.into() };
            let Some((origin, _)) = url::split(&url) else {
                return Err(wrong("the address cannot be read").into());
            };
            let response = self.send(&url, &origin, range)?;
            let (parts, body) = response.into_parts();
            let to_hub = self.hub.as_ref() == Some(&origin);
            let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
            if to_hub && linked_etag.is_none() {
                linked_etag = header("x-linked-etag").map(plain_etag);
            }
            match (parts.status, header("location")) {
                (StatusCode::OK | StatusCode::PARTIAL_CONTENT, _) => {
                    let partial = parts.status == StatusCode::PARTIAL_CONTENT;
                    return Ok(Answer { url, linked_etag, partial, headers: parts.headers, body });
                }
                (status, Some(location)) if status.is_redirection() => {
                    let next = url::join(&url, location);
                    let next = next.ok_or_else(|| wrong("it redirects to nowhere"))?;
                    if origin.https && url::split(&next).is_some_and(|(next, _)| !next.https) {
                        return Err(wrong("it redirects from https to http").into());
                    }
                    url = next;
                }
                (status, _) => {
                    let refusal =
                        Refusal { url: shown(), origin, to_hub, status, headers: &parts.headers };
                    return Err(self.refused(&refusal, asked));
                }
            }
        }
        let detail = format!("it redirects more than {MOST_REDIRECTS} times");
        Err(HubError::Protocol { url: url::without_query(&url).to_string(), detail }.into())
    }

    /// One request, without following a redirect.
    fn send(
        &self,
        url: &str,
        origin: &Origin,
        range: Option<(u64, u64)>,
    ) -> Result<ureq::http::Response<Body>, Failure> {
        let agent = if origin.is_loopback() { &self.direct } else { &self.agent };
        let mut request = agent.get(url);
        // The token is the hub's: whoever it redirects to must not learn it.
        if let Some(token) = self.token.as_ref().filter(|_| self.hub.as_ref() == Some(origin)) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some((first, end)) = range {
            request = request.header("range", format!("bytes={first}-{}", end - 1));
        }
        request.call().map_err(|error| match error {
            ureq::Error::Timeout(Timeout::PerRead | Timeout::RecvResponse) => passing(&error),
            ureq::Error::Io(ref io) if !is_refusal(io) => passing(&error),
            ureq::Error::Protocol(_) => passing(&error),
            error => Failure::Unreachable { host: origin.authority(), detail: words(&error) },
        })
    }

    /// What an answer without content means.
    fn refused(&self, refusal: &Refusal, asked: Option<&Repository>) -> Failure {
        let Refusal { status, headers, .. } = refusal;
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504) {
            let seconds: Option<u64> =
                header("retry-after").and_then(|text| text.trim().parse().ok());
            return match seconds {
                Some(seconds) if seconds > self.pace.longest_wait.as_secs() => {
                    HubError::RateLimited { host: refusal.origin.authority(), seconds }.into()
                }
                _ => Failure::Passing {
                    detail: format!("the server answered with status {}", status.as_u16()),
                    wait: seconds.map(Duration::from_secs),
                },
            };
        }
        if !refusal.to_hub {
            return Failure::Expired { url: refusal.url.clone(), status: status.as_u16() };
        }
        let token = self.token.is_some();
        if let Some(asked) = asked {
            let (repository, page) = (asked.to_string(), format!("{}/{asked}", self.endpoint));
            match (header("x-error-code"), status.as_u16()) {
                (Some("GatedRepo"), _) => {
                    return HubError::Gated { repository, page, token }.into();
                }
                (Some("RepoNotFound"), _) | (None, 404) => {
                    return HubError::NoRepository { repository, page, token }.into();
                }
                (Some("RevisionNotFound"), _) => {
                    let revision = asked.revision.clone();
                    return HubError::NoRevision { repository, revision }.into();
                }
                (None, 401) if !token => {
                    return HubError::NoRepository { repository, page, token }.into();
                }
                _ => {}
            }
        }
        if status.as_u16() == 401 && token {
            return HubError::Token.into();
        }
        let detail: String =
            header("x-error-message").unwrap_or_default().chars().take(200).collect();
        HubError::Status { url: refusal.url.clone(), status: status.as_u16(), detail }.into()
    }

    /// Asks until there is an answer, or no more hope for one.
    pub fn ask(
        &self,
        url: &str,
        asked: Option<&Repository>,
    ) -> Result<(Vec<u8>, Option<String>), HubError> {
        let mut failures = Failures::default();
        loop {
            let answer = self.get(url, None, asked).and_then(|answer| {
                let link = answer.header("link").map(str::to_string);
                Ok((answer.read()?, link))
            });
            match answer {
                Ok(answer) => return Ok(answer),
                Err(Failure::Unreachable { host, detail }) => {
                    return Err(HubError::Unreachable { host, detail });
                }
                Err(failure) => {
                    let wait = failures.count(failure, url::without_query(url), &self.pace)?;
                    std::thread::sleep(wait);
                }
            }
        }
    }
}

/// An answer without content.
struct Refusal<'a> {
    url: String,
    origin: Origin,
    to_hub: bool,
    status: StatusCode,
    headers: &'a HeaderMap,
}

/// Whether nobody listens, no way leads there, or its name is not known, as without a network.
fn is_refusal(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
        // The standard library has a sentence for it, and no kind.
        || error.to_string().starts_with("failed to lookup address information")
}

/// Counts failures in a row.
#[derive(Default)]
pub(crate) struct Failures {
    count: u32,
}

impl Failures {
    /// Something came between.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// How long to wait before another attempt, or the error that ends them.
    pub fn count(
        &mut self,
        failure: Failure,
        file: &str,
        pace: &Pace,
    ) -> Result<Duration, HubError> {
        let (detail, wait) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Passing { detail, wait } => (detail, wait),
            Failure::Unreachable { host, detail } => (format!("{host}: {detail}"), None),
            Failure::Expired { url, status } => {
                (format!("{url} answered with status {status}"), None)
            }
        };
        self.count += 1;
        if self.count >= pace.failures {
            let failures = self.count;
            return Err(HubError::Interrupted { file: file.to_string(), detail, failures });
        }
        Ok(wait.unwrap_or(pace.backoff * (1 << (self.count - 1).min(5))))
    }
}
