//! The web page, embedded in the program.

use crate::reply::{self, Reply};
use hyper::StatusCode;
use hyper::header::{HeaderValue, VARY};

const INDEX: &str = include_str!("../page/dist/index.html");
const SCRIPT: &str = include_str!("../page/dist/app.js");
const STYLE: &str = include_str!("../page/dist/app.css");

/// Allows only files of this server and nothing inline, so that markup in a model's text could not run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `/`: the page for browsers; for other clients the text by which Ollama's recognise their server.
pub(crate) fn root(html: bool) -> Reply {
    let mut reply = match html {
        true => reply::embedded("text/html; charset=utf-8", POLICY, INDEX),
        false => reply::whole(StatusCode::OK, "text/plain; charset=utf-8", "Ollama is running"),
    };
    reply.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
    reply
}

pub(crate) fn script() -> Reply {
    reply::embedded("text/javascript; charset=utf-8", POLICY, SCRIPT)
}

pub(crate) fn style() -> Reply {
    reply::embedded("text/css; charset=utf-8", POLICY, STYLE)
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};
    use std::collections::BTreeMap;
    use std::fmt::Write;
    use std::path::Path;

    /// Sums of the sources and the built files beside those that the build noted.
    #[test]
    fn the_built_page_is_that_of_its_sources() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let listed = std::fs::read_to_string(folder.join("dist/sources.sum")).unwrap();
        let listed: BTreeMap<&str, &str> = listed
            .lines()
            .map(|line| line.split_once("  ").expect("a sum and a path"))
            .map(|(sum, path)| (path, sum))
            .collect();
        for file in ["app.css", "app.js", "index.html"] {
            assert!(listed.contains_key(format!("dist/{file}").as_str()), "{file} has no sum");
        }
        for (path, sum) in &listed {
            let bytes = std::fs::read(folder.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
            let found = Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
            assert_eq!(found, **sum, "{path} has changed: run scripts/page");
        }
        let mut sources = Vec::new();
        collect(&folder.join("src"), &mut sources);
        for source in sources {
            let path = source.strip_prefix(&folder).unwrap().to_str().unwrap().to_string();
            assert!(listed.contains_key(path.as_str()), "{path} is new: run scripts/page");
        }
    }

    fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => collect(&path, files),
                false => files.push(path),
            }
        }
    }
}
