//! The machine as the checks see it: texts of files below a root, and variables. Tests have recorded
//! ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where checks read.
pub struct Machine {
    root: PathBuf,
    variables: BTreeMap<String, String>,
}

impl Machine {
    /// The one that this runs on.
    pub fn this() -> Machine {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        Machine { root: PathBuf::from("/"), variables: variables.collect() }
    }

    /// The text of a file, if it can be read.
    pub fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok()
    }

    /// A number that is all a file holds.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    /// Whether there is something.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a folder, sorted; none where it is not there.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Where an absolute path lies.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(Path::new(path.trim_start_matches('/')))
    }

    /// The value of a variable that is set to something.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A user's identity, from the process's status and the list of users.
    pub fn user(&self) -> User {
        let status = self.read("/proc/self/status").unwrap_or_default();
        let field = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>()
        };
        // Real, effective, saved, file system.
        let id = field("Uid:").get(1).copied();
        let users = self.read("/etc/passwd").unwrap_or_default();
        let entry = users
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.len() > 5 && id.is_some_and(|id| fields[2].parse() == Ok(id)));
        let mut groups = field("Groups:");
        groups.extend(field("Gid:").get(1));
        User {
            groups,
            name: entry.as_ref().map(|fields| fields[0].to_string()),
            home: entry.as_ref().map(|fields| fields[5].to_string()),
        }
    }
}

/// Who runs this.
#[derive(Debug, Default)]
pub struct User {
    /// Groups that the process has.
    pub groups: Vec<u32>,
    pub name: Option<String>,
    pub home: Option<String>,
}

/// A machine of recorded texts, in a folder that goes with it.
#[cfg(test)]
pub struct Recorded(pub Machine);

#[cfg(test)]
impl Recorded {
    pub fn new(files: &[(&str, &str)], variables: &[(&str, &str)]) -> Recorded {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pianola-doctor-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let machine = Machine { root, variables: variables.collect() };
        std::fs::create_dir_all(&machine.root).unwrap();
        for (path, text) in files {
            let path = machine.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Recorded(machine)
    }
}

#[cfg(test)]
impl Drop for Recorded {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0.root);
    }
}
