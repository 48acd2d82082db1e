//! Chat templates through the public interface, with no model at hand.

use crate::golden;
use std::path::PathBuf;

use pianola_text::{
    ChatTemplate, Conversation, Error, Message, TemplateOrigin, Tokenizer, VocabularySource,
};
use serde_json::json;

#[test]
fn features_of_jinja_behave_as_in_python() {
    let cases = golden::cases();
    let features: Vec<_> = cases.iter().filter(|case| case["template"].is_string()).collect();
    assert!(features.len() > 10);
    for case in features {
        let source = case["template"].as_str().unwrap();
        golden::check(&ChatTemplate::new(source, "<s>", "</s>").unwrap(), case);
    }
}

fn ask(content: serde_json::Value) -> Conversation {
    Conversation::new(vec![Message { role: "user".into(), content, ..Message::default() }])
}

#[test]
fn built_in_templates_render() {
    let messages = || vec![Message::new("system", "Be brief."), Message::new("user", " Hi ")];
    let gemma = ChatTemplate::gemma("<bos>", "<eos>");
    assert_eq!(
        gemma.render(&Conversation::new(messages())).unwrap(),
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    );
    let chatml = ChatTemplate::chatml("", "<|im_end|>");
    assert_eq!(
        chatml.render(&Conversation::new(messages())).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let refused = gemma.render(&Conversation::new(vec![Message::new("assistant", "x")]));
    assert!(matches!(refused, Err(Error::Refused(message)) if message.contains("alternate")));
}

#[test]
fn parts_reach_a_template_in_the_form_it_knows() {
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let image = json!([{ "type": "image" }]);
    let text_only = ChatTemplate::new("{{ messages[0].content + '!' }}", "", "").unwrap();
    assert_eq!(text_only.render(&ask(parts.clone())).unwrap(), "a\nb!");
    assert!(matches!(text_only.render(&ask(image.clone())), Err(Error::Template(_))));
    let source = "{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}";
    let parts_only = ChatTemplate::new(source, "", "").unwrap();
    assert_eq!(parts_only.render(&ask(json!("a"))).unwrap(), "[a]");
    assert_eq!(parts_only.render(&ask(parts)).unwrap(), "[a][b]");
    let gemma = ChatTemplate::gemma("", "");
    assert!(gemma.render(&ask(image)).unwrap().contains("<start_of_image>"));
}

#[test]
fn arguments_of_calls_may_be_text() {
    let source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let render = |arguments: serde_json::Value| {
        let calls = json!([{ "function": { "name": "f", "arguments": arguments } }]);
        let message = Message { tool_calls: Some(calls), ..Message::new("assistant", "") };
        template.render(&Conversation::new(vec![message])).unwrap()
    };
    assert_eq!(render(json!("{\"b\": 1, \"a\": 2}")), "{\"b\": 1, \"a\": 2}");
    assert_eq!(render(json!({ "b": 1 })), "{\"b\": 1}");
    assert_eq!(render(json!("not json")), "\"not json\"");
}

#[test]
fn bad_templates_are_errors() {
    assert!(matches!(ChatTemplate::new("{% if %}", "", ""), Err(Error::Template(_))));
    for source in ["{{ messages[0].content.nothing.at_all }}", "{{ nothing | tojson }}"] {
        let template = ChatTemplate::new(source, "", "").unwrap();
        assert!(matches!(template.render(&ask(json!("x"))), Err(Error::Template(_))), "{source}");
    }
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
                   {% endfor %}{% endfor %}{% endfor %}";
    assert!(ChatTemplate::new(endless, "", "").unwrap().render(&ask(json!("x"))).is_err());
}

#[test]
fn messages_keep_fields_they_do_not_know() {
    let text = r#"{"role":"assistant","content":null,"name":"n","reasoning_content":"r"}"#;
    let message: Message = serde_json::from_str(text).unwrap();
    assert_eq!(message.other["reasoning_content"], "r");
    assert_eq!(serde_json::to_string(&message).unwrap(), text);
}

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Folder {
        let path = std::env::temp_dir().join(format!("pianola-text-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (name, text) in files {
            std::fs::write(path.join(name), text).unwrap();
        }
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tokenizer(markers: &[&str]) -> Tokenizer {
    let tokens: Vec<String> = markers.iter().map(|&marker| marker.to_owned()).collect();
    Tokenizer::from_vocabulary(VocabularySource {
        model: "gpt2",
        tokens: &tokens,
        token_types: Some(vec![3; tokens.len()]),
        ..VocabularySource::default()
    })
    .unwrap()
}

#[test]
fn a_folder_s_template_is_found() {
    let find = |name: &str, files: &[(&str, &str)], markers: &[&str]| {
        let folder = Folder::new(name, files);
        let found = ChatTemplate::from_folder(&folder.0, &tokenizer(markers));
        found.map(|found| found.map(|(template, origin)| (template.source().to_owned(), origin)))
    };
    let named = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
    let plain = r#"{"chat_template": "p"}"#;
    let (source, _) = find("named", &[("tokenizer_config.json", named)], &[]).unwrap().unwrap();
    assert_eq!(source, "d");
    let files = [("tokenizer_config.json", named), ("chat_template.json", plain)];
    let (source, origin) = find("json", &files, &[]).unwrap().unwrap();
    assert_eq!(source, "p");
    assert!(matches!(origin, TemplateOrigin::File(path) if path.ends_with("chat_template.json")));
    let files = [("tokenizer_config.json", named), ("chat_template.jinja", "j")];
    assert_eq!(find("jinja", &files, &[]).unwrap().unwrap().0, "j");

    let turns = ["<start_of_turn>", "<end_of_turn>"];
    let gemma = [("config.json", r#"{"model_type": "gemma3_text"}"#)];
    assert_eq!(find("gemma", &gemma, &turns).unwrap().unwrap().1, TemplateOrigin::Gemma);
    let chatml = ["<|im_start|>", "<|im_end|>"];
    assert_eq!(find("chatml", &gemma, &chatml).unwrap().unwrap().1, TemplateOrigin::ChatMl);
    assert_eq!(find("none", &gemma, &[]).unwrap(), None);
    assert!(find("damaged", &[("tokenizer_config.json", "{")], &[]).is_err());
}

#[test]
fn messages_are_plain_text_to_the_tokeniser() {
    // The vocabulary has no text, so that the tokens are the markers found.
    let tokenizer = tokenizer(&["<|a|>", "<|b|>"]);
    let tokens = |source: &str, content: &str| {
        let template = ChatTemplate::new(source, "", "").unwrap();
        template.render_tokens(&ask(json!(content)), &tokenizer)
    };
    let plain = "<|a|>{{ messages[0].content }}<|b|>";
    assert_eq!(tokens(plain, "<|b|><|a|>").unwrap(), [0, 1]);
    // Nor together with the template's own text.
    assert_eq!(tokens("<|a|>{{ messages[0].content }}|b|>", "<").unwrap(), [0]);
    // Trimmed, cut, or repeated.
    assert_eq!(tokens("<|a|>{{ messages[0].content | trim }}", " <|b|>\n").unwrap(), [0]);
    assert_eq!(tokens("<|a|>{{ messages[0].content[1:] }}", "x<|b|>").unwrap(), [0]);
    let twice = "{{ messages[0].content }}<|a|>{{ messages[0].content | tojson }}<|b|>";
    assert_eq!(tokens(twice, "<|b|>").unwrap(), [0, 1]);
    // A template that counts characters cannot be shown others.
    let counting = "<|a|>{{ messages[0].content | length }}";
    assert_eq!(tokens(counting, "harmless").unwrap(), [0]);
    assert!(matches!(tokens(counting, "<|b|>"), Err(Error::Inseparable)));
}
