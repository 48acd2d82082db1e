//! Which requests are answered: by `Host`, `Origin`, key, type and encoding, before a body is read.

use crate::error::{ApiError, ErrorKind, shown};
use crate::options::{ApiKey, ServerOptions};
use crate::reply::{self, Reply};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, AUTHORIZATION, CONTENT_ENCODING,
    CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::{StatusCode, Version};
use std::net::IpAddr;

/// Owner of cached prompts: the number of the API key, or 0 on a server without keys.
pub(crate) type Tenant = u64;

/// Checks that there is exactly one `Host` header, as HTTP/1.1 requires: with two, a proxy in front of this
/// server may have checked the other one.
pub(crate) fn check_host(version: Version, headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get_all(HOST).iter().count() {
        1 => Ok(()),
        0 if version < Version::HTTP_11 => Ok(()),
        count => {
            let message = format!("a request must have one Host header, this one has {count}");
            Err(ApiError::new(ErrorKind::InvalidRequest, message))
        }
    }
}

/// Checks `Host` and `Origin`: a web page of another site must not use a server on the reader's machine.
pub(crate) fn check_site(options: &ServerOptions, headers: &HeaderMap) -> Result<(), ApiError> {
    let forbidden = |message: String| Err(ApiError::new(ErrorKind::Forbidden, message));
    // DNS rebinding: the name of another site may resolve to this address. Its pages have no key, so that
    // only a server without keys needs the check.
    if options.keys.is_empty()
        && let Some(host) = headers.get(HOST)
        && !is_own_host(options, host)
    {
        let name = String::from_utf8_lossy(host.as_bytes());
        let name = shown(without_port(&name));
        return forbidden(format!(
            "the name '{name}' is not one of this server's; --host-name {name} makes it one"
        ));
    }
    if let Some(origin) = headers.get(ORIGIN)
        && !is_own_origin(headers, origin)
        && allowed_origin(options, origin).is_none()
    {
        let name = shown(&String::from_utf8_lossy(origin.as_bytes()));
        return forbidden(format!(
            "pages of {name} may not use this server; --cors {name} lets them"
        ));
    }
    Ok(())
}

/// A host without its port.
fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_own_host(options: &ServerOptions, host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let name = without_port(host);
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || options.host_names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Whether the request comes from this server's own page.
fn is_own_origin(headers: &HeaderMap, origin: &HeaderValue) -> bool {
    let (Ok(origin), Some(Ok(host))) = (origin.to_str(), headers.get(HOST).map(|h| h.to_str()))
    else {
        return false;
    };
    origin.split_once("://").is_some_and(|(_, own)| own.eq_ignore_ascii_case(host))
}

/// The value of `Access-Control-Allow-Origin`, if the origin is allowed.
fn allowed_origin(options: &ServerOptions, origin: &HeaderValue) -> Option<HeaderValue> {
    let allowed =
        |own: &String| own == "*" || own.as_bytes().eq_ignore_ascii_case(origin.as_bytes());
    options.origins.iter().any(allowed).then(|| origin.clone())
}

/// Lets a page of an allowed origin read the answer.
pub(crate) fn add_cors(options: &ServerOptions, origin: Option<&HeaderValue>, reply: &mut Reply) {
    let headers = reply.headers_mut();
    // Also for those who sent no origin: a cache must not give their answer to a page that does.
    headers.append(VARY, HeaderValue::from_static("Origin"));
    let Some(origin) = origin.and_then(|origin| allowed_origin(options, origin)) else { return };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id"));
}

/// The answer to a CORS preflight.
pub(crate) fn preflight(requested: Option<&HeaderValue>) -> Reply {
    let mut reply = reply::whole(StatusCode::NO_CONTENT, "text/plain", "");
    let headers = reply.headers_mut();
    let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    let allowed = HeaderValue::from_static("authorization, content-type, x-api-key");
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested.cloned().unwrap_or(allowed));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    reply
}

/// Compares the key of a request with the server's keys.
pub(crate) fn check_key(options: &ServerOptions, headers: &HeaderMap) -> Result<Tenant, ApiError> {
    if options.keys.is_empty() {
        return Ok(0);
    }
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let sent = bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()));
    let Some(sent) = sent else {
        let message = "this server requires an API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
        return Err(ApiError::new(ErrorKind::Authentication, message));
    };
    let sent = ApiKey::new(sent);
    // Every key is compared, so that the time does not reveal which one matched.
    let matching = options.keys.iter().enumerate().filter(|(_, key)| key.matches(&sent));
    match matching.fold(None, |_, found| Some(found)) {
        Some((index, _)) => Ok(index as Tenant + 1),
        None => {
            Err(ApiError::new(ErrorKind::Authentication, "the API key is not one of this server's"))
        }
    }
}

/// Checks that the body is declared as JSON. HTML forms cannot do that, and scripts of another origin only
/// after a preflight.
pub(crate) fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let sent = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let kind = sent.map(|sent| sent.split(';').next().unwrap_or_default().trim());
    let is_json = |kind: &str| {
        kind.eq_ignore_ascii_case("application/json")
            || (kind.starts_with("application/") && kind.ends_with("+json"))
    };
    match kind {
        Some(kind) if is_json(kind) => Ok(()),
        _ => Err(ApiError::new(
            ErrorKind::ContentType,
            format!(
                "the content type must be application/json (with curl: -H 'Content-Type: application/json'), it is {}",
                sent.map_or("missing".to_string(), |sent| format!("'{}'", shown(sent)))
            ),
        )),
    }
}

/// Checks that the body is not compressed: unpacking would need a bound of its own.
pub(crate) fn check_content_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let is_plain = |value: &&HeaderValue| {
        let mut codings = value.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        codings.all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity"))
    };
    match headers.get_all(CONTENT_ENCODING).iter().find(|value| !is_plain(value)) {
        None => Ok(()),
        Some(value) => {
            let coding = shown(&String::from_utf8_lossy(value.as_bytes()));
            let message = format!(
                "the content encoding '{coding}' is not supported; send the body uncompressed"
            );
            Err(ApiError::new(ErrorKind::ContentType, message))
        }
    }
}
