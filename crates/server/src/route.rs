//! From a request's method and path to the function that answers it.
//!
//! ```text
//! request ─► gate: host, site, key, content type ─► body ─► handler ─► Reply, or ApiError in the API's form
//! ```

use crate::body::JsonBody;
use crate::call::{Call, CallOrigin};
use crate::error::{ApiError, Dialect, ErrorKind, shown};
use crate::gate;
use crate::path::percent_decoded;
use crate::reply::Reply;
use crate::state::State;
use crate::{anthropic, docs, ollama, openai, operation, page, status};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::{Method, Request, StatusCode};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;

/// The endpoint of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    Root,
    Script,
    Style,
    Health,
    Ready,
    Version,
    Metrics,
    Status,
    OpenApi,
    Docs,
    DocsStyle,
    Models,
    Model,
    Chat,
    Completions,
    Embeddings,
    Responses,
    Response,
    Messages,
    CountTokens,
    Tokenize,
    Detokenize,
    OllamaTags,
    OllamaVersion,
    OllamaPs,
    OllamaShow,
    OllamaChat,
    OllamaGenerate,
    OllamaEmbed,
    OllamaEmbeddings,
    OllamaPull,
    /// Endpoints of Ollama's API that this server does not have.
    OllamaUnsupported,
}

/// A route's methods, its path as metrics name it, and whether it works without a key.
struct Row {
    route: Route,
    methods: &'static [Method],
    path: &'static str,
    public: bool,
}

impl Row {
    fn allowed(&self, between: &str) -> String {
        self.methods.iter().map(Method::as_str).collect::<Vec<&str>>().join(between)
    }
}

const fn row(route: Route, methods: &'static [Method], path: &'static str, public: bool) -> Row {
    Row { route, methods, path, public }
}

const GET: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];
const DELETE: &[Method] = &[Method::DELETE];
const BLOB: &[Method] = &[Method::HEAD, Method::POST];
const GET_DELETE: &[Method] = &[Method::GET, Method::HEAD, Method::DELETE];

/// A path that ends in `*` stands for all that begin so.
const ROUTES: &[Row] = &[
    row(Route::Root, GET, "/", true),
    row(Route::Script, GET, "/app.js", true),
    row(Route::Style, GET, "/app.css", true),
    row(Route::Health, GET, "/health", true),
    row(Route::Ready, GET, "/ready", true),
    row(Route::Version, GET, "/version", true),
    row(Route::Metrics, GET, "/metrics", true),
    row(Route::Status, GET, "/status", false),
    row(Route::OpenApi, GET, "/openapi.json", true),
    row(Route::Docs, GET, "/docs", true),
    row(Route::DocsStyle, GET, "/docs.css", true),
    row(Route::Models, GET, "/v1/models", false),
    row(Route::Model, GET, "/v1/models/*", false),
    row(Route::Chat, POST, "/v1/chat/completions", false),
    row(Route::Completions, POST, "/v1/completions", false),
    row(Route::Embeddings, POST, "/v1/embeddings", false),
    row(Route::Responses, POST, "/v1/responses", false),
    row(Route::Response, GET_DELETE, "/v1/responses/*", false),
    row(Route::Messages, POST, "/v1/messages", false),
    row(Route::CountTokens, POST, "/v1/messages/count_tokens", false),
    row(Route::Tokenize, POST, "/tokenize", false),
    row(Route::Detokenize, POST, "/detokenize", false),
    row(Route::OllamaTags, GET, "/api/tags", false),
    row(Route::OllamaVersion, GET, "/api/version", true),
    row(Route::OllamaPs, GET, "/api/ps", false),
    row(Route::OllamaShow, POST, "/api/show", false),
    row(Route::OllamaChat, POST, "/api/chat", false),
    row(Route::OllamaGenerate, POST, "/api/generate", false),
    row(Route::OllamaEmbed, POST, "/api/embed", false),
    row(Route::OllamaEmbeddings, POST, "/api/embeddings", false),
    row(Route::OllamaPull, POST, "/api/pull", false),
    row(Route::OllamaUnsupported, DELETE, "/api/delete", false),
    row(Route::OllamaUnsupported, POST, "/api/copy", false),
    row(Route::OllamaUnsupported, POST, "/api/create", false),
    row(Route::OllamaUnsupported, POST, "/api/push", false),
    row(Route::OllamaUnsupported, BLOB, "/api/blobs/*", false),
];

