//! Real models, end to end: what fast mode costs against exact mode, and that perplexities are
//! llama.cpp's. `scripts/test` fetches the models and names their folder in `PIANOLA_TEST_MODELS`.

use pianola_cpu::{CpuOptions, CpuRecording};
use pianola_engine::{Engine, Finish, LoadOptions, Request, compare, sampler::Sampling};
use pianola_plan::{KvType, Numeric, Recording, Step};
use pianola_text::{Conversation, Message, SpecialTokens};
use std::ops::ControlFlow;
use std::path::PathBuf;

fn model(name: &str) -> PathBuf {
    let folder = std::env::var_os("PIANOLA_TEST_MODELS")
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    PathBuf::from(folder).join(name)
}

/// On the processor, with memory that does not depend on what else runs.
fn options() -> LoadOptions {
    let cpu = CpuOptions { memory: Some(16 << 30), ..CpuOptions::default() };
    LoadOptions { devices: LoadOptions::devices(Vec::new(), cpu), ..LoadOptions::default() }
}

fn load(name: &str, numeric: Numeric) -> Engine {
    load_with_kv(name, numeric, None)
}

fn load_with_kv(name: &str, numeric: Numeric, kv_type: Option<KvType>) -> Engine {
    let options = LoadOptions {
        numeric: Some(numeric),
        kv_type,
        max_logit_rows: 256,
        context: Some(1024),
        ..options()
    };
    Engine::load(&model(name), options, &mut |_, _| ()).unwrap()
}

/// Debian's copy of the GPL, the text whose perplexity llama.cpp was measured on.
const TEXT: &str = "/usr/share/common-licenses/GPL-3";

/// Its first `1 / part`.
fn text(part: usize) -> String {
    let mut text = std::fs::read_to_string(TEXT).expect("Debian's base-files carries this text");
    // Plain ASCII.
    text.truncate(text.len() / part);
    text
}

/// A model whose perplexity llama.cpp 0.7.0 has measured, in windows of 512 tokens.
struct Measured {
    name: &'static str,
    /// The text is its first `1 / part`.
    part: usize,
    /// What llama.cpp printed after as many windows as that has.
    perplexity: f64,
}

/// Fast mode is close to exact mode, and both to llama.cpp.
fn assert_close(measured: Measured) {
    let Measured { name, part, perplexity } = measured;
    let (mut exact, mut fast) = (load(name, Numeric::Exact), load(name, Numeric::Fast));
    let result = compare(&mut exact, &mut fast, &text(part), 512, &mut |_, _| ()).unwrap();
    println!(
        "{name}: divergence {:.5}, perplexities {:?} for {perplexity}, agreement {:.3}",
        result.mean_divergence, result.perplexities, result.top_agreement
    );
    assert!(result.mean_divergence < 0.01);
    assert!(result.top_agreement > 0.93);
    let (exact, fast) = result.perplexities;
    assert!((fast / exact - 1.0).abs() < 0.005, "{name}: {fast} for {exact}");
    for found in [exact, fast] {
        assert!((found / perplexity - 1.0).abs() < 0.01, "{name}: {found} for {perplexity}");
    }
}

/// On parts of the text: seven windows and three of fourteen.
#[test]
fn perplexities_of_parts_are_those_of_llama_cpp() {
    assert_close(Measured { name: "smollm2.gguf", part: 2, perplexity: 18.2284 });
    assert_close(Measured { name: "gemma3.gguf", part: 4, perplexity: 13.8515 });
}

#[test]
#[ignore = "takes minutes: scripts/acceptance runs it"]
fn perplexities_are_those_of_llama_cpp() {
    assert_close(Measured { name: "smollm2.gguf", part: 1, perplexity: 18.3914 });
    assert_close(Measured { name: "gemma3.gguf", part: 1, perplexity: 13.9062 });
}

/// Keys and values in bytes cost little more than halves do: measured 0.0031 and 0.0032 nats on the whole
/// text, where halves are 0.0025 and 0.0021 from f32. A twelfth of it leaves more to chance.
#[test]
fn bytes_of_keys_and_values_stay_close_to_halves() {
    for (name, part, drift) in [("smollm2.gguf", 4, 0.01), ("gemma3.gguf", 12, 0.03)] {
        let load = |ty| load_with_kv(name, Numeric::Fast, Some(ty));
        let (mut halves, mut bytes) = (load(KvType::F16), load(KvType::Q8));
        let result = compare(&mut halves, &mut bytes, &text(part), 512, &mut |_, _| ()).unwrap();
        let (expected, found) = result.perplexities;
        println!("{name}: divergence {:.5}, {expected} to {found}", result.mean_divergence);
        assert!(result.mean_divergence > 0.0 && result.mean_divergence < 0.007, "{name}");
        assert!((found / expected - 1.0).abs() < drift, "{name}: {found} against {expected}");
        assert!(result.top_agreement > 0.93, "{name}: {}", result.top_agreement);
    }
}

