//! Small vocabularies through the public interface, with no model at hand.

use crate::support::work::Work;
use pianola_text::{Error, SpecialTokens, Tokenizer, VocabularySource};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{NormalizedString, Normalizer, Tokenizer as Reference};
use unicode_normalization::UnicodeNormalization;

use SpecialTokens::{Parse, Plain};

/// SentencePiece: (spelling, score, type), then the bytes.
fn sentence_piece(pieces: &[(&str, f32, i64)], prefix: bool) -> Tokenizer {
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let spelled = pieces.iter().map(|piece| piece.0.to_owned());
    let tokens: Vec<String> = spelled.chain(bytes).collect();
    let padded = |of: fn(&(&str, f32, i64)) -> f64, rest: f64| {
        let values = pieces.iter().map(of);
        values.chain(std::iter::repeat_n(rest, 256)).collect::<Vec<f64>>()
    };
    let scores = padded(|piece| piece.1.into(), 0.0).iter().map(|&it| it as f32).collect();
    let types = padded(|piece| piece.2 as f64, 6.0).iter().map(|&it| it as i64).collect();
    Tokenizer::from_vocabulary(VocabularySource {
        model: "llama",
        tokens: &tokens,
        scores: Some(scores),
        token_types: Some(types),
        bos: Some(0),
        add_space_prefix: Some(prefix),
        ..VocabularySource::default()
    })
    .unwrap()
}

const PIECES: &[(&str, f32, i64)] = &[
    ("<s>", 0.0, 3),
    ("a", -9.0, 1),
    ("b", -9.0, 1),
    ("▁", -9.0, 1),
    ("aa", -1.0, 1),
    ("ab", -2.0, 1),
    ("aab", -3.0, 1),
    ("▁a", -4.0, 1),
    ("bb", -0.5, 5),
    ("aba", -1.0, 3),
    ("  ", -1000.0, 4),
];

fn texts(tokenizer: &Tokenizer, text: &str, special: SpecialTokens) -> Vec<String> {
    let ids = tokenizer.encode(text, special).unwrap();
    ids.iter().map(|&id| tokenizer.token_text(id).unwrap()).collect()
}

#[test]
fn sentence_piece_joins_by_score_and_then_from_the_left() {
    let tokenizer = sentence_piece(PIECES, false);
    assert_eq!(texts(&tokenizer, "aaa", Plain), ["aa", "a"]);
    assert_eq!(texts(&tokenizer, "aaab", Plain), ["aa", "ab"]);
    assert_eq!(texts(&tokenizer, "aab", Plain), ["aab"]);
    assert_eq!(texts(&tokenizer, " aab a", Plain), ["▁", "aab", "▁a"]);
    // Unused and control tokens are not formed, whatever their score.
    assert_eq!(texts(&tokenizer, "bbaba", Plain), ["b", "b", "ab", "a"]);
    assert_eq!(texts(&tokenizer, "b   a", Plain), ["b", "  ", "▁a"]);
    assert_eq!(texts(&tokenizer, "é", Plain), ["<0xC3>", "<0xA9>"]);
    assert_eq!(texts(&tokenizer, "<s>a", Parse), ["<s>", "a"]);
    assert_eq!(texts(&tokenizer, "<s>a", Plain), ["<0x3C>", "<0x73>", "<0x3E>", "a"]);
    assert!(tokenizer.encode("", Parse).unwrap().is_empty());
}

#[test]
fn a_prefix_space_comes_and_goes() {
    let tokenizer = sentence_piece(PIECES, true);
    assert_eq!(texts(&tokenizer, "ab", Plain), ["▁", "ab"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("ab", Plain).unwrap(), false), "ab");
    assert_eq!(tokenizer.decode(&tokenizer.encode(" ab", Plain).unwrap(), false), " ab");
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.encode_prompt("a", Plain).unwrap(), [0, 7]);
    assert_eq!(tokenizer.encode_prompt("<s>a", Parse).unwrap(), [0, 7]);
}

/// A tokenizer.json over all bytes, with a few merges.
fn byte_level() -> Value {
    let alphabet = (0..=255u32).map(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(byte).unwrap(),
        0..=0x20 => char::from_u32(0x100 + byte).unwrap(),
        0xad => '\u{143}',
        _ => char::from_u32(0x100 + byte - 0x7f + 33).unwrap(),
    });
    let merges = ["Ġ a", "a b", "Ġ Ġ", "1 2", "Ã ©", "a a", "ab ab", "Ġa b", "ĠĠ ĠĠ"];
    let mut tokens: Vec<String> = alphabet.map(String::from).collect();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    tokens.push("aaa".into());
    let vocab: serde_json::Map<_, _> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [
            added(266, "<|a|>", json!({ "special": true })),
            added(267, "<l>", json!({ "lstrip": true })),
            added(268, "<r>", json!({ "rstrip": true })),
            added(269, "ba", json!({ "single_word": true })),
            added(270, "<n>", json!({ "normalized": true })),
            added(271, "<l>b", json!({})),
        ],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true, "trim_offsets": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true, "trim_offsets": true },
        "model": { "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges },
    })
}

