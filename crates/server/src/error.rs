//! What is wrong with a request, in the form of each API.

use crate::reply::{self, Reply};
use hyper::StatusCode;
use hyper::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use pianola_engine::EngineError;
use serde_json::{Value, json};

/// The kinds of errors that clients tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ErrorKind {
    InvalidRequest,
    ContextLength,
    ModelNotFound,
    NotFound,
    /// An answer that a request continues is not kept.
    PreviousResponseNotFound,
    MethodNotAllowed,
    Authentication,
    Forbidden,
    TooLarge,
    /// The body is not JSON, or is compressed.
    ContentType,
    Timeout,
    /// Too many requests wait.
    QueueFull,
    /// The model is being loaded, the server is shutting down, or the device is lost.
    Unavailable,
    Internal,
}

impl ErrorKind {
    pub fn status(self) -> StatusCode {
        match self {
            ErrorKind::InvalidRequest | ErrorKind::ContextLength => StatusCode::BAD_REQUEST,
            ErrorKind::ModelNotFound
            | ErrorKind::NotFound
            | ErrorKind::PreviousResponseNotFound => StatusCode::NOT_FOUND,
            ErrorKind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            ErrorKind::Authentication => StatusCode::UNAUTHORIZED,
            ErrorKind::Forbidden => StatusCode::FORBIDDEN,
            ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ErrorKind::Timeout => StatusCode::REQUEST_TIMEOUT,
            ErrorKind::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// OpenAI's `type` and `code`.
    pub fn openai(self) -> (&'static str, Option<&'static str>) {
        match self {
            ErrorKind::ContextLength => ("invalid_request_error", Some("context_length_exceeded")),
            ErrorKind::ModelNotFound => ("invalid_request_error", Some("model_not_found")),
            ErrorKind::PreviousResponseNotFound => {
                ("invalid_request_error", Some("previous_response_not_found"))
            }
            ErrorKind::Authentication => ("invalid_request_error", Some("invalid_api_key")),
            ErrorKind::QueueFull => ("rate_limit_error", Some("queue_full")),
            ErrorKind::Unavailable => ("server_error", Some("service_unavailable")),
            ErrorKind::Internal => ("server_error", None),
            _ => ("invalid_request_error", None),
        }
    }

    fn anthropic(self) -> &'static str {
        match self {
            ErrorKind::ModelNotFound | ErrorKind::NotFound => "not_found_error",
            ErrorKind::Authentication => "authentication_error",
            ErrorKind::Forbidden => "permission_error",
            ErrorKind::TooLarge => "request_too_large",
            ErrorKind::QueueFull => "rate_limit_error",
            ErrorKind::Unavailable => "overloaded_error",
            ErrorKind::Internal => "api_error",
            _ => "invalid_request_error",
        }
    }
}

/// Why a request gets no answer.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub kind: ErrorKind,
    pub message: String,
    /// The field that it is about.
    pub param: Option<String>,
    /// Seconds after which it is worth asking again.
    pub retry_after: Option<u64>,
    /// Further facts in Anthropic's form.
    pub details: Option<Box<Value>>,
}

/// Whose form an answer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    /// By the path of a request.
    pub fn of(path: &str) -> Dialect {
        match path {
            _ if path.starts_with("/v1/messages") => Dialect::Anthropic,
            _ if path.starts_with("/api/") => Dialect::Ollama,
            _ => Dialect::OpenAi,
        }
    }
}

/// Most characters of a client's text that a message repeats.
const MAX_SHOWN: usize = 100;
/// Most characters of a message.
const MAX_MESSAGE: usize = 2000;

/// A client's text as messages repeat it: short, and without characters that act on a terminal.
pub(crate) fn shown(text: &str) -> String {
    visible(text, MAX_SHOWN)
}

/// Whether a terminal acts on a character instead of showing it: control characters, and those that change
/// the direction of writing or break lines.
pub(crate) fn acts_on_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first `most` characters of a text; those that act on a terminal are escaped.
fn visible(text: &str, most: usize) -> String {
    let mut visible = String::with_capacity(text.len().min(most));
    for (index, c) in text.chars().enumerate() {
        match c {
            _ if index == most => {
                visible.push('…');
                break;
            }
            c if acts_on_terminal(c) => visible.extend(c.escape_default()),
            c => visible.push(c),
        }
    }
    visible
}