/// Paths and methods that are served; HEAD is left out where there is GET.
#[cfg(test)]
pub(crate) fn served() -> impl Iterator<Item = (String, String)> {
    ROUTES.iter().flat_map(|row| {
        let has_get = row.methods.contains(&Method::GET);
        let shown = row.methods.iter().filter(move |&method| !(has_get && method == Method::HEAD));
        shown.map(|method| (row.path.to_string(), method.to_string()))
    })
}

/// Paths that need no key.
#[cfg(test)]
pub(crate) fn public() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().filter(|row| row.public).map(|row| row.path)
}

/// The row of a path, and what its star stands for.
fn find(path: &str) -> Option<(&'static Row, &str)> {
    ROUTES.iter().find_map(|row| match row.path.strip_suffix('*') {
        Some(start) => {
            // Nothing is served below a response, nor what is none.
            let is_response = |rest: &str| rest.starts_with("resp_") && !rest.contains('/');
            let fits = |rest: &&str| match row.route {
                Route::Response => is_response(rest),
                _ => !rest.is_empty(),
            };
            path.strip_prefix(start).filter(fits).map(|rest| (row, rest))
        }
        None => (row.path == path).then_some((row, "")),
    })
}

/// Answers a request, whatever it is.
pub(crate) async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Reply, Infallible> {
    let path = request.uri().path().trim_end_matches('/').to_string();
    let path = if path.is_empty() { "/".to_string() } else { path };
    let found = find(&path);
    let headers = request.headers();
    let origin = headers.get(ORIGIN).cloned();
    let key = gate::check_key(&state.options, headers);
    let call = Call::new(
        &state,
        CallOrigin {
            method: shown(request.method().as_str()),
            // Unknown paths share one name: each distinct name adds a series to the metrics.
            route: found.map_or("other", |(row, _)| row.path),
            dialect: Dialect::of(&path),
            tenant: *key.as_ref().unwrap_or(&0),
            wait: !wants_no_wait(headers),
        },
    );
    let result = tokio::select! {
        biased;
        result = dispatch(&call, request, found, key.err()) => result,
        () = state.until_cut_off() => Err(ApiError::shutting_down()),
    };
    let mut reply = result.unwrap_or_else(|error| {
        call.set_error(&error);
        error.reply(call.dialect, &call.id)
    });
    gate::add_cors(&state.options, origin.as_ref(), &mut reply);
    let allowed = found.filter(|_| reply.status() == StatusCode::METHOD_NOT_ALLOWED);
    let headers = reply.headers_mut();
    if let Some((row, _)) = allowed
        && let Ok(methods) = HeaderValue::from_str(&row.allowed(", "))
    {
        headers.insert(ALLOW, methods);
    }
    if let Ok(id) = HeaderValue::from_str(&call.id) {
        headers.insert(HeaderName::from_static("x-request-id"), id);
    }
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    call.set_reply(&reply);
    // A stream says itself when it has come to its end.
    if !reply.body().is_stream() {
        call.set_complete();
    }
    Ok(reply)
}

/// Whether the client asked for an answer at once even if the model is not loaded (RFC 7240).
fn wants_no_wait(headers: &HeaderMap) -> bool {
    let prefer = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    prefer.flat_map(|value| value.split(',')).any(|one| {
        let one = one.trim();
        one == "wait=0" || one == "respond-async"
    })
}

