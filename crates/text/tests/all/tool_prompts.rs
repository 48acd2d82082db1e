//! Conversations with tools through the templates of real models, which are third-party data and
//! not in this repository: scripts/test fetches them and names their folder in PIANOLA_TEST_MODELS.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::models::models;
use pianola_formats::Gguf;
use pianola_text::{ChatTemplate, Conversation, Message, Tokenizer, ToolFormat};
use serde_json::{Value, json};

struct Family {
    name: &'static str,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    format: ToolFormat,
}

fn family(models: &Path, name: &'static str) -> Family {
    let (tokenizer, found) = if name.ends_with(".gguf") {
        let path = models.join(name);
        let file = Gguf::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let tokenizer = Tokenizer::from_gguf(&file).unwrap();
        let found = ChatTemplate::from_gguf(&file, &tokenizer).unwrap();
        (tokenizer, found)
    } else {
        let folder = models.join("tokenizers").join(name);
        let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
        let config = read("tokenizer_config.json");
        let tokenizer =
            Tokenizer::from_tokenizer_json(&read("tokenizer.json"), Some(&config)).unwrap();
        let found = ChatTemplate::from_folder(&folder, &tokenizer).unwrap();
        (tokenizer, found)
    };
    let (template, _) = found.unwrap_or_else(|| panic!("{name} has no template"));
    let format = ToolFormat::of(&template, &tokenizer);
    Family { name, tokenizer, template, format }
}

#[test]
fn formats_are_detected() {
    let Some(models) = models() else { return };
    for (name, format, native, special) in [
        ("smollm2.gguf", ToolFormat::SmolLm, false, false),
        ("gemma3.gguf", ToolFormat::Gemma, false, false),
        ("gemma3", ToolFormat::Gemma, false, false),
        ("qwen2_5", ToolFormat::Hermes, true, false),
        ("qwen3", ToolFormat::Hermes, true, false),
        ("llama3", ToolFormat::Llama3, false, false),
        ("llama3_2", ToolFormat::Llama3, true, true),
        ("mistral_nemo", ToolFormat::Mistral, true, true),
    ] {
        let family = family(&models, name);
        assert_eq!(family.format, format, "{name}");
        assert_eq!(family.template.takes_tools(), native, "{name}");
        assert_eq!(family.template.takes_tool_calls(), native, "{name}");
        assert!(!native || family.template.takes_tool_messages(), "{name}");
        assert_eq!(family.format.needs_special_tokens(&family.tokenizer), special, "{name}");
    }
}

