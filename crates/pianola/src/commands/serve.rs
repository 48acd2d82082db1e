//! `serve`: models over HTTP.

mod folder;
mod here;
mod served;
mod source;
mod values;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pianola_engine::DEFAULT_LANES;
use pianola_server::{
    ApiKey, HttpLimits, KeepOptions, LoadFailureKind, LogFormat, ServerError, ServerOptions,
    TlsFiles, serve,
};

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::options::{ComputeOptions, SpeculationOptions, context, positive};
use crate::version::BUILD;
use source::Source;

/// Serve models to OpenAI, Anthropic and Ollama clients, with a page for the browser.
///
/// Listens at http://127.0.0.1:8080. Open that address in a browser, or point a client at it (OpenAI
/// clients at /v1). SIGTERM or Ctrl-C lets running requests finish; a second one ends at once.
/// `pianola help serving` explains keys, TLS and limits.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola serve
  pianola serve -m qwen2.5-coder:1.5b --port 11434
  PIANOLA_API_KEYS=secret pianola serve --host 0.0.0.0
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'")]
pub struct Arguments {
    /// Models, as -m takes them
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    named: Vec<String>,
    /// Model: a name, a GGUF file or a Hugging Face folder. May be repeated
    ///
    /// The first model is loaded at once, the others when they are asked for. Without a name and
    /// --models-dir all models of the store and of the hub's cache are served, later ones too:
    /// smollm2:135m is loaded first, or else the first that `pianola list` shows.
    #[arg(short, long, value_name = "MODEL")]
    model: Vec<String>,
    /// Also serve every GGUF file and model folder in this folder
    #[arg(long, value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// Further name for the first model. May be repeated
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    #[arg(hide_short_help = true)]
    alias: Vec<String>,
    /// Address to listen at; 0.0.0.0: all networks
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = values::host)]
    host: IpAddr,
    /// Port to listen at; 0: any free port
    #[arg(long, value_name = "PORT", default_value = "8080", value_parser = values::port)]
    #[arg(allow_negative_numbers = true)]
    port: u16,
    /// File with API keys, one per line
    ///
    /// The variable PIANOLA_API_KEYS holds keys too, separated by commas.
    #[arg(long, value_name = "FILE", help_heading = NETWORK)]
    api_key_file: Option<PathBuf>,
    /// Let web pages of this origin use the server, as in https://chat.example; *: all
    ///
    /// May be repeated.
    #[arg(long, value_name = "ORIGIN", value_parser = values::origin)]
    #[arg(hide_short_help = true, help_heading = NETWORK)]
    cors: Vec<String>,
    /// Host name by which clients without a key reach this server. May be repeated
    #[arg(long, value_name = "NAME", value_parser = values::host_name)]
    #[arg(hide_short_help = true, help_heading = NETWORK)]
    host_name: Vec<String>,
    /// Certificate chain for TLS: a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    #[arg(hide_short_help = true, help_heading = NETWORK)]
    tls_cert: Option<PathBuf>,
    /// Private key for TLS: a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    #[arg(hide_short_help = true, help_heading = NETWORK)]
    tls_key: Option<PathBuf>,
    /// Requests that run at once
    #[arg(long, alias = "parallel", value_name = "N", default_value_t = DEFAULT_LANES)]
    #[arg(value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    lanes: usize,
    /// Requests that may wait for a lane; further ones get status 429
    #[arg(long, value_name = "N", default_value = "256", value_parser = values::waiting)]
    #[arg(allow_negative_numbers = true, hide_short_help = true, help_heading = LIMITS)]
    queue: usize,
    /// Tokens of context [default: as many as the model allows and memory holds]
    #[arg(short, long, alias = "ctx-size", value_name = "N", value_parser = context)]
    #[arg(allow_negative_numbers = true)]
    context: Option<usize>,
    /// Models that are loaded at once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive)]
    #[arg(allow_negative_numbers = true, hide_short_help = true, help_heading = LIMITS)]
    max_loaded: usize,
    /// Seconds without a request after which a model is unloaded; 0: never
    ///
    /// A model that is served alone stays loaded.
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = values::seconds)]
    #[arg(allow_negative_numbers = true, hide_short_help = true, help_heading = LIMITS)]
    keep_alive: u64,
    /// Seconds that requests may run on after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::seconds)]
    #[arg(allow_negative_numbers = true, hide_short_help = true, help_heading = LIMITS)]
    drain: u64,
    /// Seconds to wait for a request's headers, for its body, and for the next request
    #[arg(long, value_name = "SECONDS", default_value = "75", value_parser = values::some_seconds)]
    #[arg(allow_negative_numbers = true, hide_short_help = true, help_heading = LIMITS)]
    idle: u64,
    /// Largest request in megabytes
    #[arg(long, value_name = "MB", default_value = "32", value_parser = values::megabytes)]
    #[arg(allow_negative_numbers = true, hide_short_help = true, help_heading = LIMITS)]
    max_body: usize,
    /// Form of the log on standard error
    ///
    /// The log has a line for each request and for each model that is loaded or unloaded. It never
    /// holds texts. With `json` every line is a JSON object, notices included.
    #[arg(long, value_name = "FORM", default_value = "text")]
    log: LogChoice,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// Headings of the long help.
pub const NETWORK: &str = "Network";
pub const LIMITS: &str = "Limits";

/// The form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogChoice {
    Text,
    Json,
    Off,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    if matches!(arguments.log, LogChoice::Json) {
        console::write_json_lines();
    }
    // Clients of every API show durations and tokens per second.
    if arguments.compute.npu.emulate_npu {
        return Err(Failure::usage(
            "npu (emulated) has no speed, and clients of a server show one; --emulate-npu is for `run`, \
             `check`, `compare` and `plan`",
        ));
    }
    let keys = keys(arguments)?;
    let source = Source::new(arguments, console)?;
    if !arguments.host.is_loopback() && keys.is_empty() {
        console.notice(&format!(
            "warning: anyone who reaches {} may use this server; --api-key-file or PIANOLA_API_KEYS sets keys",
            arguments.host
        ));
    }
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
            body_bytes: arguments.max_body,
            idle: Duration::from_secs(arguments.idle),
            ..HttpLimits::default()
        },
        keep: KeepOptions {
            max_loaded: arguments.max_loaded,
            idle: (arguments.keep_alive > 0).then(|| Duration::from_secs(arguments.keep_alive)),
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
    let listening = |address: SocketAddr| {
        console.notice(&format!("listening at {scheme}://{address}"));
        if let Some(local) = local_address(address) {
            console.notice(&format!("on this machine: {scheme}://{local}"));
        }
    };
    serve(options, Arc::new(source), listening).map_err(|error| match error {
        ServerError::Model(failure) if failure.kind == LoadFailureKind::Options => {
            Failure::usage(failure.message)
        }
        error => Failure::failed(error.to_string()),
    })
}

/// The address for clients on this machine, where the server listens at every address.
fn local_address(address: SocketAddr) -> Option<SocketAddr> {
    let local: IpAddr = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => return None,
    };
    Some(SocketAddr::new(local, address.port()))
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
