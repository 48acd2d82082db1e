//! `serve`: models over HTTP.

mod source;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pianola_engine::DEFAULT_LANES;
use pianola_server::{ApiKey, HttpLimits, KeepOptions, LogFormat, ServerOptions, TlsFiles, serve};

use crate::console::Console;
use crate::failure::Failure;
use crate::options::{ComputeOptions, SpeculationOptions, positive};
use crate::version::BUILD;
use source::Source;

/// Serve models to OpenAI, Anthropic and Ollama clients, with a page for the browser.
///
/// Listens at http://127.0.0.1:8080: open it in a browser, or point a client at it (OpenAI clients
/// at /v1). Keys are read from --api-key-file and from the variable PIANOLA_API_KEYS, with commas
/// between them. SIGTERM or Ctrl-C lets requests finish; a second one ends at once.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola serve
  pianola serve -m qwen2.5-coder:1.5b --port 11434
  PIANOLA_API_KEYS=secret pianola serve --host 0.0.0.0
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'")]
pub struct Arguments {
    /// A name from the catalogue (fetched once, then kept), a GGUF file, or a Hugging Face folder. May
    /// be repeated: the first is loaded at once, the others when they are asked for [default:
    /// smollm2:135m, where there is no --models-dir]
    #[arg(short, long, value_name = "MODEL")]
    model: Vec<String>,
    /// Serve every GGUF file and model folder in this folder, too
    #[arg(long, value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// A further name for the first model. May be repeated
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,
    /// Address to listen at; 0.0.0.0 is every network
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen at; 0: any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// A file with API keys, one a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let web pages of this origin use the server; * is all. May be repeated
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// A name by which clients reach this server, where they need no key. May be repeated
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    /// Certificate chain for TLS, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key for TLS, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Requests that run at once
    #[arg(long, value_name = "N", default_value_t = DEFAULT_LANES, value_parser = positive)]
    lanes: usize,
    /// Requests that may wait for a lane; more are answered with 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    /// Tokens of context [default: all that the model allows and memory holds]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    context: Option<usize>,
    /// Models that are loaded at once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive)]
    max_loaded: usize,
    /// Unload models, but for the only one, after so many seconds without a request; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    keep_alive: u64,
    /// Seconds that requests may go on after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
    /// Seconds for the headers and for the body of a request to come, and for a connection without one
    #[arg(long, value_name = "SECONDS", default_value_t = 75, value_parser = positive)]
    idle: usize,
    /// Most megabytes of a request
    #[arg(long, value_name = "MB", default_value_t = 32, value_parser = positive)]
    max_body: usize,
    /// What is written for each request, never with its texts
    #[arg(long, value_name = "FORM", default_value = "text")]
    log: LogChoice,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogChoice {
    Text,
    Json,
    Off,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let keys = keys(arguments)?;
    let source = Source::new(arguments, console)?;
    if !arguments.host.is_loopback() && keys.is_empty() {
        console.notice(&format!(
            "warning: whoever reaches {} may use this server; --api-key-file or PIANOLA_API_KEYS wants a key",
            arguments.host
        ));
    }
    let several = source.count() > 1;
    let options = ServerOptions {
        host: arguments.host,
        port: arguments.port,
        keys,
        origins: arguments.cors.clone(),
        host_names: arguments.host_name.clone(),
        tls: arguments
            .tls_cert
            .clone()
            .zip(arguments.tls_key.clone())
            .map(|(certificate, key)| TlsFiles { certificate, key }),
        limits: HttpLimits {
            body_bytes: arguments.max_body << 20,
            idle: Duration::from_secs(arguments.idle as u64),
            ..HttpLimits::default()
        },
        keep: KeepOptions {
            max_loaded: arguments.max_loaded,
            idle: (several && arguments.keep_alive > 0)
                .then(|| Duration::from_secs(arguments.keep_alive)),
        },
        drain: Duration::from_secs(arguments.drain),
        log: match (arguments.log, console.quiet) {
            (LogChoice::Off, _) | (LogChoice::Text, true) => LogFormat::Off,
            (LogChoice::Text, false) => LogFormat::Text,
            (LogChoice::Json, _) => LogFormat::Json,
        },
        version: BUILD.to_string(),
    };
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    serve(options, Arc::new(source), |address| {
        console.notice(&format!("listening at {scheme}://{}", shown(address)));
    })
    .map_err(|error| Failure::failed(error.to_string()))
}

/// An address that a browser takes.
fn shown(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], address.port())),
        _ => address,
    }
}

/// Keys of the file and of the environment.
fn keys(arguments: &Arguments) -> Result<Vec<ApiKey>, Failure> {
    let mut keys = Vec::new();
    if let Some(path) = &arguments.api_key_file {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::failed(format!("cannot read the keys of {}: {error}", path.display()))
        })?;
        let lines = text.lines().map(str::trim);
        keys.extend(
            lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(ApiKey::new),
        );
        if keys.is_empty() {
            let message = format!("{} has no key; write one a line", path.display());
            return Err(Failure::failed(message));
        }
    }
    if let Some(text) = std::env::var_os("PIANOLA_API_KEYS") {
        let text = text.to_string_lossy();
        let parts = text.split(',').map(str::trim).filter(|key| !key.is_empty());
        let found: Vec<ApiKey> = parts.map(ApiKey::new).collect();
        // A server that was to have keys must not start without.
        if found.is_empty() {
            let message = "PIANOLA_API_KEYS is set and holds no key; write keys with commas between, or unset it";
            return Err(Failure::usage(message));
        }
        keys.extend(found);
    }
    Ok(keys)
}
