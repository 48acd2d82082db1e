//! Fetching from a hub of the tests' own that does all that hubs do wrong.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::hub::{COMMIT, HubFile, HubServer, content};
use pianola_hub::{Fetched, Hub, HubError, Progress, Reference, Repository, Settings};

const BLOCK: u64 = 64 << 10;
const SIZE: usize = 10 * BLOCK as usize + 1234;

/// A server with one large file, and a cache of its own.
struct Scene {
    server: HubServer,
    folder: PathBuf,
    settings: Settings,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Keeps notes, and gives up once so many bytes have arrived.
#[derive(Default)]
struct Notes {
    lines: Vec<String>,
    reached: u64,
    most: Option<u64>,
}

impl Progress for Notes {
    fn begin(&mut self, stage: &str, _: u64) {
        self.lines.push(stage.to_string());
    }
    fn reach(&mut self, bytes: u64) {
        self.reached = bytes;
    }
    fn end(&mut self) {}
    fn is_cancelled(&mut self) -> bool {
        self.most.is_some_and(|most| self.reached >= most)
    }
    fn note(&mut self, line: &str) {
        self.lines.push(line.to_string());
    }
}

fn gguf() -> HubFile {
    HubFile::large("tiny-Q8_0.gguf", content(SIZE, 7))
}

impl Scene {
    fn new() -> Scene {
        Scene::with(vec![HubFile::small("README.md", "hello"), gguf()])
    }

    fn with(files: Vec<HubFile>) -> Scene {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pianola-hub-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let server = HubServer::start(files);
        let mut settings = Settings::at(server.endpoint(), folder.join("hub"));
        settings.pace.block = BLOCK;
        // A busy machine is no stall.
        settings.pace.stall = Duration::from_secs(60);
        settings.pace.backoff = Duration::from_millis(5);
        settings.pace.longest_wait = Duration::from_secs(2);
        Scene { server, folder, settings }
    }

    fn fetch(&self) -> Result<Fetched, HubError> {
        self.fetch_with("me/tiny", &mut Notes::default())
    }

    fn fetch_with(&self, name: &str, report: &mut dyn Progress) -> Result<Fetched, HubError> {
        Hub::new(self.settings.clone()).fetch(&self.repository(name), None, report)
    }

