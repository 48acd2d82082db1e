use super::*;
use crate::error::ErrorKind;
use crate::running::FinishReason;
use crate::running::made::{arguments, call, text};
use pianola_engine::Usage;
use serde_json::Map;

fn head() -> ResponseHead {
    let read = ("files".to_string(), "read".to_string());
    ResponseHead {
        id: "resp_1".into(),
        created: 5,
        model: "m".into(),
        echo: Map::from_iter([("store".to_string(), json!(true))]),
        namespaces: [("files__read".to_string(), read)].into(),
    }
}

fn end(reason: FinishReason) -> ResponseEnd {
    let usage =
        Usage { prompt_tokens: 100, cached_tokens: 64, generated_tokens: 7, ..Usage::default() };
    ResponseEnd { reason, usage, reasoning_tokens: 3 }
}

/// Thoughts, a text and two calls.
fn updates() -> Vec<UpdateEvent> {
    vec![
        UpdateEvent::Reasoning("I lo".into()),
        UpdateEvent::Reasoning("ok.".into()),
        text("Let me"),
        text(" see."),
        call(0, "c1", "files__read"),
        arguments(0, "{\"path\":"),
        arguments(0, "\"a\"}"),
        call(1, "c2", "list"),
        arguments(1, "{}"),
    ]
}

/// The events of a stream; checks that they are numbered.
fn parse(stream: &str) -> Vec<(String, Value)> {
    let events = stream.split("\n\n").filter(|event| !event.is_empty()).enumerate();
    let parsed = events.map(|(number, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        let name = name.strip_prefix("event: ").unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        (name.to_string(), data)
    });
    parsed.collect()
}

fn stream(updates: Vec<UpdateEvent>, last: &ResponseEnd) -> (Vec<(String, Value)>, Value) {
    let mut events = ResponseEvents::new(head());
    let mut all = events.start();
    updates.into_iter().for_each(|update| all += &events.push(update));
    let (text, response) = events.end(last);
    (parse(&(all + &text)), response)
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.strip_prefix("response.").unwrap()).collect()
}

/// What a client makes of the events, by the items' last events and by their deltas.
fn assemble(events: &[(String, Value)]) -> (Vec<Value>, Vec<Value>) {
    let (mut done, mut grown) = (Vec::new(), Vec::<Value>::new());
    let add = |to: &mut Value, more: &Value| {
        *to = format!("{}{}", to.as_str().unwrap(), more.as_str().unwrap()).into();
    };
    for (name, data) in events {
        let index = data["output_index"].as_u64().unwrap_or(0) as usize;
        let part = |field: &str| data[field].as_u64().unwrap() as usize;
        match name.strip_prefix("response.").unwrap() {
            "output_item.added" => {
                assert_eq!(grown.len(), index);
                grown.push(data["item"].clone());
            }
            "output_item.done" => {
                grown[index]["status"] = data["item"]["status"].clone();
                done.push(data["item"].clone());
            }
            "content_part.added" => {
                assert_eq!(data["item_id"], grown[index]["id"]);
                grown[index]["content"].as_array_mut().unwrap().push(data["part"].clone());
            }
            "reasoning_summary_part.added" => {
                grown[index]["summary"].as_array_mut().unwrap().push(data["part"].clone());
            }
            "output_text.delta" => {
                add(&mut grown[index]["content"][part("content_index")]["text"], &data["delta"]);
            }
            "reasoning_summary_text.delta" => {
                add(&mut grown[index]["summary"][part("summary_index")]["text"], &data["delta"]);
            }
            "function_call_arguments.delta" => add(&mut grown[index]["arguments"], &data["delta"]),
            _ => {}
        }
    }
    (done, grown)
}

