//! Times of grammars over a model's vocabulary: `cargo run --release -p pianola-grammar --example
//! measure MODEL.gguf`.

#[path = "../tests/all/support/schemas.rs"]
#[allow(dead_code, reason = "one schema of many")]
mod schemas;

use pianola_formats::Gguf;
use pianola_grammar::Grammars;
use pianola_text::{SpecialTokens, Tokenizer};
use std::time::{Duration, Instant};

/// An answer by the schema of medium size, which the masks are computed along.
const ANSWER: &str = r#"{"id": "123e4567-e89b-12d3-a456-426614174000", "customer": {"name": "Ada Lovelace of Ockham Park", "email": "ada@example.com", "age": 36}, "lines": [{"sku": "ABC-1234", "count": 12, "price": 99.95}, {"sku": "XYZ-0001", "count": 1}], "status": "shipped", "note": "Leave it with the neighbours, they know.", "ordered": "2024-02-29T12:34:56Z"}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("name a GGUF file")?;
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(path.as_ref())?)?;
    let start = Instant::now();
    let grammars = Grammars::new(&tokenizer, tokenizer.len())?;
    println!("{} tokens: {:?} for the vocabulary", tokenizer.len(), start.elapsed());
    let schema = schemas::medium();
    let start = Instant::now();
    let constraint = grammars.json_schema(&schema)?;
    println!("{:?} to compile the schema", start.elapsed());
    let tokens = tokenizer.encode(ANSWER, SpecialTokens::Plain)?;
    let mut mask = vec![0u32; tokenizer.len().div_ceil(32)];
    for (name, rounds) in [("first answer", 1), ("later answers", 20)] {
        let (mut masks, mut advances) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let mut constraint = constraint.clone();
            for &token in &tokens {
                mask.fill(0);
                let start = Instant::now();
                constraint.fill_mask(&mut mask);
                masks.push(start.elapsed());
                let start = Instant::now();
                assert!(constraint.advance(token), "{:?}", tokenizer.token_text(token));
                advances.push(start.elapsed());
            }
        }
        print_times(&format!("{name}: masks"), masks);
        print_times(&format!("{name}: advances"), advances);
    }
    Ok(())
}

fn print_times(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "{name}: {:?} median, {:?} p99, {:?} longest of {}",
        at(0.5),
        at(0.99),
        at(1.0),
        times.len()
    );
}
