//! Conversations with calls, fitted to templates, with no model at hand.

use crate::support::work::Work;
use std::time::Duration;

use pianola_text::{ChatTemplate, Conversation, Message, ToolFormat};
use serde_json::{Value, json};

fn conversation(messages: Value, tools: Option<Value>) -> Conversation {
    Conversation { tools, ..Conversation::new(serde_json::from_value(messages).unwrap()) }
}

fn add_tool() -> Value {
    let parameters = json!({ "type": "object", "properties": { "a": { "type": "number" } } });
    let function = json!({ "name": "add", "description": "Adds.", "parameters": parameters });
    json!([{ "type": "function", "function": function }])
}

#[test]
fn templates_without_tools_get_them_as_text() {
    let call =
        |id: &str| json!({ "id": id, "function": { "name": "add", "arguments": "{\"a\":1}" } });
    let messages = json!([
        { "role": "user", "content": "1 + 1?" },
        { "role": "assistant", "content": null, "tool_calls": [call("x"), call("y")] },
        { "role": "tool", "tool_call_id": "y", "content": [{ "type": "text", "text": "2" }] },
        { "role": "tool", "content": "3" },
        { "role": "user", "content": "And?" },
    ]);
    let gemma = ChatTemplate::gemma("<bos>", "<eos>");
    let adapted = ToolFormat::Gemma.adapt(conversation(messages.clone(), Some(add_tool())), &gemma);
    assert_eq!(adapted.tools, None);
    let text = gemma.render(&adapted).unwrap();
    let (system, rest) = text.split_once("1 + 1?").unwrap();
    assert!(system.starts_with("<bos><start_of_turn>user\nYou can call tools."), "{system}");
    let described = "{\"name\": \"add\", \"description\": \"Adds.\", \"parameters\": {\"type\": ";
    assert!(system.contains(described), "{system}");
    assert_eq!(
        rest,
        "<end_of_turn>\n<start_of_turn>model\n{\"name\": \"add\", \"parameters\": {\"a\":1}}\n\
         {\"name\": \"add\", \"parameters\": {\"a\":1}}<end_of_turn>\n<start_of_turn>user\n\
         <tool_response>\nadd:\n2\n</tool_response>\n\n<tool_response>\nadd:\n3\n</tool_response>\
         \n\nAnd?<end_of_turn>\n<start_of_turn>model\n"
    );
    let chatml = ChatTemplate::chatml("", "");
    let adapted = ToolFormat::SmolLm.adapt(conversation(messages, None), &chatml);
    assert_eq!(
        chatml.render(&adapted).unwrap(),
        "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n<tool_call>\
         [{\"name\": \"add\", \"arguments\": {\"a\":1}}, {\"name\": \"add\", \"arguments\": {\"a\":1}}]\
         </tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nadd:\n2\n</tool_response>\n\n\
         <tool_response>\nadd:\n3\n</tool_response><|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n\
         <|im_start|>assistant\n"
    );
}

/// Takes tools, one call at a time with nine-letter ids, and no text beside it.
const STRICT: &str = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}\
    {% for m in messages %}{% if m.tool_calls %}\
    {% if m.tool_calls | length != 1 or m.tool_calls[0].id | length != 9 %}\
    {{ raise_exception('one call, nine letters') }}{% endif %}\
    ={{ m.tool_calls[0].id }}:{{ m.tool_calls[0].function | tojson }}\
    {% elif m.role == 'tool' %}>{{ m.tool_call_id }}:{{ m.name + ':' + m.content }}\
    {% else %}{{ m.role[0] + ':' + m.content }}{% endif %};{% endfor %}";

#[test]
fn calls_are_changed_only_where_a_template_refuses_them() {
    let template = ChatTemplate::new(STRICT, "", "").unwrap();
    assert!(
        template.takes_tools() && template.takes_tool_calls() && template.takes_tool_messages()
    );
    let render = |messages: Value| {
        let adapted = ToolFormat::Mistral.adapt(conversation(messages, None), &template);
        template.render(&adapted).unwrap()
    };
    let call = |id: &str, a: u32| json!({ "id": id, "function": { "name": "add", "arguments": { "a": a } } });
    let plain = json!([
        { "role": "user", "content": "u" },
        { "role": "assistant", "content": "", "tool_calls": [call("abcdefgh1", 1)] },
        { "role": "tool", "tool_call_id": "abcdefgh1", "name": "add", "content": "r" },
    ]);
    let written = "={id}:{\"name\": \"add\", \"arguments\": {\"a\": 1}};>{id}:add:r;";
    assert_eq!(render(plain), format!("u:u;{}", written.replace("{id}", "abcdefgh1")));

    let several = json!([
        { "role": "developer", "content": "d" },
        { "role": "assistant", "content": "t", "tool_calls": [call("call_one", 1), call("call_two", 2)] },
        { "role": "tool", "tool_call_id": "call_two", "content": "2" },
        { "role": "tool", "tool_call_id": "call_one", "content": "1" },
    ]);
    let text = render(several);
    let parts: Vec<&str> = text.split(';').collect();
    let [system, said, first, one, second, two, ""] = parts[..] else { panic!("{text}") };
    assert_eq!((system, said), ("s:d", "a:t"));
    for (call, result, number) in [(first, one, 1), (second, two, 2)] {
        let id = &call[1..10];
        assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{text}");
        let function = format!("={id}:{{\"name\": \"add\", \"arguments\": {{\"a\": {number}}}}}");
        assert_eq!(call, function);
        assert_eq!(result, format!(">{id}:add:{number}"));
    }

    let function = json!({ "name": "add", "arguments": "" });
    let old = json!([
        { "role": "user", "content": "u" },
        { "role": "assistant", "content": null, "function_call": function },
        { "role": "function", "name": "add", "content": "r" },
    ]);
    let text = render(old);
    assert_eq!(text, "u:u;=call00001:{\"name\": \"add\", \"arguments\": {}};>call00001:add:r;");
}