fn answer(engine: &mut Engine, request: &Request) -> (String, Finish, usize) {
    let mut text = String::new();
    let answer = engine
        .generate(request, &mut |piece| {
            text.push_str(piece);
            ControlFlow::Continue(())
        })
        .unwrap();
    (text, answer.finish, answer.usage.cached_tokens)
}

fn request(prompt: Vec<u32>, sampling: Sampling, tokens: usize) -> Request {
    Request { sampling, max_tokens: Some(tokens), ..Request::new(prompt) }
}

#[test]
fn smollm2_answers_and_the_second_turn_keeps_the_first() {
    // What was kept was computed in other steps than what starts over.
    let options = LoadOptions { reproducible: true, context: Some(1024), ..options() };
    let mut engine = Engine::load(&model("smollm2.gguf"), options, &mut |_, _| ()).unwrap();
    let mut conversation = Conversation::new(vec![Message::new("user", "Why is the sky blue?")]);
    let tokens = |engine: &Engine, conversation: &Conversation| {
        let text = engine.text().unwrap();
        let (template, _) = text.template.as_ref().unwrap();
        template.render_tokens(conversation, &text.tokenizer).unwrap()
    };
    let prompt = tokens(&engine, &conversation);
    let (first, finish, cached) =
        answer(&mut engine, &request(prompt.clone(), Sampling::greedy(), 60));
    assert!(first.contains("Rayleigh scattering"), "{first}");
    assert_eq!((finish, cached), (Finish::MaxTokens, 0));
    conversation.messages.push(Message::new("assistant", first.as_str()));
    conversation.messages.push(Message::new("user", "And at sunset?"));
    let second = tokens(&engine, &conversation);
    let (reply, _, cached) = answer(&mut engine, &request(second.clone(), Sampling::greedy(), 32));
    assert!(cached >= prompt.len(), "{cached} of {} tokens were kept", prompt.len());
    // What was kept gives the same text as starting over.
    engine.reset();
    assert_eq!(answer(&mut engine, &request(second, Sampling::greedy(), 32)).0, reply);
}

#[test]
fn a_seed_decides_the_text_and_stop_texts_end_it() {
    let mut engine = load("smollm2.gguf", Numeric::Fast);
    let prompt =
        engine.text().unwrap().tokenizer.encode("Once upon a time", SpecialTokens::Plain).unwrap();
    let seeded = |seed| {
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        Request { seed: Some(seed), ..request(prompt.clone(), sampling, 40) }
    };
    let mut text = |seed| answer(&mut engine, &seeded(seed)).0;
    let (first, second, other) = (text(1), text(1), text(2));
    assert_eq!(first, second);
    assert_ne!(first, other);
    // A stop text from the middle of the answer cuts it there, though it spans tokens.
    let stop: String = first.chars().skip(10).take(9).collect();
    let mut stopped = seeded(1);
    stopped.stop = vec![stop.clone()];
    let (text, finish, _) = answer(&mut engine, &stopped);
    assert_eq!((text, finish), (first[..first.find(&stop).unwrap()].to_string(), Finish::StopText));
}

#[test]
fn a_full_context_is_said_and_an_overlong_prompt_refused() {
    let options = LoadOptions { context: Some(24), ..options() };
    let mut engine = Engine::load(&model("smollm2.gguf"), options, &mut |_, _| ()).unwrap();
    let mut filling = request(vec![1; 20], Sampling::greedy(), 100);
    filling.ignore_end = true;
    let (_, finish, _) = answer(&mut engine, &filling);
    assert_eq!(finish, Finish::ContextFull);
    let error = engine
        .generate(&request(vec![1; 25], Sampling::greedy(), 1), &mut |_| ControlFlow::Continue(()));
    let message = error.unwrap_err().to_string();
    assert!(message.contains("25 tokens are needed, the context holds 24"), "{message}");
}

/// A conversation's next message, behind what was said.
fn next_turn(
    engine: &Engine,
    conversation: &mut Conversation,
    said: Option<&str>,
    message: &str,
) -> Vec<u32> {
    if let Some(said) = said {
        conversation.messages.push(Message::new("assistant", said));
    }
    conversation.messages.push(Message::new("user", message));
    let text = engine.text().unwrap();
    let (template, _) = text.template.as_ref().unwrap();
    template.render_tokens(conversation, &text.tokenizer).unwrap()
}

