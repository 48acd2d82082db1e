//! Where models and measured choices are kept: room, permission, and what is not whole.

use std::fs;
use std::path::{Path, PathBuf};

use pianola_formats::{ErrorKind, Gguf};
use pianola_hub::{
    Leftover, LeftoverKind, Listed, Settings, State, Store, check_pip, free_space, leftovers,
    size_of,
};

use super::install::{self, Package};
use super::machine::Machine;
use super::row::{Row, size};
use crate::output;

/// Room for a model of a few billion weights.
const ROOM: u64 = 5_000_000_000;

pub fn examine(machine: &Machine) -> Vec<Row> {
    let mut rows = match Store::open() {
        Ok(store) => of_store(&store),
        Err(error) => vec![
            Row::broken("models", error.to_string()).fix("export PIANOLA_HOME=/a/folder/of/yours"),
        ],
    };
    if let Ok(settings) = Settings::from_environment() {
        rows.push(folder("hub cache", &settings.cache, Row::warning, "HF_HOME"));
        rows.extend(of_hub(&leftovers(&settings.cache)));
    }
    rows.push(match check_pip() {
        Ok(command) => Row::fine("pip", format!("{command} fetches models that come in packages")),
        Err(error) => {
            Row::warning("pip", error.to_string()).fix(install::command(machine, Package::Pip))
        }
    });
    rows
}

fn of_store(store: &Store) -> Vec<Row> {
    let models = store.models();
    let mut rows = vec![folder("models", models, Row::broken, "PIANOLA_HOME")];
    rows.extend(existing(models).and_then(free_space).map(disk));
    match store.list() {
        Ok(listed) => rows.extend(listed.iter().filter_map(not_whole)),
        Err(error) => rows.push(Row::broken("models", error.to_string())),
    }
    rows.extend(of_addresses(&models.join(".partial")));
    if let Some(home) = models.parent() {
        let tuning = home.join("tuning");
        rows.push(folder("tuning", &tuning, Row::warning, "PIANOLA_HOME"));
    }
    rows
}

/// The folder, or the nearest above it that is there.
fn existing(folder: &Path) -> Option<&Path> {
    folder.ancestors().find(|folder| folder.exists())
}

/// How much is in a folder, and whether more can be put there; `refused` makes the row if it cannot.
fn folder(name: &str, path: &Path, refused: fn(String, String) -> Row, variable: &str) -> Row {
    let shown = path.display();
    let text = match path.exists() {
        true => format!("{shown}, {}", size(size_of(path))),
        false => format!("{shown}, not there yet"),
    };
    let Some(place) = existing(path) else { return Row::fine(name, text) };
    match output::check_writable(&place.join("doctor")) {
        Ok(()) => Row::fine(name, format!("{text}, writable")),
        Err(error) => {
            let fix = format!("{}   (or set {variable} to another folder)", make_ours(path, place));
            refused(name.to_string(), format!("{text}, not writable: {error}")).fix(fix)
        }
    }
}

/// The command that makes a folder writable, `place` being what is there of its path. What is above the
/// folder keeps its owner.
fn make_ours(path: &Path, place: &Path) -> String {
    match (place == path, place.is_dir()) {
        (true, true) => format!("sudo chown $USER {}", quoted(place)),
        (false, true) => format!("sudo install -d -o $USER {}", quoted(path)),
        (_, false) => format!("move the file {} away", quoted(place)),
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn disk(free: u64) -> Row {
    let text = format!("{} free where models are kept", size(free));
    match free {
        ..ROOM => Row::warning("disk", text).fix("pianola rm MODEL   (`pianola list` names them)"),
        _ => Row::fine("disk", text),
    }
}

/// A row for a model of the store that cannot be used as it is.
fn not_whole(model: &Listed) -> Option<Row> {
    let name = &model.name;
    let again = || format!("pianola pull {name}   (or `pianola rm {name}`)");
    match model.state {
        // A pull that never began has left an empty folder.
        State::Partial if model.bytes == 0 => None,
        State::Partial => {
            let text = format!("{name} is not whole: {} of it are here", size(model.bytes));
            Some(Row::warning("download", text).fix(again()))
        }
        State::Damaged => {
            let text = format!("{name} is damaged: its file has {} bytes", model.bytes);
            Some(Row::broken("model", text).fix(again()))
        }
        State::Present => {
            let error = Gguf::open(&model.path).err()?;
            let damaged = matches!(
                error.kind(),
                ErrorKind::Truncated | ErrorKind::Malformed | ErrorKind::Foreign | ErrorKind::Io
            );
            let fix = format!("pianola rm {name}   (then fetch it again)");
            damaged.then(|| Row::broken("model", format!("{name} is damaged: {error}")).fix(fix))
        }
    }
}

/// Downloads from addresses that have not ended, in the store's folder for them.
fn of_addresses(partial: &Path) -> Vec<Row> {
    let files = fs::read_dir(partial).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut unfinished: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "pianola")).collect();
    unfinished.sort();
    let row = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let origin = fs::read_to_string(path.with_file_name(format!("{name}.origin"))).ok();
        // What follows a ? may be a key.
        let address = origin.filter(|origin| !origin.contains('?'));
        let again = address.as_deref().unwrap_or("ADDRESS, as before");
        let remove = format!("rm {}*", quoted(path));
        Row::warning("download", format!("{name} is not whole"))
            .fix(format!("pianola pull {again}   (or `{remove}`)"))
    };
    unfinished.iter().map(row).collect()
}

