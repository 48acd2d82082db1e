//! Readers of the values that only `serve` takes.

use std::net::IpAddr;

/// The longest time in seconds: 30 years, which every clock can count to.
const MOST_SECONDS: u64 = 30 * 365 * 86_400;
/// The most requests that may wait.
const MOST_WAITING: usize = 1_000_000;

/// A time in whole seconds.
pub fn seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds) if seconds <= MOST_SECONDS => Ok(seconds),
        _ => Err(format!("it must be a whole number of seconds between 0 and {MOST_SECONDS}")),
    }
}

/// A time of at least a second.
pub fn some_seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds) if (1..=MOST_SECONDS).contains(&seconds) => Ok(seconds),
        _ => Err(format!("it must be a whole number of seconds between 1 and {MOST_SECONDS}")),
    }
}

/// A number of requests that may wait.
pub fn waiting(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number <= MOST_WAITING => Ok(number),
        _ => Err(format!("it must be a whole number between 0 and {MOST_WAITING}")),
    }
}

/// Megabytes (of 2^20 bytes) as bytes.
pub fn megabytes(text: &str) -> Result<usize, String> {
    let most = usize::MAX >> 20;
    match text.parse::<usize>() {
        Ok(megabytes) if (1..=most).contains(&megabytes) => Ok(megabytes << 20),
        _ => Err(format!("it must be a whole number of megabytes between 1 and {most}")),
    }
}

/// An address to listen at.
pub fn host(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    text.parse().map_err(|_| {
        "it must be an address of this machine, such as 127.0.0.1 or 0.0.0.0; the port goes into --port"
            .to_string()
    })
}

/// A port.
pub fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "it must be a whole number between 0 and 65535".to_string())
}

/// The origin of web pages, as browsers send it.
pub fn origin(text: &str) -> Result<String, String> {
    // Browsers send `null` for pages without an origin, such as files.
    if matches!(text, "*" | "null") {
        return Ok(text.to_string());
    }
    let scheme_character = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let is_origin = text.split_once("://").is_some_and(|(scheme, host)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(scheme_character)
            && is_host(host)
    });
    match is_origin {
        true => Ok(text.to_string()),
        false => {
            Err("an origin is https://name or https://name:port, without a path or a slash at \
                      its end; * is every origin"
                .to_string())
        }
    }
}

/// A host with or without a port, as it stands in an origin.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
                ("address", port.strip_prefix(':').or(port.is_empty().then_some("0")))
            }
            _ => return false,
        },
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, Some("0")),
        },
    };
    is_name(name) && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
}

/// The name of a host.
pub fn host_name(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_string()),
        false => {
            Err("a host name stands alone, as in models.example: without http://, a port or a \
                      path (addresses such as 192.168.1.2 and ::1 need no --host-name)"
                .to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_of_browsers() {
        for right in [
            "*",
            "null",
            "https://chat.example",
            "http://localhost:3000",
            "http://[::1]:8080",
            "http://[::1]",
            "chrome-extension://abcdefgh",
        ] {
            assert_eq!(origin(right).as_deref(), Ok(right));
        }
        for wrong in [
            "",
            "nonsense",
            "chat.example",
            "https://",
            "https://chat.example/",
            "https://chat.example/path",
            "https://chat.example:port",
            "https://a b",
            "://x",
            "https://*.example",
            "https://[::1",
            "https://[x]:1",
            "https://[::1]1",
        ] {
            assert!(origin(wrong).is_err_and(|error| error.contains("https://name")), "{wrong}");
        }
    }

    #[test]
    fn host_names_stand_alone() {
        for right in ["models.lan", "my_server", "a-b.c"] {
            assert_eq!(host_name(right).as_deref(), Ok(right));
        }
        for wrong in ["", "http://x", "x:8080", "x/y", "a b", "::1"] {
            assert!(host_name(wrong).is_err_and(|error| error.contains("http://")), "{wrong}");
        }
    }

    #[test]
    fn hosts_are_addresses() {
        assert_eq!(host("localhost"), host("127.0.0.1"));
        assert!(host("::1").is_ok());
        for wrong in ["127.0.0.1:8080", "http://127.0.0.1", "", "example.com"] {
            assert!(host(wrong).unwrap_err().contains("--port"), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_bounded() {
        assert_eq!(megabytes("32"), Ok(32 << 20));
        assert_eq!(megabytes(&(usize::MAX >> 20).to_string()), Ok(usize::MAX >> 20 << 20));
        for wrong in ["0", "-1", "x", "17592186044416", "99999999999999999999"] {
            assert!(megabytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!((waiting("0"), seconds("0")), (Ok(0), Ok(0)));
        for wrong in ["-1", "1.5", "", "18446744073709551615"] {
            assert!(waiting(wrong).is_err() && seconds(wrong).is_err(), "{wrong}");
            assert!(some_seconds(wrong).is_err() && port(wrong).is_err(), "{wrong}");
        }
        assert!(some_seconds("0").is_err());
    }
}