#[test]
fn gemma3_goes_on_where_it_was_even_after_twenty_other_conversations() {
    let options = LoadOptions { lanes: 8, ..options() };
    let mut engine = Engine::load(&model("gemma3.gguf"), options, &mut |_, _| ()).unwrap();
    let story: String = (0..160)
        .map(|day| format!("On day {day} the ship sailed {} miles. ", day * 7 % 50))
        .collect();
    let mut conversation = Conversation::new(vec![]);
    let question = format!("{story}How far did the ship sail on day 3?");
    let first = next_turn(&engine, &mut conversation, None, &question);
    assert!(first.len() > 2000, "{} tokens", first.len());
    let mut seen = first.clone();
    let mut said = String::new();
    let first_answer = engine
        .generate(&request(first, Sampling::greedy(), 24), &mut |piece| {
            said.push_str(piece);
            ControlFlow::Continue(())
        })
        .unwrap();
    // The last token was said, and not read yet.
    seen.extend(&first_answer.tokens[..first_answer.tokens.len() - 1]);
    let mut turn = |engine: &mut Engine, said: &str, message: &str| {
        let prompt = next_turn(engine, &mut conversation, Some(said), message);
        let alike = prompt.iter().zip(&seen).take_while(|(a, b)| a == b).count();
        assert!(alike + 1 >= seen.len(), "the answer is spelled otherwise when it is read");
        let before = engine.counters();
        let mut text = String::new();
        let answer = engine
            .generate(&request(prompt.clone(), Sampling::greedy(), 24), &mut |piece| {
                text.push_str(piece);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(answer.usage.cached_tokens, seen.len());
        let rows = (engine.counters().rows - before.rows) as usize;
        // The new tokens of the prompt, and all that was generated but the last.
        assert_eq!(rows, prompt.len() - seen.len() + answer.tokens.len() - 1);
        seen = prompt;
        seen.extend(&answer.tokens[..answer.tokens.len() - 1]);
        text
    };
    let second = turn(&mut engine, &said, "And on day 5?");
    for other in 0..20 {
        let mut conversation = Conversation::new(vec![]);
        let message = format!("Conversation {other}: {}", &story[..300]);
        let prompt = next_turn(&engine, &mut conversation, None, &message);
        engine.submit(request(prompt, Sampling::greedy(), 8)).unwrap();
    }
    while engine.is_busy() {
        engine.step().unwrap();
    }
    turn(&mut engine, &second, "And on day 7?");
}

#[test]
fn special_tokens_are_spelled_out_where_asked() {
    let mut engine = load("smollm2.gguf", Numeric::Fast);
    let tokenizer = &engine.text().unwrap().tokenizer;
    let prompt = tokenizer.encode("Once upon a time", SpecialTokens::Plain).unwrap();
    // Nothing but the end of a turn.
    let logit_bias = vec![(tokenizer.stop_tokens()[0], 1e4)];
    let sampling = Sampling { logit_bias, ..Sampling::greedy() };
    let hidden = Request { ignore_end: true, ..request(prompt, sampling, 3) };
    let shown = Request { show_special: true, ..hidden.clone() };
    assert_eq!(answer(&mut engine, &hidden).0, "");
    let shown = answer(&mut engine, &shown).0;
    assert!(shown.len() > 3 * "<||>".len() && shown.starts_with("<|"), "{shown}");
}

/// Logits of the last row of each prompt, all prompts in one play or each in a play of its own.
fn last_logits(engine: &mut Engine, prompts: &[Vec<u32>], together: bool) -> Vec<Vec<f32>> {
    let plan = engine.plan();
    let (groups, lanes) = (plan.graph.kv_groups.len(), plan.options.sequences as u32);
    let recording = engine.recording_mut::<CpuRecording>().unwrap();
    for group in 0..groups {
        (0..lanes).for_each(|lane| recording.map_page(group, lane as usize, 0, lane));
    }
    let mut found = Vec::new();
    let lanes: Vec<usize> = (0..prompts.len()).collect();
    for lanes in lanes.chunks(if together { prompts.len() } else { 1 }) {
        let mut step = Step::default();
        for &lane in lanes {
            for (position, &token) in prompts[lane].iter().enumerate() {
                let last = position + 1 == prompts[lane].len();
                step.push(token, lane as u32, position as u32, last);
            }
        }
        recording.play(&step).unwrap();
        found.extend((0..lanes.len()).map(|row| recording.logits(0, row).to_vec()));
    }
    found
}

#[test]
fn logits_are_the_same_alone_and_among_31_others() {
    for (name, numeric) in [("smollm2.gguf", Numeric::Fast), ("gemma3.gguf", Numeric::Fast)] {
        let options = LoadOptions {
            numeric: Some(numeric),
            lanes: 32,
            // Together they are rows enough for another form of the products.
            reproducible: true,
            context: Some(64),
            ..options()
        };
        let mut engine = Engine::load(&model(name), options, &mut |_, _| ()).unwrap();
        // Decoding lanes beside prompts of many lengths.
        let length = |lane: u32| if lane.is_multiple_of(3) { 1 } else { 1 + lane % 20 };
        let prompt = |lane: u32| (0..length(lane)).map(|at| lane * 31 + at * 7 + 5).collect();
        let prompts: Vec<Vec<u32>> = (0..32).map(prompt).collect();
        let together = last_logits(&mut engine, &prompts, true);
        let alone = last_logits(&mut engine, &prompts, false);
        for (lane, (together, alone)) in together.iter().zip(&alone).enumerate() {
            let bits = |row: &[f32]| row.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
            assert!(bits(together) == bits(alone), "{name}: lane {lane} depends on the others");
        }
        assert_ne!(alone[0], alone[1]);
    }
}
