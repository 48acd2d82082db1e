//! Pianola as a library: two requests at once, their texts as they come, and an embedding.
//! usage: cargo run --release -p pianola-engine --example library -- MODEL.gguf
use pianola_engine::{Engine, LoadOptions, Pooling, Request, Service, Stream};
use pianola_text::{Conversation, Message, SpecialTokens};
use std::{error::Error, path::PathBuf};

fn ask(service: &Service, question: &str) -> Result<Stream, Box<dyn Error>> {
    let text = service.text().ok_or("the model has no tokeniser")?;
    let (template, _) = text.template.as_ref().ok_or("the model has no chat template")?;
    let conversation = Conversation::new(vec![Message::new("user", question)]);
    let prompt = template.render_tokens(&conversation, &text.tokenizer)?;
    Ok(service.submit(Request { max_tokens: Some(40), ..Request::new(prompt) })?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("name a model file")?);
    let options = LoadOptions { lanes: 8, ..LoadOptions::default() };
    let service = Service::start(Engine::load(&path, options, &mut |_, _| ())?);
    let mut first = ask(&service, "Name a colour.")?;
    let second = ask(&service, "Name a fruit.")?;
    for piece in first.by_ref() {
        print!("{}", piece?);
    }
    println!("\n{:?}\n{}", first.answer().map(|answer| answer.finish), second.finish()?.0);
    let text = service.text().ok_or("the model has no tokeniser")?;
    let tokens = text.tokenizer.encode_prompt("a player piano", SpecialTokens::Plain)?;
    println!("{} numbers", service.embed(tokens, Pooling::Mean)?.len());
    Ok(())
}