fn added(id: u32, content: &str, flags: Value) -> Value {
    let mut token = json!({ "id": id, "content": content, "special": false, "normalized": false,
        "lstrip": false, "rstrip": false, "single_word": false });
    for (flag, value) in flags.as_object().unwrap() {
        token[flag] = value.clone();
    }
    token
}

/// The same with characters in place of bytes, as converted from SentencePiece.
fn characters() -> Value {
    let mut file = byte_level();
    let mut tokens: Vec<String> = vec!["<unk>".into()];
    tokens.extend(["▁", "a", "b", "é", "1", "▁a", "ab", "▁▁", "aa", "▁ab"].map(String::from));
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let vocab: serde_json::Map<_, _> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    // The reference numbers added tokens itself, from the end of the vocabulary.
    for (index, token) in file["added_tokens"].as_array_mut().unwrap().iter_mut().enumerate() {
        token["id"] = json!(vocab.len() + index);
    }
    file["model"]["vocab"] = json!(vocab);
    file["model"]["merges"] = json!([["▁", "a"], ["a", "b"], ["▁", "▁"], ["a", "a"], ["▁a", "b"]]);
    file["model"]["byte_fallback"] = json!(true);
    file["model"]["unk_token"] = json!("<unk>");
    file["pre_tokenizer"] = json!(null);
    file["decoder"] = json!({ "type": "Sequence", "decoders": [
        { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
        { "type": "ByteFallback" }, { "type": "Fuse" } ] });
    file
}

/// Variants of the two, each with one component changed.
fn variants() -> Vec<(Value, Reference, Tokenizer)> {
    let metaspace = |scheme: &str, split: bool| json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split });
    let split = |behaviour: &str, invert: bool, pattern: Value| {
        json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": pattern, "behavior": behaviour, "invert": invert },
            { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false, "trim_offsets": true } ] })
    };
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let prepend = json!({ "type": "Prepend", "prepend": "▁" });
    let mut changes = vec![
        (byte_level(), "version", json!("1.0")),
        (byte_level(), "normalizer", json!({ "type": "NFC" })),
        (byte_level(), "normalizer", json!({ "type": "NFKD" })),
        (
            byte_level(),
            "normalizer",
            json!({ "type": "Replace", "pattern": { "Regex": "a+1" }, "content": "b" }),
        ),
        (
            byte_level(),
            "pre_tokenizer",
            json!({ "type": "ByteLevel", "add_prefix_space": true, "use_regex": true, "trim_offsets": true }),
        ),
        (
            byte_level(),
            "pre_tokenizer",
            json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Digits", "individual_digits": false },
            { "type": "ByteLevel", "add_prefix_space": true, "use_regex": true, "trim_offsets": true } ] }),
        ),
        (characters(), "version", json!("1.0")),
        (characters(), "normalizer", replace.clone()),
        (
            characters(),
            "normalizer",
            json!({ "type": "Sequence", "normalizers": [prepend, replace] }),
        ),
    ];
    for behaviour in ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"] {
        for invert in [false, true] {
            changes.push((
                byte_level(),
                "pre_tokenizer",
                split(behaviour, invert, json!({ "String": "a" })),
            ));
            changes.push((
                byte_level(),
                "pre_tokenizer",
                split(behaviour, invert, json!({ "Regex": "\\s+(?!\\S)|b+" })),
            ));
            changes.push((
                byte_level(),
                "pre_tokenizer",
                split(
                    behaviour,
                    invert,
                    json!({ "Regex": " ?[ab]+| {2}|\\s*\\n|\\s+(?!\\S)|\\s+" }),
                ),
            ));
        }
    }
    for scheme in ["always", "first", "never"] {
        for split in [false, true] {
            changes.push((characters(), "pre_tokenizer", metaspace(scheme, split)));
        }
    }
    let mut files: Vec<Value> = changes
        .into_iter()
        .map(|(mut file, field, value)| {
            file[field] = value;
            file
        })
        .collect();
    for mut file in [byte_level(), characters()] {
        file["model"]["ignore_merges"] = json!(true);
        files.push(file);
    }
    for fuse in [false, true] {
        let mut file = characters();
        // With some bytes only, the reference puts unknown tokens in the wrong place.
        file["model"]["byte_fallback"] = json!(false);
        file["model"]["fuse_unk"] = json!(fuse);
        files.push(file);
    }
    files
        .into_iter()
        .map(|file| {
            let text = file.to_string();
            let reference = text.parse().unwrap();
            let ours = Tokenizer::from_tokenizer_json(text.as_bytes(), None).unwrap();
            (file, reference, ours)
        })
        .collect()
}

