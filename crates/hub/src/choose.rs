//! Which files of a repository make the model that suits this machine: a function of the list of files,
//! of what was asked for, and of the memory there is.

use pianola_formats::TensorType;

use crate::error::{HubError, megabytes};
use crate::name::Repository;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SizedFile {
    /// With slashes.
    pub path: String,
    pub size: u64,
}

impl SizedFile {
    /// Its name without its folder.
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// What to fetch, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Paths, in the order in which they are fetched.
    pub files: Vec<String>,
    /// The model: one of the files, or else their folder.
    pub gguf: Option<String>,
    /// In words.
    pub reason: String,
}

/// Small files of a folder of safetensors, as far as anything here reads them.
const FOLDER_FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
const WEIGHTS: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Asks for the folder where there are GGUF files too.
const FOLDER_CHOICE: &str = "safetensors";

/// Chooses among the files of a repository. `memory` is what weights may take, where it is known.
pub(crate) fn choose(
    repository: &Repository,
    files: &[SizedFile],
    memory: Option<u64>,
) -> Result<Selection, HubError> {
    let ggufs: Vec<&SizedFile> = files.iter().filter(|file| is_model(file)).collect();
    let choice = repository.choice.as_deref();
    let folder = choice.is_some_and(|choice| choice.eq_ignore_ascii_case(FOLDER_CHOICE));
    match choice {
        None if ggufs.is_empty() => choose_folder(repository, files),
        _ if folder => choose_folder(repository, files),
        Some(choice) => by_choice(repository, &ggufs, choice),
        None => by_memory(repository, &ggufs, memory),
    }
}

/// Whether it is a language model in one file: not the part of one that reads pictures, nor what a
/// quantiser was told.
pub(crate) fn is_model(file: &SizedFile) -> bool {
    is_model_name(file.name())
}

/// The same by the name of a file, without its folder.
pub(crate) fn is_model_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix")
}

/// The file that was asked for by its path, its name or its quantisation.
fn by_choice(
    repository: &Repository,
    ggufs: &[&SizedFile],
    choice: &str,
) -> Result<Selection, HubError> {
    let named = |file: &&&SizedFile| {
        file.path.eq_ignore_ascii_case(choice) || file.name().eq_ignore_ascii_case(choice)
    };
    let labelled = |file: &&&SizedFile| {
        quantisation(file).is_some_and(|label| label.eq_ignore_ascii_case(choice))
    };
    let mut found: Vec<&SizedFile> = ggufs.iter().filter(named).copied().collect();
    if found.is_empty() {
        found = ggufs.iter().filter(labelled).copied().collect();
    }
    let others = || names(ggufs.iter().filter(|file| part_of(file).is_none()).copied());
    match found[..] {
        [] => Err(HubError::NoChoice {
            repository: repository.to_string(),
            choice: choice.to_string(),
            found: names(ggufs.iter().copied()),
        }),
        [file, ..] if part_of(file).is_some() => Err(HubError::Split {
            repository: repository.to_string(),
            file: file.path.clone(),
            others: others(),
        }),
        [file] => {
            let reason = format!("{} ({}), as asked", file.path, megabytes(file.size));
            Ok(one(file, reason))
        }
        _ => Err(HubError::Ambiguous {
            repository: repository.to_string(),
            choice: choice.to_string(),
            found: names(found.iter().copied()),
        }),
    }
}

/// The best file that memory holds: of the quantised ones the largest, since more bits are better;
/// unquantised ones only where there is nothing else, since they are slower for nearly nothing.
fn by_memory(
    repository: &Repository,
    ggufs: &[&SizedFile],
    memory: Option<u64>,
) -> Result<Selection, HubError> {
    let runs: Vec<(&SizedFile, String)> = ggufs
        .iter()
        .filter(|file| part_of(file).is_none())
        .filter_map(|file| {
            Some((*file, quantisation(file).filter(|label| type_of(label).is_some())?))
        })
        .collect();
    let unlabelled: Vec<&SizedFile> =
        ggufs.iter().filter(|file| quantisation(file).is_none()).copied().collect();
    if let ([], [only]) = (&runs[..], &unlabelled[..]) {
        let reason = format!("{} ({}), its only model", only.path, megabytes(only.size));
        return Ok(one(only, reason));
    }
    let quantised = |label: &str| type_of(label).is_some_and(TensorType::is_quantized);
    let any_quantised = runs.iter().any(|(_, label)| quantised(label));
    let mut candidates: Vec<&(&SizedFile, String)> =
        runs.iter().filter(|(_, label)| quantised(label) || !any_quantised).collect();
    candidates.sort_by_key(|(file, _)| std::cmp::Reverse(file.size));
    let fits = |file: &SizedFile| memory.is_none_or(|memory| needed(file.size) <= memory);
    let best = candidates.iter().find(|(file, _)| fits(file)).or(candidates.last());
    let Some((file, label)) = best else {
        let found = names(ggufs.iter().copied());
        return Err(HubError::NothingRuns { repository: repository.to_string(), found });
    };
    // Two files of one quantisation are two models.
    let twins: Vec<&SizedFile> =
        runs.iter().filter(|(_, other)| other == label).map(|(file, _)| *file).collect();
    if twins.len() > 1 {
        return Err(HubError::Ambiguous {
            repository: repository.to_string(),
            choice: label.clone(),
            found: names(twins.into_iter()),
        });
    }
    let why = match (candidates.len(), memory) {
        (1, Some(memory)) if !fits(file) => {
            format!(
                "the only one that runs here, and more than {} of memory hold",
                megabytes(memory)
            )
        }
        (1, _) => "the only one that runs here".to_string(),
        (_, None) => "the largest of those that run here".to_string(),
        (_, Some(memory)) if fits(file) => {
            format!("the largest for {} of memory", megabytes(memory))
        }
        (_, Some(memory)) => {
            format!("the smallest, and yet more than {} of memory hold", megabytes(memory))
        }
    };
    Ok(one(
        file,
        format!("{label} ({}), {why}; {repository}:QUANT chooses another", megabytes(file.size)),
    ))
}

