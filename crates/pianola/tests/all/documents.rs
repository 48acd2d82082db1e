//! The documents keep their promises: sizes, sentences that can be read aloud, links that lead somewhere, and
//! commands that the program takes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Largest size of the documents at the root, in bytes.
const SIZES: [(&str, usize); 4] = [
    ("README.md", 7 * 1024),
    ("CONTRIBUTING.md", 5 * 1024),
    ("ARCHITECTURE.md", 12 * 1024),
    ("CHANGELOG.md", 3 * 1024),
];
/// Nine sentences of ten have at most this many words.
const WORDS: usize = 28;
/// Longest line outside tables, in characters.
const COLUMNS: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every page that a reader is led to, by its path from the root. The laboratory's notes are not edited.
fn pages() -> Vec<PathBuf> {
    let root = root();
    let mut folders = vec![root.clone(), root.join("bench")];
    let mut queue = vec![root.join("docs"), root.join(".github")];
    queue.extend(fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path()));
    while let Some(folder) = queue.pop() {
        if folder.starts_with(root.join("docs")) || folder.starts_with(root.join(".github")) {
            let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            queue.extend(entries.filter(|path| path.is_dir()));
        }
        folders.push(folder);
    }
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut pages: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| path.strip_prefix(&root).unwrap().to_path_buf())
        .collect();
    pages.sort();
    assert!(pages.len() > 30, "only {} pages found", pages.len());
    pages
}

fn read(page: &Path) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// A page in its two kinds of text.
struct Text {
    prose: Vec<String>,
    /// Lines of code blocks, each with the language of its block.
    code: Vec<(String, String)>,
}

fn text(page: &str) -> Text {
    let mut text = Text { prose: Vec::new(), code: Vec::new() };
    let mut language = None;
    for line in page.lines() {
        match (&language, line.trim_start().strip_prefix("```")) {
            (None, Some(name)) => language = Some(name.trim().to_string()),
            (Some(_), Some(_)) => language = None,
            (Some(name), None) => text.code.push((name.clone(), line.to_string())),
            (None, None) => text.prose.push(line.to_string()),
        }
    }
    text
}

/// Sentences of running text: no tables, headings, comments or code.
fn sentences(prose: &[String]) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    for line in prose {
        let line = line.trim();
        let skip = ["|", "#", "<!--", "!["].iter().any(|mark| line.starts_with(mark));
        let item = line.starts_with("- ")
            || line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if line.is_empty() || skip || item {
            paragraphs.push(String::new());
        }
        if !skip {
            let paragraph = paragraphs.last_mut().unwrap();
            paragraph.push_str(line.trim_start_matches("- "));
            paragraph.push(' ');
        }
    }
    let mut sentences = Vec::new();
    for paragraph in paragraphs {
        let mut sentence = Vec::new();
        for word in without_code(&paragraph).split_whitespace() {
            sentence.push(word.to_string());
            if word.trim_end_matches([')', '"', '*', '_']).ends_with(['.', '!', '?', ':']) {
                sentences.push(sentence.join(" "));
                sentence.clear();
            }
        }
        sentences.push(sentence.join(" "));
    }
    sentences.retain(|sentence| sentence.split(' ').count() > 2);
    sentences
}

/// A code span counts as one word.
fn without_code(paragraph: &str) -> String {
    let pieces = paragraph.split('`').enumerate();
    pieces.map(|(index, piece)| if index % 2 == 0 { piece } else { "x" }).collect()
}

#[test]
fn documents_of_the_root_are_short() {
    for (name, most) in SIZES {
        let size = read(Path::new(name)).len();
        assert!(size <= most, "{name} has {size} bytes of {most}");
    }
}