/// What is not whole in the hub's cache, a row for each repository and kind.
fn of_hub(leftovers: &[Leftover]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let same = |a: &Leftover, b: &Leftover| a.repository == b.repository && a.kind == b.kind;
    for group in leftovers.chunk_by(same) {
        let Leftover { repository, path, kind, .. } = &group[0];
        let bytes = size(group.iter().map(|leftover| leftover.bytes).sum());
        let folder = quoted(path.parent().unwrap_or(path));
        rows.push(match kind {
            LeftoverKind::Unfinished => Row::warning(
                "download",
                format!("{repository} is not whole: {bytes} of it are here"),
            )
            .fix(format!("pianola pull {repository}   (or `rm {folder}/*.pianola*`)")),
            LeftoverKind::UnfinishedElsewhere => Row::fine(
                "download",
                format!("{repository}: another program's download, {bytes}, has not ended"),
            )
            .fix(format!("rm {folder}/*.incomplete   (if that program does not run)")),
            LeftoverKind::NoContents => {
                let text = format!("{repository}: {} is named but gone", path.display());
                Row::warning("download", text).fix(format!("pianola pull {repository}"))
            }
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    #[test]
    fn models_that_are_not_whole_are_told_with_their_command() {
        let foreign = Recorded::new(&[("/x.gguf", "no model")], &[]);
        let listed = |name: &str, state| Listed {
            name: name.into(),
            bytes: 5_000_000,
            path: foreign.0.path("/x.gguf"),
            state,
        };
        let partial = not_whole(&listed("gemma3:270m", State::Partial)).unwrap();
        assert_eq!(partial.verdict, Verdict::Warning);
        assert!(partial.fix.unwrap().starts_with("pianola pull gemma3:270m "));
        let damaged = not_whole(&listed("gemma3:270m", State::Damaged)).unwrap();
        assert_eq!(damaged.verdict, Verdict::Broken);
        let foreign = not_whole(&listed("mine", State::Present)).unwrap();
        assert!(foreign.fix.unwrap().starts_with("pianola rm mine "));
    }

    #[test]
    fn downloads_from_addresses_are_found() {
        let files = [
            ("/p/a.gguf.pianola", "x"),
            ("/p/a.gguf.pianola.blocks", "x"),
            ("/p/a.gguf.origin", "https://host.example/a.gguf"),
            ("/p/b.gguf.pianola", "x"),
            ("/p/b.gguf.origin", "https://host.example/b.gguf?key=secret"),
        ];
        let machine = Recorded::new(&files, &[]);
        let rows = of_addresses(&machine.0.path("/p"));
        assert_eq!(rows.len(), 2);
        let fix = rows[0].fix.as_deref().unwrap();
        assert!(fix.starts_with("pianola pull https://host.example/a.gguf "), "{fix}");
        assert!(!rows[1].fix.as_deref().unwrap().contains("secret"));
    }

    #[test]
    fn the_hub_s_leftovers_are_grouped() {
        let leftover = |kind| Leftover {
            repository: "me/tiny".into(),
            path: "/hub/models--me--tiny/blobs/a.pianola".into(),
            bytes: 1_000_000,
            kind,
        };
        let all = [
            leftover(LeftoverKind::Unfinished),
            leftover(LeftoverKind::Unfinished),
            leftover(LeftoverKind::UnfinishedElsewhere),
        ];
        let rows = of_hub(&all);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].text, "me/tiny is not whole: 2.0 MB of it are here");
        assert!(rows[0].fix.as_deref().unwrap().starts_with("pianola pull me/tiny "));
        assert_eq!(rows[1].verdict, Verdict::Fine);
    }

    #[test]
    fn folders_say_whether_they_are_writable() {
        let machine = Recorded::new(&[("/store/a", "12345")], &[]);
        let store = machine.0.path("/store");
        let fine = folder("models", &store, Row::broken, "PIANOLA_HOME");
        assert!(fine.text.ends_with(", 0.0 kB, writable"), "{fine:?}");
        let later = folder("models", &store.join("b/c"), Row::broken, "PIANOLA_HOME");
        assert!(later.text.ends_with(", not there yet, writable"), "{later:?}");
        // A file stands where the folder would be made.
        let barred = folder("models", &store.join("a/b"), Row::broken, "PIANOLA_HOME");
        assert_eq!(barred.verdict, Verdict::Broken);
        assert!(barred.fix.unwrap().contains("PIANOLA_HOME"));
        assert_eq!(disk(1).verdict, Verdict::Warning);
        assert_eq!(disk(ROOM).verdict, Verdict::Fine);
    }
}
