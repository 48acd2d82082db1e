use super::*;

struct Home {
    path: PathBuf,
}

impl Home {
    fn new(name: &str) -> Home {
        let path =
            std::env::temp_dir().join(format!("pianola-local-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Home { path }
    }

    fn file(&self, path: &str, content: &str) -> &Home {
        let path = self.path.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn ollama(&self, name: &str, content: &str) -> &Home {
        let digest = format!("{:064x}", content.len());
        self.file(&format!(".ollama/models/blobs/sha256-{digest}"), content);
        let manifest = format!(
            r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00"}},
            {{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{digest}"}}]}}"#
        );
        self.file(&format!(".ollama/models/manifests/host.example/{name}"), &manifest)
    }

    fn find(&self) -> LocalModels {
        let settings = Settings::at("http://127.0.0.1:9", self.path.join("hub"));
        LocalModels::find_in(Some(&settings), |name| match name {
            "HOME" => Some(self.path.clone().into()),
            "OLLAMA_MODELS" => Some(self.path.join(".ollama/models").into()),
            _ => None,
        })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[test]
fn models_of_all_programs_are_found() {
    let home = Home::new("all");
    home.ollama("library/llama3.2/1b", "1234").ollama("me/mine/latest", "12345");
    home.file(".cache/llama.cpp/tiny-q8_0.gguf", "123");
    home.file(".cache/llama.cpp/tiny-q8_0.gguf.json", "1")
        .file(".cache/llama.cpp/mmproj-x.gguf", "1");
    home.file(".lmstudio/models/them/Tiny-GGUF/Tiny-Q4_0.gguf", "12");
    let commit = "c".repeat(40);
    let snapshot = format!("hub/models--us--Tiny/snapshots/{commit}");
    home.file("hub/models--us--Tiny/refs/main", &commit);
    home.file(&format!("{snapshot}/sub/tiny-q4_0.gguf"), "1");
    home.file("hub/models--us--Gone/refs/main", &commit).file("hub/version.txt", "1");
    let found = home.find();
    let names: Vec<(String, u64)> =
        found.models.iter().map(|model| (model.full_name(), model.bytes)).collect();
    let expected = [
        ("us/Tiny:sub/tiny-q4_0.gguf", 1),
        ("llama.cpp:tiny-q8_0", 3),
        ("lmstudio:them/Tiny-GGUF/Tiny-Q4_0", 2),
        ("ollama:llama3.2:1b", 4),
        ("ollama:me/mine:latest", 5),
    ];
    assert_eq!(names, expected.map(|(name, bytes)| (name.to_string(), bytes)));
    assert_eq!(found.unreadable, Vec::<String>::new());
    assert!(found.models.iter().all(|model| model.path.is_file()));
}

#[test]
fn names_mean_one_model() {
    let home = Home::new("names");
    home.ollama("library/llama3.2/1b", "1").ollama("library/mine/latest", "12");
    home.file(".cache/llama.cpp/mine.gguf", "123");
    home.file(".lmstudio/models/them/Tiny/Tiny-Q4_0.gguf", "1234");
    let found = home.find();
    let of = |name: &str| found.resolve(name).unwrap().map(LocalModel::full_name);
    let is = |name: &str| Some(name.to_string());
    assert_eq!(of("llama3.2:1b"), is("ollama:llama3.2:1b"));
    assert_eq!(of("ollama:llama3.2:1b"), is("ollama:llama3.2:1b"));
    assert_eq!(of("ollama:mine"), is("ollama:mine:latest"));
    assert_eq!(of("llama.cpp:mine.gguf"), is("llama.cpp:mine"));
    assert_eq!(of("tiny-q4_0"), is("lmstudio:them/Tiny/Tiny-Q4_0"));
    assert_eq!(of("them/tiny"), is("lmstudio:them/Tiny/Tiny-Q4_0"));
    assert_eq!(of("llama3.2"), None);
    assert_eq!(of(""), None);
    let several = found.resolve("mine").unwrap_err().to_string();
    assert!(several.contains("llama.cpp:mine, ollama:mine:latest"), "{several}");
    let absent = found.resolve("ollama:qwen3").unwrap_err().to_string();
    assert!(absent.starts_with("ollama:qwen3 is not here; `pianola list`"), "{absent}");
}

#[test]
fn hostile_manifests_lead_nowhere() {
    let home = Home::new("hostile");
    let manifest = |digest: &str| {
        format!(
            r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.model", "digest": "{digest}"}}]}}"#
        )
    };
    let place = |name: &str| format!(".ollama/models/manifests/host.example/library/{name}/1");
    home.file(&place("a"), &manifest("sha256:../../../../etc/passwd"));
    home.file(&place("b"), "no JSON").file(&place("c"), "{}").file(&place("d"), &manifest(""));
    home.file(&place("e"), &manifest(&format!("sha256:{}", "a".repeat(64))));
    let found = home.find();
    assert_eq!(found.models, []);
    // Only the blob that could be is looked for, and its absence said.
    assert_eq!(found.unreadable.len(), 1);
    assert!(found.unreadable[0].contains("sha256-aaaa"), "{:?}", found.unreadable);
}

#[test]
fn a_store_that_cannot_be_read_is_explained() {
    let home = Home::new("unreadable");
    home.file(".ollama/models/x", "");
    // A link to itself: not even the superuser can read that.
    let manifests = home.path.join(".ollama/models/manifests");
    std::os::unix::fs::symlink(&manifests, &manifests).unwrap();
    let found = home.find();
    assert_eq!(found.unreadable.len(), 1);
    let words = found.resolve("ollama:x").unwrap_err().to_string();
    assert!(
        words.contains("manifests cannot be read") && words.contains("check that disk"),
        "{words}"
    );
    let mut found = LocalModels::default();
    found.cannot_read(Path::new("/x"), &io::ErrorKind::PermissionDenied.into());
    assert!(found.unreadable[0].ends_with("allow this user to read it"), "{found:?}");
}