#[test]
fn nine_sentences_of_ten_can_be_read_aloud() {
    let mut wrong = Vec::new();
    for page in pages() {
        let sentences = sentences(&text(&read(&page)).prose);
        let long: Vec<_> =
            sentences.iter().filter(|text| text.split(' ').count() > WORDS).collect();
        if long.len() * 10 > sentences.len() {
            let page = page.display();
            wrong.push(format!(
                "{page}: {} of {} sentences: {long:#?}",
                long.len(),
                sentences.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "more than {WORDS} words:\n{}", wrong.join("\n"));
}

#[test]
fn lines_fit_a_screen() {
    let mut wrong = Vec::new();
    for page in pages() {
        for (number, line) in read(&page).lines().enumerate() {
            if line.chars().count() > COLUMNS && !line.trim_start().starts_with('|') {
                wrong.push(format!("{}:{}", page.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "more than {COLUMNS} characters: {}", wrong.join(", "));
}

/// The anchors of a page, as hosts of Git repositories make them from headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = text(page).prose.into_iter().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        let content = read(&page);
        let prose = without_code(&text(&content).prose.join("\n"));
        for piece in prose.split("](").skip(1) {
            let Some((target, _)) = piece.split_once(')') else { continue };
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            let leads = root().join(&file).exists()
                && (heading.is_empty() || anchors(&read(&file)).contains(heading));
            if !leads {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

/// The words of a line as a shell would split it, up to a pipe, a list, a redirection or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut started = false;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => (quote, started) = (Some(c), true),
            (None, '\\') => word.extend(characters.next()),
            (None, '#') if word.is_empty() && !started => break,
            (None, '|' | '&' | ';' | '<' | '>') => break,
            (None, c) if c.is_whitespace() => {
                if started || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                started = false;
            }
            (None, c) => word.push(c),
        }
    }
    if started || !word.is_empty() {
        words.push(word);
    }
    words
}

/// The arguments of the program in a line of a code block, where the line calls it.
fn arguments(line: &str) -> Option<Vec<String>> {
    let mut words = words(line.trim_start().trim_start_matches("$ "));
    let name = |word: &String| {
        word.split_once('=').is_some_and(|(name, _)| {
            name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        })
    };
    while words.first().is_some_and(|word| word == "sudo" || word == "time" || name(word)) {
        words.remove(0);
    }
    match words.first()?.rsplit('/').next()? {
        "pianola" => Some(words.split_off(1)),
        "cargo" => {
            let end = words.iter().position(|word| word == "--")?;
            let runs = words[1] == "run" && !words[..end].iter().any(|word| word == "--example");
            runs.then(|| words.split_off(end + 1))
        }
        _ => None,
    }
}

#[test]
fn commands_in_code_blocks_are_taken() {
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages() {
        let lines: Vec<String> =
            text(&read(&page)).code.into_iter().map(|(_, line)| line).collect();
        for line in lines.join("\n").replace("\\\n", " ").lines() {
            let Some(arguments) = arguments(line) else { continue };
            count += 1;
            // Help is printed once everything before it was understood.
            let run = Command::new(env!("CARGO_BIN_EXE_pianola"))
                .args(&arguments)
                .arg("--help")
                .output()
                .unwrap();
            if !run.status.success() {
                let error = String::from_utf8_lossy(&run.stderr).into_owned();
                wrong.push(format!("{}: {line}\n{error}", page.display()));
            }
        }
    }
    assert!(count > 50, "only {count} commands found");
    assert!(wrong.is_empty(), "commands that are refused:\n{}", wrong.join("\n"));
}

#[test]
fn what_is_wrong_is_found() {
    let page = "# A title\nOne two three. Four five `a b c` six:\n\n- An item of list\n```sh\n$ X=1 pianola \
                run -m \"a b\" # why\n```\n| a | table |\n";
    let text = text(page);
    assert_eq!(sentences(&text.prose), ["One two three.", "Four five x six:", "An item of list"]);
    assert_eq!(text.code[0].0, "sh");
    assert_eq!(arguments(&text.code[0].1).unwrap(), ["run", "-m", "a b"]);
    assert_eq!(arguments("cargo run --release -- plan x | less").unwrap(), ["plan", "x"]);
    assert_eq!(arguments("cargo test"), None);
    assert!(anchors(page).contains("a-title"));
}
