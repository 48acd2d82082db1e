use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A folder of its own for a test, removed at its end.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pianola-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self { path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn scene() -> (Folder, Store) {
    let folder = Folder::new();
    let store = Store::at(folder.path.join("models"));
    fs::create_dir_all(store.models()).unwrap();
    (folder, store)
}

fn bytes(entry: &Entry) -> u64 {
    entry.packages().unwrap().bytes
}

/// A file of the right size that takes no room.
fn install(store: &Store, entry: &Entry) {
    File::create(store.path_of(entry)).unwrap().set_len(bytes(entry)).unwrap();
}

#[test]
fn the_place_follows_the_environment() {
    let place = |variables: &[(&str, &str)]| {
        let find = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.into());
        Store::locate(find).map(|store| store.models)
    };
    let (own, cache, home) = (("PIANOLA_HOME", "/p"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h"));
    assert_eq!(place(&[own, cache, home]), Some("/p/models".into()));
    assert_eq!(place(&[cache, home]), Some("/c/pianola/models".into()));
    assert_eq!(place(&[home]), Some("/h/.cache/pianola/models".into()));
    assert_eq!(place(&[("PIANOLA_HOME", ""), home]), Some("/h/.cache/pianola/models".into()));
    assert_eq!(place(&[]), None);
}

#[test]
fn names_resolve_to_models_and_paths() {
    let (folder, store) = scene();
    assert!(
        matches!(store.resolve("SmolLM2").unwrap(), Resolved::NotYet(e) if e.name == "smollm2:135m")
    );
    install(&store, &CATALOGUE[0]);
    for name in ["smollm2", "smollm2:135m", "SMOLLM2-135M", "smollm2-135m.gguf"] {
        let Resolved::Installed(path) = store.resolve(name).unwrap() else { panic!("{name}") };
        assert_eq!(path, store.models().join("smollm2-135m.gguf"));
    }
    fs::write(store.models().join("mine.gguf"), "x").unwrap();
    assert!(matches!(store.resolve("mine").unwrap(), Resolved::Installed(_)));
    let path = folder.path.to_str().unwrap();
    assert!(matches!(store.resolve(path).unwrap(), Resolved::Path(found) if found == folder.path));
}

#[test]
fn what_does_not_resolve_is_explained() {
    let (_folder, store) = scene();
    let words = |name| store.resolve(name).unwrap_err().to_string();
    assert_eq!(
        words("gema3"),
        "no model is called 'gema3' (did you mean gemma3:270m, gemma3:1b or gemma3:4b?); `pianola list \
         --all` shows the catalogue, owner/name fetches from Hugging Face's hub, ./NAME is a file"
    );
    assert!(words("gpt-99").starts_with("no model is called 'gpt-99'; `pianola list --all`"));
    assert!(words("").starts_with("no model is called ''"));
    assert!(words("models/none.gguf").starts_with("there is no file or folder models/none.gguf"));

    fs::write(store.path_of(&CATALOGUE[0]), "short").unwrap();
    assert!(
        words("smollm2").contains("has 5 bytes, not 98362432; run `pianola pull smollm2:135m`")
    );
}

#[test]
fn the_list_shows_each_state() {
    let (_folder, store) = scene();
    assert_eq!(Store::at("/nowhere").list().unwrap(), []);
    let [whole, partial, damaged] = [&CATALOGUE[0], &CATALOGUE[1], &CATALOGUE[2]];
    install(&store, whole);
    fs::create_dir_all(store.partial_of(partial).join("inner")).unwrap();
    fs::write(store.partial_of(partial).join("inner/a.whl"), "12345").unwrap();
    fs::write(store.path_of(damaged), "123").unwrap();
    for name in ["zebra.gguf", "antelope.gguf", "notes.txt"] {
        fs::write(store.models().join(name), "1").unwrap();
    }
    let listed = store.list().unwrap();
    let brief: Vec<_> = listed.iter().map(|l| (l.name.as_str(), l.bytes, l.state)).collect();
    let expected = [
        (whole.name, bytes(whole), State::Present),
        (partial.name, 5, State::Partial),
        (damaged.name, 3, State::Damaged),
        ("antelope", 1, State::Present),
        ("zebra", 1, State::Present),
    ];
    assert_eq!(brief, expected);
}

#[test]
fn removal_takes_all_of_a_model_and_nothing_else() {
    let (folder, store) = scene();
    let (entry, other) = (&CATALOGUE[1], &CATALOGUE[0]);
    install(&store, other);
    install(&store, entry);
    fs::write(store.terms_of(entry), "12").unwrap();
    fs::create_dir_all(store.partial_of(entry)).unwrap();
    fs::write(store.partial_of(entry).join("a.whl"), "123").unwrap();
    assert_eq!(store.remove("gemma3").unwrap(), bytes(entry) + 5);
    assert!(!store.path_of(entry).exists() && !store.terms_of(entry).exists());
    assert!(!store.partial_of(entry).exists());
    assert!(store.path_of(other).exists());
    assert!(matches!(store.remove("gemma3").unwrap_err(), StoreError::NotInstalled { .. }));

    let outside = folder.path.join("outside.gguf");
    fs::write(&outside, "x").unwrap();
    let refused = |name: &str| matches!(store.remove(name), Err(StoreError::Outside { .. }));
    assert!(refused(outside.to_str().unwrap()));
    assert!(refused("/") && refused("..") && refused("."));
    let sideways = store.remove("../outside").unwrap_err();
    assert!(matches!(sideways, StoreError::Unknown { .. }), "{sideways}");
    assert!(outside.exists());

    // A link is removed, what it points to stays.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&outside, store.models().join("link.gguf")).unwrap();
        store.remove("link").unwrap();
        assert!(outside.exists() && store.list().unwrap().len() == 1);
    }
}

#[test]
fn removal_waits_for_no_pull() {
    let (_folder, store) = scene();
    let entry = &CATALOGUE[0];
    fs::create_dir_all(store.partial_of(entry)).unwrap();
    let _lock = store.lock(entry).unwrap();
    assert!(matches!(store.remove(entry.name), Err(StoreError::Busy { process: Some(_), .. })));
    assert!(store.partial_of(entry).exists());
}

/// The hub's models are not in the store; a file there that has such a name is the user's own.
#[test]
fn own_files_come_before_models_of_the_hub() {
    let (_folder, store) = scene();
    let resolved = |name: &str| store.resolve(name).unwrap();
    assert!(matches!(resolved("Mistral"), Resolved::NotYet(e) if e.name == "mistral:7b"));
    let error = store.remove("mistral").unwrap_err().to_string();
    assert!(error.contains("bartowski/Mistral-7B-Instruct-v0.3-GGUF"), "{error}");
    fs::write(store.models().join("mistral.gguf"), "mine").unwrap();
    assert!(matches!(resolved("mistral"), Resolved::Installed(_)));
    assert_eq!(store.list().unwrap()[0].name, "mistral");
    assert_eq!(store.remove("mistral").unwrap(), 4);
}
