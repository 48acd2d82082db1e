use super::*;
use crate::error::ErrorKind;
use crate::running::made::{arguments, call, text};
use pianola_engine::Usage;

fn head() -> MessageHead {
    MessageHead { id: "msg_1".into(), model: "m".into(), prompt_tokens: 100 }
}

fn end(reason: FinishReason, stop_text: Option<&str>) -> End {
    let usage =
        Usage { prompt_tokens: 100, cached_tokens: 64, generated_tokens: 7, ..Usage::default() };
    let stop_text = stop_text.map(str::to_string);
    End { reason, stop_text, usage, timing: Default::default() }
}

/// Thoughts, a text and two calls.
fn updates() -> Vec<UpdateEvent> {
    vec![
        UpdateEvent::Reasoning("I lo".into()),
        UpdateEvent::Reasoning("ok.".into()),
        text(""),
        text("Let me"),
        text(" see."),
        call(0, "t1", "read"),
        arguments(0, "{\"path\":"),
        arguments(0, "\"a\"}"),
        call(1, "t2", "list"),
    ]
}

/// The events of a stream.
fn parse(stream: &str) -> Vec<(String, Value)> {
    let events = stream.split("\n\n").filter(|event| !event.is_empty());
    let parsed = events.map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        let name = name.strip_prefix("event: ").unwrap();
        assert_eq!(data["type"], name);
        (name.to_string(), data)
    });
    parsed.collect()
}

fn stream(updates: Vec<UpdateEvent>, last: &End) -> Vec<(String, Value)> {
    let mut events = MessageEvents::new(head(), "req_1");
    let mut all = events.start();
    updates.into_iter().for_each(|update| all += &events.push(update));
    all += &events.last(last);
    parse(&all)
}

/// What a client makes of the events.
fn assemble(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    let mut json = Vec::<String>::new();
    let add = |to: &mut Value, more: &Value| {
        *to = format!("{}{}", to.as_str().unwrap(), more.as_str().unwrap()).into();
    };
    for (name, data) in events {
        let index = data["index"].as_u64().unwrap_or(0) as usize;
        match name.as_str() {
            "message_start" => message = data["message"].clone(),
            "content_block_start" => {
                assert_eq!(message["content"].as_array().unwrap().len(), index);
                message["content"].as_array_mut().unwrap().push(data["content_block"].clone());
                json.push(String::new());
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &data["delta"]);
                match delta["type"].as_str().unwrap() {
                    "text_delta" => add(&mut block["text"], &delta["text"]),
                    "thinking_delta" => add(&mut block["thinking"], &delta["thinking"]),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    "input_json_delta" => json[index] += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" if !json[index].is_empty() => {
                message["content"][index]["input"] = serde_json::from_str(&json[index]).unwrap();
            }
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = data["delta"][field].clone();
                }
                message["usage"] = data["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

fn whole_message(updates: Vec<UpdateEvent>, last: &End) -> Value {
    let mut blocks = Blocks::default();
    for update in updates {
        blocks.push(update);
    }
    message(&head(), blocks.list(), last)
}

#[test]
fn the_sequence_of_events() {
    let events = stream(updates(), &end(FinishReason::ToolCalls, None));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let (start, delta, stop) = ("content_block_start", "content_block_delta", "content_block_stop");
    let expected = [
        ["message_start", "ping"].as_slice(),
        &[start, delta, delta, delta, stop],
        &[start, delta, delta, stop],
        &[start, delta, delta, stop],
        &[start, stop],
        &["message_delta", "message_stop"],
    ];
    assert_eq!(names, expected.concat());
    let first = &events[0].1["message"];
    assert_eq!(first["content"], json!([]));
    assert_eq!(first["stop_reason"], Value::Null);
    assert_eq!(first["usage"]["input_tokens"], 100);
    assert_eq!(first["usage"]["output_tokens"], 0);
}

#[test]
fn streamed_and_whole_answers_agree() {
    let last = end(FinishReason::ToolCalls, None);
    let assembled = assemble(&stream(updates(), &last));
    assert_eq!(assembled, whole_message(updates(), &last));
    assert_eq!(
        assembled,
        json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
            "content": [
                { "type": "thinking", "thinking": "I look.", "signature": signature("I look.") },
                { "type": "text", "text": "Let me see." },
                { "type": "tool_use", "id": "t1", "name": "read", "input": { "path": "a" } },
                { "type": "tool_use", "id": "t2", "name": "list", "input": {} },
            ],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {
                "input_tokens": 36, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 64,
                "output_tokens": 7,
            },
        })
    );
}

#[test]
fn reasons_for_the_end() {
    let reason = |reason, stop_text| {
        let message = whole_message(vec![text("x")], &end(reason, stop_text));
        (message["stop_reason"].clone(), message["stop_sequence"].clone())
    };
    assert_eq!(reason(FinishReason::Stop, None), (json!("end_turn"), Value::Null));
    assert_eq!(reason(FinishReason::Stop, Some("END")), (json!("stop_sequence"), json!("END")));
    assert_eq!(reason(FinishReason::Length, None), (json!("max_tokens"), Value::Null));
}

#[test]
fn a_call_that_was_cut_off_is_not_told() {
    let updates = vec![call(0, "t1", "read"), arguments(0, "{\"path\":\"a")];
    let message = whole_message(updates, &end(FinishReason::Length, None));
    assert_eq!(message["content"], json!([]));
}

#[test]
fn an_answer_without_anything() {
    let events = stream(Vec::new(), &end(FinishReason::Stop, None));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["message_start", "ping", "message_delta", "message_stop"]);
}

#[test]
fn failures_are_events() {
    let error = ApiError::new(ErrorKind::Unavailable, "the device is lost");
    let events = parse(&MessageEvents::new(head(), "req_1").fail(&error));
    assert_eq!(events[0].0, "error");
    assert_eq!(events[0].1["error"]["type"], "overloaded_error");
    assert_eq!(events[0].1["request_id"], "req_1");
}
