//! What is wrong with a request, in the form of each API.

use crate::reply::{self, Reply};
use hyper::StatusCode;
use hyper::header::{HeaderValue, RETRY_AFTER};
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
    ContentType,
    Timeout,
    /// Too many requests wait.
    QueueFull,
    /// The model is being loaded, the server is going down, or the device is lost.
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

impl ApiError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        let message = message.into();
        ApiError { kind, message, param: None, retry_after: None, details: None }
    }

    /// A field that does not make sense.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        let param = Some(param.into());
        ApiError { param, ..ApiError::new(ErrorKind::InvalidRequest, message) }
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
        reply
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let message = error.to_string();
        match error {
            EngineError::ContextLength { needed, context, .. } => ApiError::new(
                ErrorKind::ContextLength,
                format!(
                    "prompt is too long: {needed} tokens > {context} maximum (the context of this model as it is served)"
                ),
            ),
            EngineError::EmptyPrompt => ApiError::invalid(
                "messages",
                "the prompt has no tokens; send at least one message or word",
            ),
            EngineError::Sampling(_) | EngineError::UnknownToken { .. } => {
                ApiError::new(ErrorKind::InvalidRequest, message)
            }
            EngineError::Text(error) => error.into(),
            EngineError::ConstraintUnmet { .. } => {
                ApiError::new(ErrorKind::InvalidRequest, message)
            }
            EngineError::QueueFull { .. } => {
                ApiError::new(ErrorKind::QueueFull, message).retry_after(2)
            }
            EngineError::DeviceLost(_) | EngineError::Stopped => {
                ApiError::new(ErrorKind::Unavailable, message).retry_after(10)
            }
            _ => ApiError::new(ErrorKind::Internal, message),
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