/// The reference knows the characters of Unicode 9, we those of today.
fn normalises_alike(reference: &Reference, form: &Value, text: &str) -> bool {
    let expected: String = match form.as_str() {
        Some("NFC") => text.nfc().collect(),
        Some("NFKD") => text.nfkd().collect(),
        _ => return true,
    };
    let mut normalised = NormalizedString::from(text);
    reference.get_normalizer().unwrap().normalize(&mut normalised).unwrap();
    normalised.get() == expected
}

#[test]
fn every_component_agrees_with_the_reference() {
    let variants = variants();
    let unit = prop_oneof![
        proptest::sample::select(vec![
            " ", "  ", "\n", "a", "b", "ab", "1", "é", "e\u{301}", "▁", "<l>", "<r>", "<n>", "ba",
            "<|a|>", "ß", "<l", "日"
        ])
        .prop_map(String::from),
        ".{0,3}",
    ];
    let text = proptest::collection::vec(unit, 0..12).prop_map(|units| units.concat());
    let config = proptest::test_runner::Config {
        cases: 500,
        failure_persistence: None,
        ..Default::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&text, |text| {
            for (file, reference, ours) in &variants {
                if !normalises_alike(reference, &file["normalizer"]["type"], &text) {
                    continue;
                }
                let mut reference = reference.clone();
                for special in [Parse, Plain] {
                    reference.set_encode_special_tokens(special == Plain);
                    let expected = reference.encode_fast(text.as_str(), false).unwrap();
                    prop_assert_eq!(
                        ours.encode(&text, special).unwrap(),
                        expected.get_ids(),
                        "{:?} {} {}",
                        special,
                        file["normalizer"],
                        file["pre_tokenizer"]
                    );
                }
            }
            Ok(())
        })
        .unwrap();
}

