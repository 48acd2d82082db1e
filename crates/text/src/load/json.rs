//! The shape of tokenizer.json. Its vocabulary and merges are nine tenths of
//! up to 35 MB, so they are borrowed from the text where they can be.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The whole file; components are read as they are and interpreted later.
#[derive(serde::Deserialize)]
pub(super) struct File<'a> {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Option<Value>,
    #[serde(default)]
    pub(super) pre_tokenizer: Option<Value>,
    #[serde(default)]
    pub(super) post_processor: Option<Value>,
    #[serde(default)]
    pub(super) decoder: Option<Value>,
    #[serde(borrow)]
    pub(super) model: Model<'a>,
}

#[derive(serde::Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    pub(super) normalized: Option<bool>,
    #[serde(default)]
    pub(super) special: bool,
}

#[derive(serde::Deserialize)]
pub(super) struct Model<'a> {
    /// Old files leave it out; only BPE has both a vocabulary map and merges.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) dropout: Option<f32>,
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    pub(super) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: bool,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    #[serde(borrow, default)]
    pub(super) vocab: Vocab<'a>,
    #[serde(borrow, default)]
    pub(super) merges: Vec<Merge<'a>>,
}

/// A string, borrowed unless it contains an escape.
#[derive(Clone)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.into())))
            }
        }
        from.deserialize_str(TextVisitor)
    }
}

/// The vocabulary in the order of the file. Unigram models have a list in
/// place of the map: it is passed over, for the model's type to be refused by name.
#[derive(Default)]
pub(super) struct Vocab<'a>(pub(super) Vec<(Text<'a>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = Vocab<'de>;
            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a map from tokens to ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab<'de>, A::Error> {
                let mut tokens = Vec::new();
                while let Some(token) = map.next_entry()? {
                    tokens.push(token);
                }
                Ok(Vocab(tokens))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab<'de>, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocab::default())
            }
        }
        from.deserialize_any(VocabVisitor)
    }
}

/// A merge in either of its two forms.
pub(super) enum Merge<'a> {
    /// `"a b"`.
    Joined(Text<'a>),
    /// `["a", "b"]`.
    Pair(Text<'a>, Text<'a>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge<'de>;
            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a merge, as \"a b\" or [\"a\", \"b\"]")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Merge<'de>, E> {
                Ok(Merge::Joined(Text(Cow::Borrowed(text))))
            }
            fn visit_str<E>(self, text: &str) -> Result<Merge<'de>, E> {
                Ok(Merge::Joined(Text(Cow::Owned(text.into()))))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge<'de>, A::Error> {
                use serde::de::Error;
                let (left, right) = (list.next_element()?, list.next_element()?);
                match (left, right, list.next_element::<IgnoredAny>()?) {
                    (Some(left), Some(right), None) => Ok(Merge::Pair(left, right)),
                    _ => Err(A::Error::custom("a merge has two halves")),
                }
            }
        }
        from.deserialize_any(MergeVisitor)
    }
}