/// Memory that a file of this size takes once it is loaded, with room for keys, values and buffers.
fn needed(size: u64) -> u64 {
    size + size / 8 + (512 << 20)
}

fn one(file: &SizedFile, reason: String) -> Selection {
    Selection { files: vec![file.path.clone()], gguf: Some(file.path.clone()), reason }
}

/// `config.json`, the tokeniser and the weights.
fn choose_folder(repository: &Repository, files: &[SizedFile]) -> Result<Selection, HubError> {
    let find = |name: &str| files.iter().find(|file| file.path == name);
    let weights: Vec<&SizedFile> = match (find(WEIGHTS), find(INDEX)) {
        (Some(single), _) => vec![single],
        (None, Some(index)) => {
            let shard = |file: &&SizedFile| {
                file.path.starts_with("model-") && file.path.ends_with(".safetensors")
            };
            [index].into_iter().chain(files.iter().filter(shard)).collect()
        }
        (None, None) => Vec::new(),
    };
    if weights.is_empty() || find(FOLDER_FILES[0]).is_none() {
        let found = names(files.iter());
        return Err(HubError::NothingRuns { repository: repository.to_string(), found });
    }
    let bytes: u64 = weights.iter().map(|file| file.size).sum();
    // The small ones first: what has its weights is then whole.
    let small = FOLDER_FILES.iter().filter_map(|name| find(name));
    let files = small.chain(weights).map(|file| file.path.clone()).collect();
    Ok(Selection { files, gguf: None, reason: format!("safetensors ({})", megabytes(bytes)) })
}

/// The files in a sentence, not all of many.
fn names<'a>(files: impl Iterator<Item = &'a SizedFile>) -> String {
    const MOST: usize = 24;
    let all: Vec<&str> = files.map(|file| file.path.as_str()).collect();
    match all.len() {
        0 => "none".to_string(),
        count if count > MOST => format!("{} and {} more", all[..MOST].join(", "), count - MOST),
        _ => all.join(", "),
    }
}

/// The quantisation in a file's name, in capitals: the last word of it that can be one.
fn quantisation(file: &SizedFile) -> Option<String> {
    let stem = file.name().to_ascii_uppercase();
    let stem = stem.strip_suffix(".GGUF").unwrap_or(&stem);
    let stem = part_of(file).map_or(stem, |length| &stem[..stem.len() - length]);
    let starts =
        stem.char_indices().filter(|&(at, _)| at == 0 || stem[..at].ends_with(['-', '.', '_']));
    let words = starts.map(|(at, _)| {
        let end = stem[at..].find(['-', '.']).map_or(stem.len(), |end| at + end);
        &stem[at..end]
    });
    words.rev().find(|word| is_quantisation(word)).map(str::to_string)
}

fn is_quantisation(word: &str) -> bool {
    let digits = ["IQ", "TQ", "Q"].iter().find_map(|start| word.strip_prefix(start));
    matches!(word, "F32" | "F16" | "BF16" | "FP16" | "FP32")
        || word.starts_with("MXFP")
        || digits.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// The type of most tensors in a file of this quantisation, if it is one that is read: `Q4_K_M` is
/// mostly `q4_k`.
fn type_of(label: &str) -> Option<TensorType> {
    let label = match label {
        "FP16" => "F16",
        "FP32" => "F32",
        label => label,
    };
    let shorter = ["_S", "_M", "_L", "_XL"].iter().find_map(|end| label.strip_suffix(end));
    label.parse().ok().or_else(|| shorter?.parse().ok())
}

/// The length of `-00001-of-00003` at the end of a name without `.gguf`; none where a file is whole.
fn part_of(file: &SizedFile) -> Option<usize> {
    const LENGTH: usize = "-00001-of-00003".len();
    let name = file.name().to_ascii_lowercase();
    let stem = name.strip_suffix(".gguf")?;
    let (number, all) = stem.get(stem.len().checked_sub(LENGTH)?..)?.split_once("-of-")?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number.strip_prefix('-')?) && digits(all) && all != "00001").then_some(LENGTH)
}

#[cfg(test)]
#[path = "choose/tests.rs"]
mod tests;
