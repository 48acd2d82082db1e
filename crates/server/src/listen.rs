//! Connections: accepted, bounded, drained.

use crate::client_stream::ClientStream;
use crate::hub::Hub;
use crate::operation;
use crate::options::ServerOptions;
use crate::route;
use crate::source::{LoadFailure, ModelSource};
use crate::stall::StallLimit;
use crate::state::State;
use crate::tls;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

/// Why a server did not start or went down.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Why, and what to do.
        reason: String,
    },
    /// Certificate or key cannot be used.
    #[error("cannot use {file} for TLS: {reason}")]
    Tls {
        /// The file.
        file: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The only model cannot be loaded.
    #[error("{}", .0.message)]
    Model(LoadFailure),
    /// The system refuses something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time before the next attempt where a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Time for the errors that requests under way end in to be written.
const LAST_WRITES: Duration = Duration::from_secs(1);
/// Time for the last lines of the log to be written.
const LAST_LINES: Duration = Duration::from_millis(200);

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError::System { what, source }
}

/// Serves until it is told to end: SIGTERM or SIGINT let requests finish, a second one ends at once. Ends
/// with an error where there is one model and it cannot be loaded. `listening` is called with the address
/// once connections are accepted.
pub fn serve(
    options: ServerOptions,
    source: Arc<dyn ModelSource>,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), ServerError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("cannot start the server's thread"))?;
    let state = Arc::new(State::new(options, source));
    let result = runtime.block_on(run(&state, listening));
    // Requests and loads that still run are given up; their threads end with the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    state.log.flush(LAST_LINES);
    result
}

/// SIGTERM and SIGINT.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    fn new() -> Result<EndSignals, ServerError> {
        let terminate = signal(SignalKind::terminate()).map_err(system("cannot take SIGTERM"))?;
        let interrupt = signal(SignalKind::interrupt()).map_err(system("cannot take SIGINT"))?;
        Ok(EndSignals { terminate, interrupt })
    }

    /// Resolves with the next of them.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn run(state: &Arc<State>, listening: impl FnOnce(SocketAddr)) -> Result<(), ServerError> {
    let acceptor = state.options.tls.as_ref().map(tls::acceptor).transpose()?;
    let listener = bind(SocketAddr::new(state.options.host, state.options.port)).await?;
    let mut signals = EndSignals::new()?;
    listening(listener.local_addr().map_err(system("cannot tell the address"))?);
    let (stop, stopped) = watch::channel(false);
    let permits = Arc::new(Semaphore::new(state.options.limits.connections));
    tokio::spawn(unload_idle(state.hub.clone()));
    let accepting = async {
        let mut failing = false;
        loop {
            let (stream, permit) = match accept(&listener, &permits).await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, say. Logged once for a series of failures.
                    if !std::mem::replace(&mut failing, true) {
                        state.log.write("accept failed", &[("error", error.to_string().into())]);
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            failing = false;
            let connection = open(state.clone(), stream, acceptor.clone(), stopped.clone());
            tokio::spawn(async move {
                connection.await;
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        failure = only_model_failed(state) => return Err(ServerError::Model(failure)),
        () = signals.next() => {}
    }
    drop(listener);
    state.drain();
    let _ = stop.send(true);
    state.log.write("draining", &[("requests", state.active().into())]);
    tokio::select! {
        () = until_done(state, &permits) => return Ok(()),
        () = tokio::time::sleep(state.options.drain) => {}
        () = signals.next() => {}
    }
    state.log.write("cut off", &[("requests", state.active().into())]);
    // Every answer ends in its API's error, so that clients do not take a part for the whole.
    state.cut_off();
    let _ = tokio::time::timeout(LAST_WRITES, until_done(state, &permits)).await;
    // The step under way may take seconds.
    state.hub.abandon();
    Ok(())
}

/// Loads the first model. Resolves only where that failed and there is no other to serve.
async fn only_model_failed(state: &Arc<State>) -> LoadFailure {
    if let Err(failure) = operation::load_first(state).await {
        if state.hub.source().models().len() == 1 {
            return failure;
        }
        state.log.write_always("not ready", &[("error", failure.message.into())]);
    }
    std::future::pending().await
}

/// Resolves once no request is under way and the answers have gone out.
async fn until_done(state: &State, permits: &Semaphore) {
    state.until_idle().await;
    // A request is over when its answer is with its connection, which still has to write it. Connections
    // without a request close by themselves; those that do not are not waited for.
    let all = u32::try_from(state.options.limits.connections).unwrap_or(u32::MAX);
    let _ = tokio::time::timeout(Duration::from_secs(2), permits.acquire_many(all)).await;
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|error| {
        let reason = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another program listens there; end it, or choose another --port".to_string()
            }
            io::ErrorKind::PermissionDenied => {
                "it takes the right to use ports below 1024; choose another --port".to_string()
            }
            io::ErrorKind::AddrNotAvailable => {
                "this machine has no such address; check --host".to_string()
            }
            _ => error.to_string(),
        };
        ServerError::Listen { address, reason }
    })
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    // Where there are too many, further ones wait in the system's queue.
    let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

/// Serves one connection, encrypted or not.
async fn open(
    state: Arc<State>,
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    stopped: watch::Receiver<bool>,
) {
    // A token is a small packet that must not wait for the next.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return connect(state, stream, stopped).await };
    let shaking = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
    // Whoever speaks no TLS, or none of ours, is not answered.
    if let Ok(Ok(stream)) = shaking {
        connect(state, stream, stopped).await;
    }
}

/// Serves one connection to its end.
async fn connect(
    state: Arc<State>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    mut stopped: watch::Receiver<bool>,
) {
    let limits = state.options.limits;
    let shared = state.clone();
    let service = service_fn(move |request| route::answer(shared.clone(), request));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_headers(128)
        .max_buf_size(limits.header_bytes.max(8192));
    let stream = StallLimit::new(ClientStream::new(stream, stopped.clone()));
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // What a connection ends with concerns its client only.
        _ = connection.as_mut() => return,
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Looks from time to time for models that nobody has used for long.
async fn unload_idle(hub: Arc<Hub>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let hub = hub.clone();
        let _ = tokio::task::spawn_blocking(move || hub.unload_idle()).await;
    }
}
