//! Tokenisers, and answers of tokens chosen at random among those that a constraint allows.

#![allow(dead_code, reason = "each test uses a part")]

pub mod checker;
pub mod schemas;

use pianola_engine::Constraint;
use pianola_formats::Gguf;
use pianola_grammar::Grammars;
use pianola_text::Tokenizer;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// A model's tokeniser and the grammars over it.
#[derive(Clone)]
pub struct Words {
    pub tokenizer: Arc<Tokenizer>,
    pub vocabulary: usize,
    pub grammars: Grammars,
}

pub fn model(name: &str) -> PathBuf {
    let folder = std::env::var_os("PIANOLA_TEST_MODELS")
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    PathBuf::from(folder).join(name)
}

fn open(name: &str) -> Words {
    let file = Gguf::open(&model(name)).unwrap();
    words(Tokenizer::from_gguf(&file).unwrap())
}

/// A tokeniser without a model.
pub fn tokenizer_json(name: &str) -> Words {
    let folder = model("tokenizers").join(name);
    let json = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let config = std::fs::read(folder.join("tokenizer_config.json")).ok();
    words(Tokenizer::from_tokenizer_json(&json, config.as_deref()).unwrap())
}

fn words(tokenizer: Tokenizer) -> Words {
    // Some rows of padding behind the tokens, as models have them.
    let vocabulary = tokenizer.len() + 77;
    let grammars = Grammars::new(&tokenizer, vocabulary).unwrap();
    Words { tokenizer: Arc::new(tokenizer), vocabulary, grammars }
}

pub fn smollm2() -> Words {
    static WORDS: OnceLock<Words> = OnceLock::new();
    WORDS.get_or_init(|| open("smollm2.gguf")).clone()
}

pub fn gemma3() -> Words {
    static WORDS: OnceLock<Words> = OnceLock::new();
    WORDS.get_or_init(|| open("gemma3.gguf")).clone()
}

/// Pseudo-random numbers (xorshift).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }
}

impl Words {
    pub fn mask(&self, constraint: &mut dyn Constraint) -> Vec<u32> {
        let mut mask = vec![0; self.vocabulary.div_ceil(32)];
        constraint.fill_mask(&mut mask);
        mask
    }

    pub fn allowed(&self, constraint: &mut dyn Constraint) -> Vec<u32> {
        let mask = self.mask(constraint);
        let ids = 0..self.vocabulary as u32;
        ids.filter(|&id| mask[id as usize / 32] >> (id % 32) & 1 == 1).collect()
    }

    /// An answer of random tokens. The longer it is, the likelier are tokens that close something.
    /// None if it did not end within `most` tokens.
    pub fn walk(
        &self,
        constraint: &mut dyn Constraint,
        random: &mut Random,
        most: usize,
    ) -> Option<Vec<u32>> {
        let mut tokens = Vec::new();
        while tokens.len() < most {
            if constraint.is_complete() {
                return Some(tokens);
            }
            let mut allowed = self.allowed(constraint);
            assert!(!allowed.is_empty(), "nothing follows {:?}", self.text(&tokens));
            let is_end = |id: &u32| self.tokenizer.stop_tokens().contains(id);
            if allowed.iter().any(is_end) && (allowed.len() == 1 || random.below(2) == 0) {
                return Some(tokens);
            }
            allowed.retain(|id| !is_end(id));
            let token = self.pick(&allowed, random, tokens.len());
            assert!(constraint.advance(token), "{token} after {:?}", self.text(&tokens));
            tokens.push(token);
        }
        None
    }

    fn pick(&self, allowed: &[u32], random: &mut Random, length: usize) -> u32 {
        let closes = |id: u32| {
            let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
            bytes.len() < 4 && matches!(bytes.last(), Some(b'"' | b'}' | b']'))
        };
        if random.below(60) < 10 + length {
            let closing: Vec<u32> = allowed.iter().copied().filter(|&id| closes(id)).collect();
            if !closing.is_empty() {
                return closing[random.below(closing.len())];
            }
        }
        allowed[random.below(allowed.len())]
    }

    pub fn text(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, true)
    }
}
