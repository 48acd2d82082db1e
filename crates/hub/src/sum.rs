//! The sums by which the hub knows its files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::error::HubError;

/// The sum of a file, and at the same time the name of its blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// Of a large file.
    Sha256(String),
    /// Of a small one, which lies in git: the name of its object there.
    GitBlob(String),
}

impl Sum {
    /// Reads a sum by its length; none where it is neither.
    pub fn parse(text: &str) -> Option<Sum> {
        let hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match text.len() {
            64 if hexadecimal => Some(Sum::Sha256(text.to_ascii_lowercase())),
            40 if hexadecimal => Some(Sum::GitBlob(text.to_ascii_lowercase())),
            _ => None,
        }
    }

    /// In hexadecimal.
    pub fn text(&self) -> &str {
        match self {
            Sum::Sha256(text) | Sum::GitBlob(text) => text,
        }
    }

    /// The sum of a file of this kind, in hexadecimal. `progress` is told the bytes read, and returns
    /// false to give up.
    pub fn of_file(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<String, HubError> {
        let mut file = File::open(path).map_err(HubError::io("read", path))?;
        match self {
            Sum::Sha256(_) => digest(Sha256::new(), &mut file, path, progress),
            Sum::GitBlob(_) => {
                let size = file.metadata().map_err(HubError::io("read", path))?.len();
                let start = Sha1::new_with_prefix(format!("blob {size}\0"));
                digest(start, &mut file, path, progress)
            }
        }
    }
}

fn digest(
    mut digest: impl Digest,
    file: &mut File,
    path: &Path,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<String, HubError> {
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut buffer).map_err(HubError::io("read", path))?;
        if read == 0 {
            let sum = digest.finalize();
            return Ok(sum.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        digest.update(&buffer[..read]);
        bytes += read as u64;
        if !progress(bytes) {
            return Err(HubError::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_git_and_sha256sum() {
        let path = std::env::temp_dir().join(format!("pianola-sum-{}", std::process::id()));
        std::fs::write(&path, "hello\n").unwrap();
        let of = |sum: Sum| sum.of_file(&path, &mut |_| true).unwrap();
        let git = Sum::parse("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        assert_eq!(of(git.clone()), git.text());
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(of(Sum::parse(sha).unwrap()), sha);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Sum::parse("abc"), None);
        assert_eq!(Sum::parse(&"../".repeat(20)), None);
    }
}
