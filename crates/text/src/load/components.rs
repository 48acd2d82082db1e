//! Normalisers, pre-tokenisers, decoders and post-processors of tokenizer.json.

use serde_json::Value;

use crate::error::Error;
use crate::normalise::{Form, Normaliser};
use crate::pattern::{self, Pattern};
use crate::split::{Behaviour, Prefix, Splitter};

fn type_of(component: &Value) -> &str {
    component["type"].as_str().unwrap_or("without a type")
}

fn unsupported(component: &'static str, name: impl Into<String>) -> Error {
    Error::Unsupported { component, name: name.into() }
}

fn pattern(component: &'static str, value: &Value) -> Result<Pattern, Error> {
    if let Some(literal) = value["String"].as_str() {
        Ok(Pattern::Literal(literal.into()))
    } else if let Some(regex) = value["Regex"].as_str() {
        Pattern::regex(regex)
    } else {
        Err(unsupported(component, format!("pattern {value}")))
    }
}

fn list<'a>(value: &'a Value, field: &'static str) -> Result<&'a [Value], Error> {
    let list = value[field].as_array();
    list.map(Vec::as_slice).ok_or_else(|| Error::Missing(format!("a Sequence's {field}")))
}

fn text(value: &Value, field: &'static str) -> Result<String, Error> {
    let text = value[field].as_str();
    text.map(Into::into).ok_or_else(|| Error::Missing(format!("{}'s {field}", type_of(value))))
}

/// Appends the steps of a normaliser.
pub(super) fn normalisers(value: &Value, steps: &mut Vec<Normaliser>) -> Result<(), Error> {
    steps.push(match type_of(value) {
        "Sequence" => {
            return list(value, "normalizers")?.iter().try_for_each(|one| normalisers(one, steps));
        }
        "NFC" => Normaliser::Form(Form::Composed),
        "NFD" => Normaliser::Form(Form::Decomposed),
        "NFKC" => Normaliser::Form(Form::CompatibilityComposed),
        "NFKD" => Normaliser::Form(Form::CompatibilityDecomposed),
        "Prepend" => Normaliser::Prepend(text(value, "prepend")?),
        "Replace" => Normaliser::Replace {
            pattern: pattern("normalizer Replace", &value["pattern"])?,
            with: text(value, "content")?,
        },
        other => return Err(unsupported("normalizer", other)),
    });
    Ok(())
}

/// The steps of a pre-tokeniser, and whether the model works on bytes.
#[derive(Default)]
pub(super) struct PreTokeniser {
    pub(super) splitters: Vec<Splitter>,
    pub(super) byte_level: bool,
}

impl PreTokeniser {
    /// Appends the steps of a component.
    pub(super) fn add(&mut self, value: &Value) -> Result<(), Error> {
        if self.byte_level {
            // What follows would have to work on the spelling of bytes.
            let name = format!("{} after ByteLevel", type_of(value));
            return Err(unsupported("pre_tokenizer", name));
        }
        match type_of(value) {
            "Sequence" => {
                return list(value, "pretokenizers")?.iter().try_for_each(|one| self.add(one));
            }
            "ByteLevel" => {
                self.byte_level = true;
                if value["add_prefix_space"].as_bool().unwrap_or(true) {
                    self.splitters.push(Splitter::PrefixSpace);
                }
                if value["use_regex"].as_bool().unwrap_or(true) {
                    self.split(Pattern::regex(pattern::GPT2)?, Behaviour::Isolated, false);
                }
            }
            "Split" => {
                let pattern = pattern("pre_tokenizer Split", &value["pattern"])?;
                let behaviour = behaviour(value)?;
                self.split(pattern, behaviour, value["invert"].as_bool().unwrap_or(false));
            }
            "Digits" => {
                let individual = value["individual_digits"].as_bool().unwrap_or(false);
                let behaviour =
                    if individual { Behaviour::Isolated } else { Behaviour::Contiguous };
                self.split(Pattern::Numeric, behaviour, false);
            }
            "Metaspace" => self.splitters.push(metaspace(value)?),
            other => return Err(unsupported("pre_tokenizer", other)),
        }
        Ok(())
    }

    fn split(&mut self, pattern: Pattern, behaviour: Behaviour, invert: bool) {
        self.splitters.push(Splitter::Split { pattern, behaviour, invert });
    }
}

fn behaviour(value: &Value) -> Result<Behaviour, Error> {
    Ok(match value["behavior"].as_str().unwrap_or("absent") {
        "Isolated" => Behaviour::Isolated,
        "Removed" => Behaviour::Removed,
        "Contiguous" => Behaviour::Contiguous,
        "MergedWithPrevious" => Behaviour::MergedWithPrevious,
        "MergedWithNext" => Behaviour::MergedWithNext,
        other => return Err(unsupported("Split behavior", other)),
    })
}

fn metaspace(value: &Value) -> Result<Splitter, Error> {
    let mark = text(value, "replacement")?;
    let mut characters = mark.chars();
    let (Some(mark), None) = (characters.next(), characters.next()) else {
        return Err(unsupported("Metaspace replacement", mark));
    };
    let prefix = match value["prepend_scheme"].as_str() {
        Some("always") => Prefix::Always,
        Some("first") => Prefix::First,
        Some("never") => Prefix::Never,
        Some(other) => return Err(unsupported("Metaspace prepend_scheme", other)),
        None if value["add_prefix_space"] == false => Prefix::Never,
        None => Prefix::Always,
    };
    Ok(Splitter::Metaspace { mark, prefix, split: value["split"].as_bool().unwrap_or(true) })
}

/// How spellings become text again.
#[derive(Debug, Default)]
pub(super) struct Spelling {
    pub(super) byte_level: bool,
    /// `<0x0A>` is a byte.
    pub(super) byte_fallback: bool,
    /// Replaced by a space.
    pub(super) mark: Option<String>,
    /// Leading spaces of a text to drop.
    pub(super) strip: usize,
}

impl Spelling {
    /// Takes over the steps of a decoder.
    pub(super) fn add(&mut self, value: &Value) -> Result<(), Error> {
        match type_of(value) {
            "Sequence" => {
                return list(value, "decoders")?.iter().try_for_each(|one| self.add(one));
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Replace" if value["content"] == " " && value["pattern"]["String"].is_string() => {
                self.mark = value["pattern"]["String"].as_str().map(Into::into);
            }
            "Strip" if value["content"] == " " && value["stop"] == 0 => {
                self.strip = value["start"].as_u64().unwrap_or(0) as usize;
            }
            "Metaspace" => {
                let Splitter::Metaspace { mark, prefix, .. } = metaspace(value)? else {
                    return Ok(());
                };
                self.mark = Some(mark.into());
                self.strip = usize::from(prefix != Prefix::Never);
            }
            other @ ("Replace" | "Strip") => {
                return Err(unsupported("decoder", format!("{other} {value}")));
            }
            other => return Err(unsupported("decoder", other)),
        }
        Ok(())
    }
}

/// The token that a post-processor puts before every text.
pub(super) fn first_token(value: &Value) -> Result<Option<String>, Error> {
    match type_of(value) {
        "Sequence" => {
            for one in list(value, "processors")? {
                if let Some(token) = first_token(one)? {
                    return Ok(Some(token));
                }
            }
            Ok(None)
        }
        "TemplateProcessing" => {
            Ok(value["single"][0]["SpecialToken"]["id"].as_str().map(Into::into))
        }
        "ByteLevel" => Ok(None),
        other => Err(unsupported("post_processor", other)),
    }
}