#[test]
fn a_long_wait_is_filled_with_numbered_events() {
    let mut events = ResponseEvents::new(head());
    let waiting = events.start() + &events.progress() + &events.progress();
    let found = parse(&(waiting + &events.push(text("Hi"))));
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).take(5).collect();
    let wait = "response.in_progress";
    assert_eq!(names, ["response.created", wait, wait, wait, "response.output_item.added"]);
    assert_eq!(found[3].1["response"]["status"], "in_progress");
}

#[test]
fn the_sequence_of_events() {
    let (events, _) = stream(updates(), &end(FinishReason::ToolCalls));
    let (added, done) = ("output_item.added", "output_item.done");
    let (thought, arguments) = ("reasoning_summary_text.delta", "function_call_arguments.delta");
    let expected = [
        ["created", "in_progress"].as_slice(),
        &[added, "reasoning_summary_part.added", thought, thought],
        &["reasoning_summary_text.done", "reasoning_summary_part.done", done],
        &[added, "content_part.added", "output_text.delta", "output_text.delta"],
        &["output_text.done", "content_part.done", done],
        &[added, arguments, arguments, "function_call_arguments.done", done],
        &[added, arguments, "function_call_arguments.done", done],
        &["completed"],
    ];
    assert_eq!(names(&events), expected.concat());
    assert_eq!(events[0].1["response"]["status"], "in_progress");
    assert_eq!(events[0].1["response"]["output"], json!([]));
    assert_eq!(events[0].1["response"]["store"], true);
}

#[test]
fn deltas_and_items_and_the_response_agree() {
    let (events, response) = stream(updates(), &end(FinishReason::ToolCalls));
    let (done, grown) = assemble(&events);
    assert_eq!(done, grown);
    assert_eq!(response["output"], json!(done));
    assert_eq!(events.last().unwrap().1["response"], response);
    let text =
        json!({ "type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": [] });
    let expected = json!([
        { "id": "rs_1_0", "type": "reasoning", "summary": [{ "type": "summary_text", "text": "I look." }],
          "encrypted_content": null, "status": "completed" },
        { "id": "msg_1_1", "type": "message", "role": "assistant", "content": [text], "status": "completed" },
        { "id": "fc_1_2", "type": "function_call", "call_id": "c1", "name": "read", "namespace": "files",
          "arguments": "{\"path\":\"a\"}", "status": "completed" },
        { "id": "fc_1_3", "type": "function_call", "call_id": "c2", "name": "list",
          "arguments": "{}", "status": "completed" },
    ]);
    assert_eq!(response["output"], expected);
    assert_eq!(response["status"], "completed");
    assert_eq!(
        response["usage"],
        json!({
            "input_tokens": 100,
            "input_tokens_details": { "cached_tokens": 64, "cache_write_tokens": 0 },
            "output_tokens": 7, "output_tokens_details": { "reasoning_tokens": 3 },
            "total_tokens": 107,
        })
    );
}

#[test]
fn an_answer_that_was_cut_off() {
    let (events, response) = stream(vec![text("Once")], &end(FinishReason::Length));
    assert_eq!(names(&events).last(), Some(&"incomplete"));
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(response["output"][0]["status"], "incomplete");
}

#[test]
fn an_answer_that_failed() {
    let mut events = ResponseEvents::new(head());
    let mut all = events.start();
    all += &events.push(text("Once"));
    all += &events.fail(&ApiError::new(ErrorKind::Internal, "the kernel failed"));
    let events = parse(&all);
    let expected = ["output_text.done", "content_part.done", "output_item.done", "failed"];
    assert_eq!(names(&events)[5..], expected);
    let response = &events.last().unwrap().1["response"];
    assert_eq!(
        response["error"],
        json!({ "code": "server_error", "message": "the kernel failed" })
    );
    assert_eq!(response["output"][0]["status"], "incomplete");
}

#[test]
fn an_answer_without_anything() {
    let (events, response) = stream(Vec::new(), &end(FinishReason::Stop));
    assert_eq!(names(&events), ["created", "in_progress", "completed"]);
    assert_eq!(response["output"], json!([]));
}