#[test]
fn prompts_with_tools_are_those_of_transformers() {
    let Some(models) = models() else { return };
    let golden: Value = serde_json::from_str(include_str!("golden/tools.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    for name in ["qwen2_5", "qwen3", "llama3_2", "mistral_nemo"] {
        let family = family(&models, name);
        let own: Vec<&Value> = cases.iter().filter(|case| case["model"] == name).collect();
        assert!(own.len() >= 4, "{name}");
        for case in own {
            let conversation = Conversation {
                tools: Some(golden["tools"].clone()),
                now: Some(UNIX_EPOCH + Duration::from_secs(1_709_210_096)),
                ..Conversation::new(serde_json::from_value(case["messages"].clone()).unwrap())
            };
            let adapted = family.format.adapt(conversation, &family.template);
            let ids = family.template.render_tokens(&adapted, &family.tokenizer).unwrap();
            let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            let text = |ids: &[u32]| family.tokenizer.decode(ids, true);
            assert_eq!(text(&ids), text(&expected), "{name}, {}", case["name"]);
            assert_eq!(ids, expected, "{name}, {}", case["name"]);
        }
    }
}

/// What clients send, a letter a message.
const KINDS: [char; 8] = ['s', 'd', 'u', 'a', 'c', 'C', 'P', 't'];

/// The message of a kind, and the texts in it that a prompt must have.
fn message(kind: char, at: usize) -> (Message, Vec<String>) {
    let said = format!("said-{at}.");
    let calls = |count: usize| -> Value {
        let call = |index: usize| {
            let arguments = format!("{{\"a\": \"argument-{at}-{index}.\"}}");
            let function = json!({ "name": "add", "arguments": arguments });
            let id = format!("call_{at}_{index}_0123456789abcdef");
            json!({ "type": "function", "id": id, "function": function })
        };
        (0..count).map(call).collect()
    };
    let arguments =
        |count: usize| (0..count).map(|index| format!("argument-{at}-{index}.")).collect();
    let speak = |role: &str| (Message::new(role, said.as_str()), vec![said.clone()]);
    match kind {
        's' => speak("system"),
        'd' => speak("developer"),
        'u' => speak("user"),
        'a' => speak("assistant"),
        't' => speak("tool"),
        // A call, one beside text, and two.
        'c' => {
            let message = Message { role: "assistant".into(), ..Message::default() };
            (Message { tool_calls: Some(calls(1)), ..message }, arguments(1))
        }
        'C' => {
            let message = Message::new("assistant", said.as_str());
            let texts = vec![said.clone(), format!("argument-{at}-0.")];
            (Message { tool_calls: Some(calls(1)), ..message }, texts)
        }
        'P' => {
            let message = Message::new("assistant", "");
            (Message { tool_calls: Some(calls(2)), ..message }, arguments(2))
        }
        other => panic!("no kind {other}"),
    }
}

fn render_sequence(family: &Family, kinds: &[char], tools: Option<&Value>) {
    let messages: Vec<(Message, Vec<String>)> =
        kinds.iter().enumerate().map(|(at, &kind)| message(kind, at)).collect();
    let conversation = Conversation {
        tools: tools.cloned(),
        ..Conversation::new(messages.iter().map(|(message, _)| message.clone()).collect())
    };
    let adapted = family.format.adapt(conversation, &family.template);
    let name = family.name;
    let text = family.template.render(&adapted).unwrap_or_else(|error| {
        panic!("{name} {kinds:?} {tools:?}: {error}\n{:#?}", adapted.messages)
    });
    let mut last = 0;
    for (message, needles) in &messages {
        for needle in needles {
            assert_eq!(text.matches(needle).count(), 1, "{name} {kinds:?} {needle}\n{text}");
            let at = text.find(needle).unwrap_or_default();
            // Results of several calls may move behind their calls, system messages to the front.
            if matches!(message.role.as_str(), "user" | "assistant") && !kinds.contains(&'P') {
                assert!(at > last, "{name} {kinds:?} {needle} is out of order\n{text}");
                last = at;
            }
        }
    }
    if tools.is_some() {
        assert!(text.contains("Adds two numbers"), "{name} {kinds:?}\n{text}");
    }
    if kinds.len() < 3 {
        family.template.render_tokens(&adapted, &family.tokenizer).unwrap();
    }
}

#[test]
fn every_sequence_of_roles_renders_on_every_family() {
    let Some(models) = models() else { return };
    let parameters = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
    let function =
        json!({ "name": "add", "description": "Adds two numbers", "parameters": parameters });
    let tools = json!([{ "type": "function", "function": function }]);
    let names = [
        "smollm2.gguf",
        "gemma3.gguf",
        "gemma3",
        "qwen2_5",
        "qwen3",
        "llama3",
        "llama3_2",
        "mistral_nemo",
    ];
    for name in names {
        let family = family(&models, name);
        for length in 1..=4u32 {
            for number in 0..KINDS.len().pow(length) {
                let kind = |place: u32| KINDS[number / KINDS.len().pow(place) % KINDS.len()];
                let kinds: Vec<char> = (0..length).map(kind).collect();
                if length < 4 {
                    render_sequence(&family, &kinds, None);
                }
                render_sequence(&family, &kinds, Some(&tools));
            }
        }
    }
}