proptest! {
    #[test]
    fn a_stream_of_tokens_reads_like_the_whole(text in ".{0,40}", cuts in proptest::collection::vec(0u32..400, 0..40)) {
        let tokenizer = Tokenizer::from_tokenizer_json(byte_level().to_string().as_bytes(), None).unwrap();
        let ids = tokenizer.encode(&text, Plain).unwrap();
        prop_assert_eq!(&tokenizer.decode(&ids, true), &text);
        let (mut decoder, mut read) = (tokenizer.decoder(true), String::new());
        for id in ids {
            decoder.push(&tokenizer, id, &mut read);
            // Nothing is said too early: what has been read stays.
            prop_assert!(text.starts_with(&read));
        }
        decoder.finish(&mut read);
        prop_assert_eq!(&read, &text);
        // Any ids whatever, most of them no UTF-8, some of them no token.
        for show in [false, true] {
            let (mut decoder, mut read) = (tokenizer.decoder(show), String::new());
            cuts.iter().for_each(|&id| decoder.push(&tokenizer, id, &mut read));
            decoder.finish(&mut read);
            prop_assert_eq!(&read, &tokenizer.decode(&cuts, show));
            let bytes: Vec<u8> = cuts.iter()
                .filter(|&&id| show || !tokenizer.is_special(id))
                .flat_map(|&id| tokenizer.token_bytes(id).unwrap_or("\u{fffd}".as_bytes()).to_vec())
                .collect();
            prop_assert_eq!(&read, &String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn damaged_json_is_an_error_or_a_tokeniser(at in 0usize..8000, byte in 0u8..128) {
        let mut text = byte_level().to_string().into_bytes();
        let at = at % text.len();
        prop_assert!(Tokenizer::from_tokenizer_json(&text[..at], None).is_err());
        text[at] = byte;
        if let Ok(tokenizer) = Tokenizer::from_tokenizer_json(&text, None) {
            let ids = tokenizer.encode("ab <|a|> é12", Parse).unwrap();
            tokenizer.decode(&ids, true);
        }
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let load = |field: &str, value: Value| {
        let mut file = byte_level();
        *file.pointer_mut(field).unwrap() = value;
        Tokenizer::from_tokenizer_json(file.to_string().as_bytes(), None).unwrap_err().to_string()
    };
    for (field, value, name) in [
        ("/model/type", json!("Unigram"), "Unigram"),
        ("/model/dropout", json!(0.5), "dropout"),
        ("/model/end_of_word_suffix", json!("</w>"), "</w>"),
        ("/normalizer", json!({ "type": "BertNormalizer" }), "BertNormalizer"),
        ("/pre_tokenizer", json!({ "type": "Whitespace" }), "Whitespace"),
        ("/decoder", json!({ "type": "WordPiece" }), "WordPiece"),
        ("/post_processor", json!({ "type": "BertProcessing" }), "BertProcessing"),
        ("/model/merges", json!(["a q"]), "merge 0 (\"a q\")"),
        ("/model/merges", json!(["a b c"]), "merge 0"),
        ("/model/merges", json!([["a"]]), "two halves"),
        ("/model/vocab", json!({}), "vocabulary"),
        ("/model/vocab", json!({ "a": 4294967295u32 }), "more than any model"),
        (
            "/pre_tokenizer",
            json!({ "type": "Split", "pattern": { "Regex": "(" }, "behavior": "Isolated" }),
            "\"(\"",
        ),
    ] {
        let error = load(field, value);
        assert!(error.contains(name), "{error} does not name {name}");
    }
}

#[test]
fn damaged_vocabularies_are_errors() {
    let tokens = ["a".to_owned(), "b".to_owned(), "ab".to_owned()];
    let source = VocabularySource { model: "gpt2", tokens: &tokens, ..VocabularySource::default() };
    let load = |source: VocabularySource| Tokenizer::from_vocabulary(source).unwrap_err();
    let short = VocabularySource { token_types: Some(vec![1]), ..source.clone() };
    assert!(matches!(load(short), Error::Length { found: 1, expected: 3, .. }));
    let scores = VocabularySource { model: "llama", scores: Some(vec![0.0; 4]), ..source.clone() };
    assert!(matches!(load(scores), Error::Length { found: 4, expected: 3, .. }));
    let none = VocabularySource { model: "llama", ..source.clone() };
    assert!(matches!(load(none), Error::Missing(_)));
    let merges = ["a c".to_owned()];
    let unknown = VocabularySource { merges: &merges, ..source.clone() };
    assert!(matches!(load(unknown), Error::UnknownMerge { rank: 0, .. }));
    for (model, pre, name) in [("bert", None, "bert"), ("gpt2", Some("viking"), "viking")] {
        let error = load(VocabularySource { model, pre, ..source.clone() });
        assert!(error.to_string().contains(name));
    }
    // So are ids of special tokens that are none.
    let stray = VocabularySource { bos: Some(9), ..source.clone() };
    assert!(load(stray).to_string().contains("bos_token_id"));
    let stray = VocabularySource { stops: vec![7], ..source.clone() };
    assert!(load(stray).to_string().contains("token 7"));
    let tokenizer = Tokenizer::from_vocabulary(source).unwrap();
    assert_eq!(tokenizer.encode_prompt("ab", Plain).unwrap(), [0, 1]);
    assert_eq!(tokenizer.decode(&[2, 3, u32::MAX], true), "ab\u{fffd}\u{fffd}");
}

#[test]
fn the_configuration_names_special_tokens() {
    let file = byte_level().to_string();
    let config =
        json!({ "bos_token": { "content": "<|a|>" }, "eos_token": "<r>", "add_bos_token": true });
    let config = config.to_string();
    let tokenizer =
        Tokenizer::from_tokenizer_json(file.as_bytes(), Some(config.as_bytes())).unwrap();
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()),
        (Some(266), Some(268), true)
    );
    assert!(Tokenizer::from_tokenizer_json(file.as_bytes(), Some(b"{")).is_err());
    let mut tokenizer = tokenizer;
    tokenizer.add_stop_token(5);
    tokenizer.add_stop_token(5);
    assert_eq!(tokenizer.stop_tokens(), [268, 5]);
}

#[test]
fn long_runs_take_no_longer_than_text() {
    let work = Work::begin();
    let byte_level =
        Tokenizer::from_tokenizer_json(byte_level().to_string().as_bytes(), None).unwrap();
    let pieces = sentence_piece(PIECES, false);
    for unit in ["a", " ", "é", "<", "ab", "1", "<|a"] {
        let text = unit.repeat(1_000_000 / unit.len());
        for tokenizer in [&byte_level, &pieces] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(&text, Parse).unwrap(), true), text);
        }
    }
    // Quadratic would be hours.
    assert!(work.spent().as_secs() < 60);
}
