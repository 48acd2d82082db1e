//! As much of addresses as fetching needs.

/// Scheme, host and port: who is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub https: bool,
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// Whether it is this machine itself.
    pub fn is_loopback(&self) -> bool {
        let address = self.host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// `host`, with the port where it is not the usual one.
    pub fn authority(&self) -> String {
        match (self.https, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

/// Cuts an address into its origin and the rest, which starts with a slash. None where it is not an
/// address of the web, or names a user.
pub(crate) fn split(url: &str) -> Option<(Origin, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let https = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let usual = if https { 443 } else { 80 };
    // An address of version 6 has colons of its own, inside brackets.
    let colon = authority.rfind(':').filter(|&colon| !authority[colon..].contains(']'));
    let (host, port) = match colon {
        Some(colon) => (&authority[..colon], authority[colon + 1..].parse().ok()?),
        None => (authority, usual),
    };
    let odd = |c: char| c == '@' || c.is_control() || c.is_whitespace();
    if host.is_empty() || url.contains(odd) {
        return None;
    }
    Some((Origin { https, host: host.to_ascii_lowercase(), port }, path))
}

/// The address that `location`, as a redirect gives it, means at `base`.
pub(crate) fn join(base: &str, location: &str) -> Option<String> {
    if split(location).is_some() {
        return Some(location.to_string());
    }
    let (_, path) = split(base)?;
    let root = &base[..base.len() - path.len()];
    if let Some(rest) = location.strip_prefix("//") {
        let scheme = base.split_once("://")?.0;
        return Some(format!("{scheme}://{rest}"));
    }
    if location.contains("://") || location.is_empty() {
        return None;
    }
    if location.starts_with('/') {
        return Some(format!("{root}{location}"));
    }
    let folder = without_query(path);
    let folder = &folder[..folder.rfind('/').map_or(0, |slash| slash + 1)];
    Some(format!("{root}{}{location}", if folder.is_empty() { "/" } else { folder }))
}

/// An address as it may be shown: a query may hold a signature.
pub(crate) fn without_query(url: &str) -> &str {
    &url[..url.find(['?', '#']).unwrap_or(url.len())]
}

/// A path as it stands in an address, slashes left alone.
pub(crate) fn encode(path: &str) -> String {
    let mut encoded = String::new();
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The inverse of [`encode`]; none where the result is not text.
pub(crate) fn decode(path: &str) -> Option<String> {
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let digits = path.get(at + 1..at + 3)?;
            decoded.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            decoded.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Option<(bool, String, u16)> {
        split(url).map(|(origin, _)| (origin.https, origin.host, origin.port))
    }

    #[test]
    fn origins_are_read() {
        assert_eq!(origin("https://Hub.example/a"), Some((true, "hub.example".into(), 443)));
        assert_eq!(origin("http://127.0.0.1:8080"), Some((false, "127.0.0.1".into(), 8080)));
        assert_eq!(origin("http://[::1]:80/x"), Some((false, "[::1]".into(), 80)));
        assert_eq!(origin("https://[::1]/x"), Some((true, "[::1]".into(), 443)));
        for wrong in
            ["", "ftp://a/b", "https://", "https://u:p@host/", "https://a:x/", "https://a b/"]
        {
            assert_eq!(origin(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_machine_itself_is_known() {
        let own = |url: &str| split(url).unwrap().0.is_loopback();
        assert!(own("http://127.0.0.2:1/x") && own("http://[::1]/") && own("http://LOCALHOST"));
        assert!(!own("http://128.0.0.1") && !own("http://localhost.example"));
    }

    #[test]
    fn redirects_are_joined() {
        let base = "https://hub.example/a/b?c=d/e";
        let joined = |location: &str| join(base, location).unwrap();
        assert_eq!(joined("https://cdn.example/x"), "https://cdn.example/x");
        assert_eq!(joined("/x/y"), "https://hub.example/x/y");
        assert_eq!(joined("//cdn.example/x"), "https://cdn.example/x");
        assert_eq!(joined("z"), "https://hub.example/a/z");
        assert_eq!(join("https://hub.example", "z").unwrap(), "https://hub.example/z");
        assert_eq!(join(base, "ftp://x/y"), None);
        assert_eq!(join(base, ""), None);
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encode("a b/ü?.gguf"), "a%20b/%C3%BC%3F.gguf");
        assert_eq!(decode("a%20b/%C3%BC%3F.gguf").unwrap(), "a b/ü?.gguf");
        assert_eq!(decode("%zz"), None);
        assert_eq!(decode("%"), None);
        assert_eq!(decode("%ff"), None);
    }
}
