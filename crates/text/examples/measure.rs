//! Times loading and encoding: `measure FILE.gguf|tokenizer.json [TEXT]`.
//! Without a text, this file a thousand times over.

use std::path::Path;
use std::time::Instant;

use pianola_formats::Gguf;
use pianola_text::{SpecialTokens, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which tokeniser?")?;
    let text = match arguments.next() {
        Some(path) => std::fs::read_to_string(path)?,
        None => include_str!("measure.rs").repeat(1000),
    };
    let tokenizer = if path.ends_with(".json") {
        let json = std::fs::read(&path)?;
        time("load", || Tokenizer::from_tokenizer_json(&json, None))?
    } else {
        let file = Gguf::open(Path::new(&path))?;
        time("load", || Tokenizer::from_gguf(&file))?
    };
    let ids = time("encode", || tokenizer.encode(&text, SpecialTokens::Parse))?;
    let back = time("decode", || tokenizer.decode(&ids, true));
    println!("{} bytes, {} tokens, {} back", text.len(), ids.len(), back.len());
    Ok(())
}

fn time<T>(what: &str, work: impl Fn() -> T) -> T {
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let started = Instant::now();
        let _ = std::hint::black_box(work());
        best = best.min(started.elapsed().as_secs_f64());
    }
    let started = Instant::now();
    let result = work();
    println!("{what}: {:.1} ms", best.min(started.elapsed().as_secs_f64()) * 1e3);
    result
}