#[test]
fn joined_messages_keep_their_pictures() {
    let gemma = ChatTemplate::gemma("", "");
    let picture = json!([{ "type": "text", "text": "Look:" }, { "type": "image" }]);
    let messages = json!([
        { "role": "user", "content": "One." },
        { "role": "user", "content": picture },
        { "role": "user", "content": "Two." },
        { "role": "assistant", "content": "x" },
        { "role": "system", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
    ]);
    let adapted = ToolFormat::Gemma.adapt(conversation(messages, None), &gemma);
    let text = gemma.render(&adapted).unwrap();
    let turn = "<start_of_turn>user\na\nb\n\nOne.\n\nLook:<start_of_image>Two.<end_of_turn>\n";
    assert!(text.starts_with(turn), "{text}");
}

#[test]
fn a_template_that_is_stopped_is_not_tried_again_and_again() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
                   {% endfor %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(endless, "", "").unwrap();
    let work = Work::begin();
    let messages = vec![Message::new("user", "x")];
    assert!(template.render(&Conversation::new(messages)).is_err());
    let one = work.spent();
    let work = Work::begin();
    assert!(!template.takes_tools());
    assert!(work.spent() < 8 * one.max(Duration::from_millis(20)));
}

/// Results name calls in the opposite order; leftover results stay behind.
#[test]
fn long_conversations_take_linear_time() {
    const COUNT: usize = 50_000;
    const LENGTH: usize = 200;
    let chatml = ChatTemplate::chatml("", "");
    let gemma = ChatTemplate::gemma("", "");
    let strict = ChatTemplate::new(STRICT, "", "").unwrap();
    // Whether templates take tools is found once, and is not measured.
    assert!(!chatml.takes_tools() && !gemma.takes_tools() && strict.takes_tools());
    let adapt = |messages: Vec<Message>, format: ToolFormat, template: &ChatTemplate| {
        let work = Work::begin();
        let adapted = format.adapt(Conversation::new(messages), template).messages;
        // Milliseconds; minutes where every message is compared with, or copied for, every other.
        assert!(work.spent() < Duration::from_secs(10), "{:?}", work.spent());
        adapted
    };
    let many =
        |role: &str, content: Value| vec![Message { content, ..Message::new(role, "") }; COUNT];
    let system = adapt(many("system", "a".repeat(LENGTH).into()), ToolFormat::Generic, &chatml);
    assert_eq!(system[0].content.as_str().map(str::len), Some((LENGTH + 2) * COUNT - 2));
    let user = adapt(many("user", "a".repeat(LENGTH).into()), ToolFormat::Gemma, &gemma);
    assert_eq!(user[0].content.as_str().map(str::len), Some((LENGTH + 2) * COUNT - 2));
    let picture = json!([{ "type": "text", "text": "a" }, { "type": "image" }]);
    let pictures = adapt(many("user", picture), ToolFormat::Gemma, &gemma);
    assert_eq!(pictures[0].content.as_array().map(Vec::len), Some(2 * COUNT));

    let calls = |count: usize| -> Vec<Value> {
        let call = |n: usize| json!({ "id": format!("{n:09}"), "function": { "name": "f", "arguments": {} } });
        (0..count).map(call).collect()
    };
    let ask =
        Message { tool_calls: Some(calls(COUNT / 2).into()), ..Message::new("assistant", "t") };
    let result = |n: usize| Message {
        tool_call_id: Some(format!("{n:09}")),
        ..Message::new("tool", n.to_string())
    };
    let mut messages = vec![Message::new("user", "u"), ask];
    messages.extend((0..COUNT / 2 + 1).rev().map(result));
    for (format, template) in [(ToolFormat::Mistral, &strict), (ToolFormat::Generic, &chatml)] {
        let adapted = adapt(messages.clone(), format, template);
        if format == ToolFormat::Mistral {
            // The question, the words beside the calls, pairs, and the result of no call.
            assert_eq!(adapted.len(), 2 + COUNT + 1);
            assert_eq!(
                (&adapted[2].tool_calls, &adapted[3].content),
                (&Some(json!(calls(1))), &json!("0"))
            );
            assert_eq!(adapted.last().unwrap().content, json!((COUNT / 2).to_string()));
        }
    }
}