impl ApiError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        let message = message.into();
        // Parts of it may be a client's.
        let acts = |c: char| acts_on_terminal(c) && c != '\n';
        let message = match message.len() > MAX_MESSAGE || message.contains(acts) {
            true => visible(&message, MAX_MESSAGE),
            false => message,
        };
        ApiError { kind, message, param: None, retry_after: None, details: None }
    }

    /// A field that does not make sense.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        let param = Some(param.into());
        ApiError { param, ..ApiError::new(ErrorKind::InvalidRequest, message) }
    }

    /// The prompt has `tokens` or more, and the model is served with fewer.
    pub fn prompt_too_long(tokens: usize, context: usize) -> ApiError {
        // In the words that clients look for.
        let message = format!(
            "prompt is too long: {tokens} tokens > {context} maximum, the context that the model is served with"
        );
        ApiError::new(ErrorKind::ContextLength, message)
    }

    /// The server answers no further requests.
    pub fn shutting_down() -> ApiError {
        let message = "the server is shutting down; retry later";
        ApiError::new(ErrorKind::Unavailable, message).retry_after(5)
    }

    /// The same about a field that the client knows by another name.
    pub fn renamed(self, from: &str, to: &str) -> ApiError {
        if self.param.as_deref() != Some(from) {
            return self;
        }
        // Messages that name their field begin with it.
        let rest = self.message.strip_prefix(from).filter(|rest| rest.starts_with([':', ' ']));
        let message = rest.map(|rest| format!("{to}{rest}"));
        ApiError { param: Some(to.to_string()), message: message.unwrap_or(self.message), ..self }
    }

    pub fn retry_after(self, seconds: u64) -> ApiError {
        ApiError { retry_after: Some(seconds), ..self }
    }

    /// Its body.
    pub fn body(&self, dialect: Dialect, request_id: &str) -> Value {
        let message = self.message.as_str();
        match dialect {
            Dialect::OpenAi => {
                let (ty, code) = self.kind.openai();
                json!({ "error": { "message": message, "type": ty, "param": self.param, "code": code } })
            }
            Dialect::Anthropic => {
                let mut error = json!({ "type": self.kind.anthropic(), "message": message });
                if let Some(details) = &self.details {
                    error["details"] = (**details).clone();
                }
                json!({ "type": "error", "error": error, "request_id": request_id })
            }
            Dialect::Ollama => json!({ "error": message }),
        }
    }

    /// The whole answer.
    pub fn reply(&self, dialect: Dialect, request_id: &str) -> Reply {
        let mut reply = reply::json(self.kind.status(), &self.body(dialect, request_id));
        if let Some(seconds) = self.retry_after {
            reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == ErrorKind::Authentication {
            reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        reply
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        use pianola_engine::ErrorKind as Engine;
        if let EngineError::Text(error) = error {
            return error.into();
        }
        let message = error.to_string();
        match error.kind() {
            Engine::ContextLength { tokens, context } => ApiError::prompt_too_long(tokens, context),
            Engine::InvalidRequest(field) => ApiError::invalid(field, message),
            Engine::Unsupported | Engine::Load => ApiError::new(ErrorKind::InvalidRequest, message),
            Engine::QueueFull => ApiError::new(ErrorKind::QueueFull, message).retry_after(2),
            Engine::DeviceLost | Engine::Stopped | Engine::OutOfMemory => {
                ApiError::new(ErrorKind::Unavailable, message).retry_after(10)
            }
            Engine::Internal => ApiError::new(ErrorKind::Internal, message),
        }
    }
}

impl From<pianola_text::Error> for ApiError {
    /// A template refuses messages, or a text cannot be split: the request's fault as a rule, and
    /// never the server's.
    fn from(error: pianola_text::Error) -> ApiError {
        ApiError::new(ErrorKind::InvalidRequest, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_called_as_the_client_calls_them() {
        let error = ApiError::invalid("prompt", "prompt: token 9 is unknown");
        let renamed = error.clone().renamed("prompt", "input");
        assert_eq!(renamed.param.as_deref(), Some("input"));
        assert_eq!(renamed.message, "input: token 9 is unknown");
        assert_eq!(error.renamed("stop", "input").param.as_deref(), Some("prompt"));
    }

    #[test]
    fn texts_of_clients_are_bounded_and_visible() {
        assert_eq!(shown("smollm2:135m"), "smollm2:135m");
        assert_eq!(shown("a\u{1b}[2J\r\u{202e}é"), "a\\u{1b}[2J\\r\\u{202e}é");
        let long = shown(&"é".repeat(1000));
        assert_eq!(long.chars().count(), MAX_SHOWN + 1);
        assert!(long.ends_with('…'));
        let error = ApiError::new(ErrorKind::NotFound, format!("\u{7}{}", "a".repeat(1 << 20)));
        assert!(error.message.starts_with("\\u{7}a") && error.message.len() < 2100);
        assert_eq!(ApiError::new(ErrorKind::NotFound, "two\nlines").message, "two\nlines");
    }
}
