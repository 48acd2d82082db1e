//! Names the commit that is built, for `--version` and for measurements.

use std::path::Path;
use std::process::Command;

fn main() {
    // Whatever is compiled into the program lies there, so that asking again costs no build more.
    for folder in std::fs::read_dir("..").into_iter().flatten().flatten() {
        for part in ["src", "shaders", "spirv", "Cargo.toml"].map(|part| folder.path().join(part)) {
            watch(&part);
        }
    }
    watch(Path::new("../../Cargo.toml"));
    watch(Path::new("../../Cargo.lock"));
    // Grows with every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        watch(Path::new(&log));
    }
    let commit = match (git(&["rev-parse", "--short=7", "HEAD"]), git(&STATUS)) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit}-dirty"),
        (None, _) => "unknown".to_string(),
    };
    println!("cargo:rustc-env=PIANOLA_COMMIT={commit}");
}

const STATUS: [&str; 9] = [
    "status",
    "--porcelain",
    "--",
    "../*/src/*",
    "../*/shaders/*",
    "../*/spirv/*",
    "../*/Cargo.toml",
    "../../Cargo.toml",
    "../../Cargo.lock",
];

fn watch(path: &Path) {
    // A path that is not there would be asked for again at every build.
    if path.exists() {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}

/// What git says, if there is one and this is a checkout.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