    fn repository(&self, name: &str) -> Repository {
        match Reference::parse(name, &self.settings).unwrap() {
            Some(Reference::Repository(repository)) => repository,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn cache(&self) -> PathBuf {
        self.settings.cache.join("models--me--tiny")
    }

    /// Fetches, and holds the file against what it should be.
    fn arrives(&self) {
        let fetched = self.fetch().unwrap();
        assert!(fs::read(&fetched.path).unwrap() == gguf().content, "the bytes are others");
        self.is_tidy();
    }

    /// Whether nothing unfinished is left.
    fn is_tidy(&self) {
        for file in fs::read_dir(self.cache().join("blobs")).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(!name.contains("pianola"), "{name} was left");
        }
    }

    fn fails(&self) -> String {
        self.fetch().unwrap_err().to_string()
    }

    fn data_requests(&self) -> usize {
        self.server.requests().iter().filter(|request| request.on_second_host).count()
    }
}

#[test]
fn a_file_goes_where_other_programs_look_for_it() {
    let scene = Scene::new();
    let mut notes = Notes::default();
    let fetched = scene.fetch_with("me/tiny", &mut notes).unwrap();
    let (cache, sum) = (scene.cache(), gguf().sum());
    assert_eq!(fetched.path, cache.join("snapshots").join(COMMIT).join("tiny-Q8_0.gguf"));
    assert_eq!(fs::read_link(&fetched.path).unwrap(), Path::new("../../blobs").join(&sum));
    assert!(fs::read(&fetched.path).unwrap() == gguf().content);
    assert_eq!(fs::read_to_string(cache.join("refs/main")).unwrap(), COMMIT);
    assert!(scene.settings.cache.join(format!(".locks/models--me--tiny/{sum}.lock")).exists());
    scene.is_tidy();
    assert!(
        notes.lines[0].starts_with("me/tiny: Q8_0 (0.7 MB), the only one"),
        "{:?}",
        notes.lines
    );

    // Nothing is fetched twice, neither with the hub nor without.
    let served = scene.server.served();
    assert_eq!(served, SIZE as u64);
    assert_eq!(scene.fetch().unwrap(), fetched);
    assert_eq!(scene.server.served(), served);
    let found = Hub::new(scene.settings.clone()).cached(&scene.repository("me/tiny:q8_0"), None);
    assert_eq!(found.unwrap().path, fetched.path);
    let other = Hub::new(scene.settings.clone()).cached(&scene.repository("me/tiny:q4_0"), None);
    assert_eq!(other, None);
}

#[test]
fn several_ranges_come_at_once() {
    let scene = Scene::new();
    scene.server.set(|faults| faults.pause = Duration::from_millis(20));
    scene.arrives();
    assert!(scene.server.most_at_once() > 1, "one after the other");
    assert!(scene.server.most_at_once() <= scene.settings.pace.connections);
    assert_eq!(scene.server.served(), SIZE as u64);
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let mut scene = Scene::new();
    scene.settings.token = Some("secret".into());
    scene.server.set(|faults| faults.token = Some("secret".into()));
    scene.arrives();
    let requests = scene.server.requests();
    let (second, first): (Vec<_>, Vec<_>) = requests.iter().partition(|r| r.on_second_host);
    assert!(first.len() >= 3 && second.len() >= 10);
    assert!(first.iter().all(|r| r.authorization.as_deref() == Some("Bearer secret")), "{first:?}");
    assert!(second.iter().all(|request| request.authorization.is_none()), "{second:?}");
}

#[test]
fn tokens_that_are_wanted_are_explained() {
    let mut scene = Scene::new();
    scene.server.set(|faults| {
        faults.token = Some("secret".into());
        faults.gated = true;
    });
    let words = scene.fails();
    let page = format!("accept its terms at {}/me/tiny", scene.server.endpoint());
    assert!(words.contains(&page) && words.contains("set HF_TOKEN"), "{words}");
    scene.settings.token = Some("another".into());
    assert!(scene.fails().contains("must belong to that account"), "{}", scene.fails());
    scene.server.set(|faults| faults.gated = false);
    assert!(matches!(scene.fetch(), Err(HubError::Token)));
    scene.settings.token = None;
    let words = scene.fails();
    assert!(words.contains("no repository me/tiny") && words.contains("HF_TOKEN"), "{words}");
    scene.settings.token = Some("secret".into());
    scene.arrives();
}

#[test]
fn what_the_hub_has_not_is_explained() {
    let scene = Scene::new();
    let words = |name| scene.fetch_with(name, &mut Notes::default()).unwrap_err().to_string();
    assert!(
        words("me/other").contains("the hub has no repository me/other"),
        "{}",
        words("me/other")
    );
    assert!(words("me/tiny:q4_0").contains("for 'q4_0'; it has tiny-Q8_0.gguf"));
    assert!(words("me/tiny:x.gguf").contains("for 'x.gguf'"));
}

#[test]
fn dropped_connections_are_taken_up_again() {
    let scene = Scene::new();
    scene.server.set(|faults| (faults.drop_after, faults.drops) = (Some(BLOCK / 3), 25));
    scene.arrives();
    // What came before a drop is not fetched again.
    assert_eq!(scene.server.served(), SIZE as u64);
}

#[test]
fn connections_that_bring_nothing_are_given_up() {
    let scene = Scene::new();
    scene.server.set(|faults| (faults.drop_after, faults.drops) = (Some(0), usize::MAX));
    let words = scene.fails();
    assert!(words.contains("6 times without progress") && words.contains("is kept"), "{words}");
    assert!(scene.data_requests() <= 6 * 4);
    scene.server.set(|faults| faults.drops = 0);
    scene.arrives();
}

#[test]
fn stalls_are_noticed() {
    let mut scene = Scene::new();
    scene.settings.pace.stall = Duration::from_secs(1);
    scene.server.set(|faults| faults.stalls = 3);
    let start = Instant::now();
    scene.arrives();
    assert!(start.elapsed() >= scene.settings.pace.stall);
    // What came before is kept.
    assert!(scene.server.served() < (SIZE as u64) + BLOCK, "{} bytes", scene.server.served());
}

#[test]
fn lies_about_ranges_are_not_believed() {
    let scene = Scene::new();
    scene.server.set(|faults| (faults.other_ranges, faults.other_sizes) = (3, 3));
    scene.arrives();
    let scene = Scene::new();
    scene.server.set(|faults| faults.other_sizes = usize::MAX);
    let words = scene.fails();
    assert!(words.contains("a range of another file"), "{words}");
}

#[test]
fn a_server_without_ranges_serves_one_stream() {
    let scene = Scene::new();
    scene.server.set(|faults| {
        faults.no_ranges = true;
        (faults.drop_after, faults.drops) = (Some(3 * BLOCK), 1);
    });
    scene.arrives();
    assert_eq!(scene.server.most_at_once(), 1);
    assert_eq!(scene.server.served(), 3 * BLOCK + SIZE as u64);
}

#[test]
fn limits_of_requests_are_kept() {
    let scene = Scene::new();
    scene.server.set(|faults| (faults.limits, faults.retry_after) = (2, 1));
    let start = Instant::now();
    scene.arrives();
    assert!(start.elapsed() >= Duration::from_secs(2));
    let scene = Scene::new();
    scene.server.set(|faults| (faults.limits, faults.retry_after) = (1, 3600));
    let words = scene.fails();
    assert!(words.contains("asks to wait 3600 seconds"), "{words}");
    scene.server.set(|faults| (faults.limits, faults.retry_after) = (usize::MAX, 0));
    assert!(scene.fails().contains("status 429, 6 times"), "{}", scene.fails());
}

#[test]
fn an_address_that_has_expired_is_asked_for_again() {
    let scene = Scene::new();
    scene.server.set(|faults| faults.expired = 2);
    scene.arrives();
}

#[test]
fn a_wrong_sum_removes_the_file() {
    let scene = Scene::new();
    scene.server.set(|faults| faults.corrupt = true);
    let words = scene.fails();
    assert!(words.contains("was deleted") && words.contains(&gguf().sum()), "{words}");
    scene.is_tidy();
    assert!(!scene.cache().join("refs/main").exists());
    scene.server.set(|faults| faults.corrupt = false);
    scene.arrives();
}

#[test]
fn free_space_is_looked_at_first() {
    let scene = Scene::new();
    scene.server.set(|faults| faults.exaggerate = 1 << 58);
    let words = scene.fails();
    assert!(words.contains("are free; make room, or set HF_HOME"), "{words}");
    assert_eq!(scene.data_requests(), 0);
    assert!(!scene.settings.cache.exists());
}

#[test]
fn a_cancelled_fetch_goes_on_where_it_stopped() {
    let scene = Scene::new();
    // The rest does not come before the fetch was cancelled: reports come 20 times a second.
    let half = SIZE as u64 / 2;
    scene.server.set(|faults| faults.most = Some(half));
    let mut notes = Notes { most: Some(half), ..Notes::default() };
    assert!(matches!(scene.fetch_with("me/tiny", &mut notes), Err(HubError::Cancelled)));
    scene.server.set(|faults| faults.most = None);
    let mut notes = Notes::default();
    scene.fetch_with("me/tiny", &mut notes).unwrap();
    assert!(notes.lines.iter().any(|line| line.contains("% is here")), "{:?}", notes.lines);
    let twice = scene.server.served() - SIZE as u64;
    assert!(twice <= 4 * (32 << 10), "{twice} bytes came twice");
}

#[test]
fn the_locks_of_other_programs_are_respected() {
    let scene = Scene::new();
    let sum = gguf().sum();
    let path = scene.settings.cache.join(".locks/models--me--tiny").join(format!("{sum}.lock"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let lock = fs::File::create(&path).unwrap();
    lock.lock().unwrap();
    std::thread::scope(|scope| {
        let fetch = scope.spawn(|| {
            let mut notes = Notes::default();
            (scene.fetch_with("me/tiny", &mut notes).unwrap(), notes.lines)
        });
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(scene.data_requests(), 0);
        // The other program finishes the file.
        fs::create_dir_all(scene.cache().join("blobs")).unwrap();
        fs::write(scene.cache().join("blobs").join(&sum), gguf().content).unwrap();
        lock.unlock().unwrap();
        let (fetched, lines) = fetch.join().unwrap();
        assert!(fs::read(&fetched.path).unwrap() == gguf().content);
        assert!(lines.iter().any(|line| line.contains("another program")), "{lines:?}");
    });
    assert_eq!(scene.data_requests(), 0);
}

#[test]
fn unfinished_files_of_other_programs_are_left_alone() {
    let scene = Scene::new();
    let theirs = scene.cache().join("blobs").join(format!("{}.incomplete", gguf().sum()));
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, "theirs").unwrap();
    scene.arrives();
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
}

#[test]
fn safetensors_make_a_folder() {
    let weights = HubFile::large("model-00001-of-00001.safetensors", content(100_000, 3));
    let index = r#"{"weight_map": {"x": "model-00001-of-00001.safetensors"}}"#;
    let files = vec![
        HubFile::small("README.md", "hello"),
        HubFile::small("config.json", "{}"),
        HubFile::small("model.safetensors.index.json", index),
        HubFile::small("tokenizer.json", "{}"),
        HubFile::large("pytorch_model.bin", content(1000, 4)),
        weights.clone(),
    ];
    let scene = Scene::with(files);
    let fetched = scene.fetch().unwrap();
    assert_eq!(fetched.path, scene.cache().join("snapshots").join(COMMIT));
    assert!(fs::read(fetched.path.join(&weights.path)).unwrap() == weights.content);
    assert_eq!(fs::read_to_string(fetched.path.join("config.json")).unwrap(), "{}");
    assert!(
        !fetched.path.join("pytorch_model.bin").exists()
            && !fetched.path.join("README.md").exists()
    );
    let hub = Hub::new(scene.settings.clone());
    assert_eq!(hub.cached(&scene.repository("me/tiny"), None).unwrap().path, fetched.path);
    // A folder without all its weights is not whole.
    fs::remove_file(fetched.path.join(&weights.path)).unwrap();
    assert_eq!(hub.cached(&scene.repository("me/tiny"), None), None);
    assert_eq!(scene.fetch().unwrap(), fetched);
    assert!(fetched.path.join(&weights.path).exists());
}

#[test]
fn without_a_network_the_cache_serves() {
    let mut scene = Scene::new();
    let fetched = scene.fetch().unwrap();
    scene.settings.offline = true;
    assert_eq!(scene.fetch().unwrap(), fetched);
    let other = scene.fetch_with("me/other", &mut Notes::default()).unwrap_err().to_string();
    assert!(other.contains("HF_HUB_OFFLINE forbids"), "{other}");
    scene.settings.offline = false;
    // Nobody listens there: the port was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    scene.settings.endpoint = format!("http://127.0.0.1:{port}");
    let words = scene.fails();
    assert!(words.contains("cannot reach 127.0.0.1") && words.contains("pianola pull"), "{words}");
}

#[test]
fn a_file_at_an_address_is_fetched_too() {
    let scene = Scene::with(vec![gguf(), HubFile::large("page.gguf", b"<html>".to_vec())]);
    let hub = Hub::new(scene.settings.clone());
    let models = scene.folder.join("models");
    let fetch =
        |name: &str| hub.fetch_address(&scene.server.address(name), &models, &mut Notes::default());
    scene.server.set(|faults| (faults.drop_after, faults.drops) = (Some(BLOCK / 2), 4));
    let path = fetch("tiny-Q8_0.gguf?token=x").unwrap();
    assert_eq!(path, models.join("tiny-Q8_0.gguf"));
    assert!(fs::read(&path).unwrap() == gguf().content);
    // It is not fetched twice, and no other address may take its place.
    let served = scene.server.served();
    assert_eq!(fetch("tiny-Q8_0.gguf?token=x").unwrap(), path);
    assert_eq!(scene.server.served(), served);
    let words = fetch("tiny-Q8_0.gguf").unwrap_err().to_string();
    assert!(words.contains("`pianola rm tiny-Q8_0` removes it"), "{words}");
    let words = fetch("page.gguf").unwrap_err().to_string();
    assert!(words.contains("is not a GGUF file: it begins with \"<htm\""), "{words}");
    assert!(matches!(fetch("page.html"), Err(HubError::NotGguf { .. })));
    assert!(matches!(fetch("none.gguf"), Err(HubError::Status { status: 404, .. })));
}

#[test]
fn a_file_that_changes_meanwhile_is_not_mixed() {
    let scene = Scene::new();
    let hub = Hub::new(scene.settings.clone());
    let models = scene.folder.join("models");
    let fetch = || {
        let address = scene.server.address("tiny-Q8_0.gguf");
        hub.fetch_address(&address, &models, &mut Notes::default())
    };
    scene.server.set(|faults| faults.changes_after = Some(4));
    assert!(matches!(fetch(), Err(HubError::Changed { .. })));
    // The second version starts from its first byte.
    let before = scene.server.served();
    let path = fetch().unwrap();
    assert!(fs::read(&path).unwrap() == gguf().content);
    assert!(scene.server.served() - before >= SIZE as u64);
}
