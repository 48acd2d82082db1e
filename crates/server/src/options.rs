//! How to serve.

use crate::hub::KeepOptions;
use crate::log::LogFormat;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen at.
    pub host: IpAddr,
    /// Port to listen at; 0: any that is free.
    pub port: u16,
    /// Who may use the server; empty: everybody who reaches it.
    pub keys: Vec<ApiKey>,
    /// Web pages that may use the server besides its own, as origins; `*`: all.
    pub origins: Vec<String>,
    /// Names in the `Host` header that are this server's, besides `localhost` and addresses.
    pub host_names: Vec<String>,
    /// Certificate and key for TLS.
    pub tls: Option<TlsFiles>,
    /// Bounds on requests.
    pub limits: HttpLimits,
    /// How models are kept.
    pub keep: KeepOptions,
    /// How long requests may go on after the server was told to end.
    pub drain: Duration,
    /// The form of the log on standard error.
    pub log: LogFormat,
    /// The program's version.
    pub version: String,
}

/// PEM files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Bounds on requests.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Bytes of all headers.
    pub header_bytes: usize,
    /// Connections at once.
    pub connections: usize,
    /// Time for the headers, and for the body, to come; and for a connection without a request.
    pub idle: Duration,
    /// Answers that one request may ask for.
    pub choices: usize,
    /// Texts that one request may have embedded.
    pub inputs: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            body_bytes: 32 << 20,
            header_bytes: 64 << 10,
            connections: 1024,
            idle: Duration::from_secs(75),
            choices: 32,
            inputs: 2048,
        }
    }
}

/// A key that clients have to send. Only its sum is kept.
#[derive(Clone, Debug)]
pub struct ApiKey {
    sum: [u8; 32],
}

impl ApiKey {
    /// The key of a text.
    pub fn new(key: &str) -> ApiKey {
        ApiKey { sum: Sha256::digest(key.as_bytes()).into() }
    }

    /// Whether this is the key; takes the same time whatever is sent.
    pub(crate) fn matches(&self, sent: &ApiKey) -> bool {
        let differences = self.sum.iter().zip(&sent.sum).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differences) == 0
    }
}