async fn dispatch(
    call: &Arc<Call>,
    request: Request<Incoming>,
    found: Option<(&'static Row, &str)>,
    key_error: Option<ApiError>,
) -> Result<Reply, ApiError> {
    let state = &call.state;
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    gate::check_host(request.version(), request.headers())?;
    gate::check_site(&state.options, request.headers())?;
    if method == Method::OPTIONS {
        return Ok(gate::preflight(request.headers().get("access-control-request-headers")));
    }
    let Some((row, rest)) = found else {
        let message = format!("there is nothing at {}; /docs lists what there is", shown(&path));
        return Err(ApiError::new(ErrorKind::NotFound, message));
    };
    if !row.methods.contains(&method) {
        let (path, sent) = (shown(&path), shown(method.as_str()));
        let message = format!("{path} takes {}, not {sent}", row.allowed(" or "));
        return Err(ApiError::new(ErrorKind::MethodNotAllowed, message));
    }
    if let Some(error) = key_error.filter(|_| !row.public) {
        return Err(error);
    }
    if state.is_draining() && !row.public {
        return Err(ApiError::shutting_down());
    }
    // An unsupported path is reported as such, whatever is in the body.
    let takes_body = method == Method::POST && row.route != Route::OllamaUnsupported;
    if takes_body {
        gate::check_content_type(request.headers())?;
        gate::check_content_encoding(request.headers())?;
    }
    let html = accepts_html(request.headers());
    let body = match takes_body {
        true => JsonBody::receive(state, request.into_body()).await?,
        false => JsonBody::none(),
    };
    // The body's share of the budget is given back with it, once the answer is there or has begun.
    handle(call, row.route, &percent_decoded(rest), html, &body.value).await
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

async fn handle(
    call: &Arc<Call>,
    route: Route,
    rest: &str,
    html: bool,
    body: &Arc<Value>,
) -> Result<Reply, ApiError> {
    let state = &call.state;
    if matches!(route, Route::Models | Route::Model | Route::OllamaTags | Route::OllamaShow) {
        state.hub.refresh().await;
    }
    match route {
        Route::Root => Ok(page::root(html)),
        Route::Script => Ok(page::script()),
        Route::Style => Ok(page::style()),
        Route::Health => Ok(operation::health()),
        Route::Ready => operation::ready(state),
        Route::Version => Ok(operation::version(state)),
        Route::Metrics => Ok(status::metrics(state)),
        Route::Status => Ok(status::status(state)),
        Route::OpenApi => Ok(docs::openapi()),
        Route::Docs => Ok(docs::docs()),
        Route::DocsStyle => Ok(docs::style()),
        Route::Models => Ok(openai::models::list(state)),
        Route::Model => openai::models::one(state, rest),
        Route::Chat => openai::chat::answer(call, body).await,
        Route::Completions => openai::completions::answer(call, body).await,
        Route::Embeddings => openai::embeddings::answer(call, body).await,
        Route::Responses => openai::responses::answer(call, body).await,
        Route::Response if call.method == "DELETE" => openai::responses::delete(call, rest),
        Route::Response => openai::responses::get(call, rest),
        Route::Messages => anthropic::answer(call, body).await,
        Route::CountTokens => anthropic::count_tokens(call, body).await,
        Route::Tokenize => operation::tokenize(call, body).await,
        Route::Detokenize => operation::detokenize(call, body).await,
        Route::OllamaTags => Ok(ollama::models::tags(state)),
        Route::OllamaVersion => Ok(ollama::version()),
        Route::OllamaPs => Ok(ollama::models::ps(state)),
        Route::OllamaShow => ollama::models::show(state, body),
        Route::OllamaChat => ollama::chat::answer(call, body).await,
        Route::OllamaGenerate => ollama::generate::answer(call, body).await,
        Route::OllamaEmbed => ollama::embed::answer(call, body).await,
        Route::OllamaEmbeddings => ollama::embed::answer_one(call, body).await,
        Route::OllamaPull => ollama::pull::answer(call, body).await,
        Route::OllamaUnsupported => Err(ollama::unsupported(call.route)),
    }
}
