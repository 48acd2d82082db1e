//! What `serve` does with requests of several parts, with tools and with schemas.

use crate::common::server::{Answer, Server, chat};
use serde_json::{Value, json};
use std::io::Read;

fn ask(server: &Server, path: &str, body: Value) -> Answer {
    server.post(path, "", &body.to_string())
}

/// The body of an answer that went well.
#[track_caller]
fn body(answer: &Answer) -> Value {
    answer.is(200, "");
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:#?}"))
}

/// A request of more parts than there is room for is answered whole.
#[test]
fn parts_wait_for_room() {
    let server = Server::tiny(&["--lanes", "1", "--queue", "1"]);
    let prompts: Vec<String> = (0..6).map(|index| format!("Prompt {index}")).collect();
    let request = json!({ "prompt": prompts, "n": 3, "max_tokens": 2, "echo": true });
    let found = body(&ask(&server, "/v1/completions", request.clone()));
    let choices = found["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 18);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let text = choice["text"].as_str().unwrap();
        assert!(text.starts_with(&prompts[index / 3]), "{index}: {text}");
        assert!(choice["finish_reason"].is_string(), "{choice}");
    }
    // The answers to a prompt share it: it counts once.
    let alone = json!({ "prompt": prompts, "max_tokens": 2 });
    let alone = body(&ask(&server, "/v1/completions", alone));
    assert_eq!(found["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"]);

    let mut streamed = request;
    streamed["stream"] = true.into();
    let streamed = ask(&server, "/v1/completions", streamed);
    streamed.is(200, "data: [DONE]");
    let ends = streamed.body.matches("\"finish_reason\":\"").count();
    assert_eq!(ends, 18, "{}", streamed.body);

    let inputs: Vec<String> = (0..20).map(|index| format!("Input {index}")).collect();
    let found = body(&ask(&server, "/v1/embeddings", json!({ "input": inputs })));
    assert_eq!(found["data"].as_array().unwrap().len(), 20);
}

/// A part that finds the queue full waits for others' requests, too; only the first is refused.
#[test]
fn parts_wait_for_others() {
    let server = Server::smollm2(&["--lanes", "1", "--queue", "1"]);
    let several = json!({
        "messages": [{ "role": "user", "content": "Hi" }], "n": 3, "max_tokens": 2,
    });
    let mut running = server.chat(4000, true);
    running.read_exact(&mut [0; 400]).unwrap();
    // Counted as waiting until its first step is over, which the stream's first event does not wait for.
    server.until("one runs", || server.gauge("pianola_requests_running") == 1);
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| ask(&server, "/v1/chat/completions", several.clone()));
        server.until("one waits", || server.gauge("pianola_requests_waiting") == 1);
        ask(&server, "/v1/chat/completions", several.clone()).is(429, "queue_full");
        drop(running);
        assert_eq!(body(&answer.join().unwrap())["choices"].as_array().unwrap().len(), 3);
    });
}

/// What is wrong with one part ends all, at once.
#[test]
fn a_failure_cancels_all_parts() {
    let server = Server::smollm2(&["--lanes", "2", "--context", "2048"]);
    let prompts = ["Once".to_string(), "word ".repeat(3000)];
    let request = json!({ "prompt": prompts, "max_tokens": 1900, "ignore_eos": true });
    ask(&server, "/v1/completions", request.clone()).is(400, "context_length_exceeded");
    server.until("none runs", || server.gauge("pianola_requests_running") == 0);
    let mut streamed = request;
    streamed["stream"] = true.into();
    ask(&server, "/v1/completions", streamed).is(200, "context_length_exceeded");
    server.until("none runs after a stream", || server.gauge("pianola_requests_running") == 0);
    let generated = server.gauge("pianola_generated_tokens_total");
    assert!(generated < 1900, "the other parts were generated to their end: {generated} tokens");
    server.post("/v1/chat/completions", "", &chat(2, false)).is(200, "\"length\"");
}

fn tool(parameters: Value, strict: Value) -> Value {
    json!({ "type": "function", "function": {
        "name": "note", "description": "Notes.", "parameters": parameters, "strict": strict } })
}

#[test]
fn schemas_that_cannot_be_enforced_are_refused_unless_told_otherwise() {
    let server = Server::smollm2(&["--context", "1024"]);
    let unique = json!({ "type": "object", "required": ["tags"], "additionalProperties": false,
        "properties": { "tags": { "type": "array", "maxItems": 2, "uniqueItems": true,
            "items": { "enum": ["a", "b"] } } } });
    let chat = |more: Value| {
        let mut request = json!({ "max_tokens": 64,
            "messages": [{ "role": "user", "content": "Note the tag a." }] });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&server, "/v1/chat/completions", request)
    };
    for choice in ["auto", "required"] {
        let strict = tool(unique.clone(), true.into());
        let refused = chat(json!({ "tools": [strict], "tool_choice": choice }));
        refused.is(400, "uniqueItems");
        refused.is(400, "\"param\":\"tools\"");
        let relaxed = tool(unique.clone(), Value::Null);
        chat(json!({ "tools": [relaxed], "tool_choice": choice })).is(200, "");
    }
    let format = |strict: Value| {
        let named = json!({ "name": "n", "schema": unique, "strict": strict });
        json!({ "response_format": { "type": "json_schema", "json_schema": named } })
    };
    chat(format(Value::Null)).is(400, "uniqueItems");
    chat(format(true.into())).is(400, "\"param\":\"response_format\"");
    let relaxed = body(&chat(format(false.into())));
    let content = relaxed["choices"][0]["message"]["content"].as_str().unwrap();
    let value: Value = serde_json::from_str(content).expect(content);
    assert!(value["tags"].is_array(), "{content}");
}

/// With tools and a schema an answer is a call or JSON by the schema; a forced call is a call.
#[test]
fn a_schema_and_tools_together() {
    let server = Server::smollm2(&["--context", "1024"]);
    // An answer that looks like a call of the tool in a family without markers.
    let schema = json!({ "type": "object", "required": ["name", "parameters"],
        "additionalProperties": false, "properties": {
            "name": { "const": "note" },
            "parameters": { "type": "object", "additionalProperties": false } } });
    let parameters = json!({ "type": "object", "required": ["text"], "additionalProperties": false,
        "properties": { "text": { "type": "string", "maxLength": 10 } } });
    let tools = [tool(parameters, true.into())];
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let mut kinds = Vec::new();
    for (choice, seeds) in [("auto", 6), ("none", 1), ("required", 1)] {
        for seed in 0..seeds {
            let found = body(&ask(
                &server,
                "/v1/chat/completions",
                json!({
                    "messages": [{ "role": "user", "content": "Note something." }],
                    "tools": tools, "tool_choice": choice, "response_format": format,
                    "max_tokens": 120, "seed": seed, "temperature": 1.5, "parallel_tool_calls": false,
                }),
            ));
            let answer = &found["choices"][0];
            let message = &answer["message"];
            let called = message["tool_calls"].is_array();
            let json = match called {
                true => message["tool_calls"][0]["function"]["arguments"].as_str(),
                false => message["content"].as_str(),
            };
            let value: Value = serde_json::from_str(json.unwrap()).expect("JSON");
            match called {
                true => assert!(value["text"].is_string(), "{answer}"),
                false => assert_eq!(value, json!({ "name": "note", "parameters": {} })),
            }
            let reason = if called { "tool_calls" } else { "stop" };
            assert_eq!(answer["finish_reason"], reason);
            kinds.push((choice, called));
        }
    }
    assert!(kinds.contains(&("required", true)) && !kinds.contains(&("required", false)));
    assert!(kinds.contains(&("none", false)));
}

fn weather() -> Value {
    json!({ "type": "object", "required": ["city"], "additionalProperties": false,
        "properties": { "city": { "type": "string", "maxLength": 12 } } })
}

/// Stop texts are not searched in forced calls, whose JSON they would cut.
#[test]
fn stop_texts_do_not_cut_forced_calls() {
    let server = Server::smollm2(&["--context", "1024"]);
    let messages = json!([{ "role": "user", "content": "How is the weather in Paris?" }]);
    for stop in ["}", ",", "{", "\""] {
        let found = body(&ask(
            &server,
            "/v1/chat/completions",
            json!({ "messages": messages, "tools": [tool(weather(), true.into())],
                "tool_choice": "required", "parallel_tool_calls": false, "stop": [stop],
                "temperature": 0, "max_tokens": 64 }),
        ));
        let choice = &found["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        assert_eq!(choice["message"]["content"], Value::Null, "{choice}");
        let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str();
        let arguments: Value = serde_json::from_str(arguments.unwrap()).expect("JSON");
        assert!(arguments["city"].is_string(), "{choice}");
    }
    let found = body(&ask(
        &server,
        "/v1/messages",
        json!({ "messages": messages, "tools": [{ "name": "note", "input_schema": weather() }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "stop_sequences": ["\"", ":"], "temperature": 0, "max_tokens": 64 }),
    ));
    assert_eq!(found["stop_reason"], "tool_use", "{found}");
    assert!(found["content"][0]["input"]["city"].is_string(), "{found}");
}

/// A forced call that the limit of tokens cuts leaves no markup in the answer's text.
#[test]
fn forced_calls_that_are_cut_leave_no_text() {
    let server = Server::smollm2(&["--context", "1024"]);
    let messages = json!([{ "role": "user", "content": "How is the weather in Paris?" }]);
    let tools = [tool(weather(), true.into())];
    for limit in [1, 3, 8, 14] {
        let found = body(&ask(
            &server,
            "/v1/chat/completions",
            json!({ "messages": messages, "tools": tools, "tool_choice": "required",
                "temperature": 0, "max_tokens": limit }),
        ));
        let choice = &found["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{choice}");
        assert!(choice["message"]["content"].as_str().unwrap_or_default().is_empty(), "{choice}");
        let found = body(&ask(
            &server,
            "/api/chat",
            json!({ "messages": messages, "tools": tools, "tool_choice": "required",
                "stream": false, "options": { "temperature": 0, "num_predict": limit } }),
        ));
        assert_eq!(found["message"]["content"], "", "{found}");
        let found = body(&ask(
            &server,
            "/v1/messages",
            json!({ "messages": messages, "tools": [{ "name": "note", "input_schema": weather() }],
                "tool_choice": { "type": "any" }, "temperature": 0, "max_tokens": limit }),
        ));
        assert_eq!((&found["content"], &found["stop_reason"]), (&json!([]), &json!("max_tokens")));
        let function = json!({ "type": "function", "name": "note", "parameters": weather() });
        let found = body(&ask(
            &server,
            "/v1/responses",
            json!({ "input": messages, "tools": [function], "tool_choice": "required",
                "temperature": 0, "max_output_tokens": limit }),
        ));
        let is_message = |item: &Value| item["type"] == "message";
        assert!(!found["output"].as_array().unwrap().iter().any(is_message), "{found}");
    }
}

/// The tokens of a stop text have no log probabilities in the answer, which ends before it.
#[test]
fn log_probabilities_end_with_the_text() {
    // What the model says has the stop text in it, by whatever kernels.
    let server = Server::smollm2(&["--context", "1024", "--reproducible"]);
    let request = json!({ "max_tokens": 64, "temperature": 0, "logprobs": true, "stop": ["\n3."],
        "messages": [{ "role": "user", "content": "List three colours: 1. 2. 3." }] });
    let found = body(&ask(&server, "/v1/chat/completions", request));
    let choice = &found["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty() && text.starts_with(content), "{text:?} for {content:?}");
    assert!(!text.contains("\n3"), "{text:?}");
}

#[test]
fn requests_that_cannot_be_followed() {
    let server = Server::tiny(&[]);
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let chat = |more: Value| {
        let mut request = json!({ "messages": messages, "max_tokens": 1 });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&server, "/v1/chat/completions", request)
    };
    chat(json!({ "guided_choice": ["a", "b"] })).is(400, "\"param\":\"guided_choice\"");
    chat(json!({ "tools": [{ "type": "custom", "custom": { "name": "f" } }] }))
        .is(400, "tools[0].type must be function");
    chat(json!({ "tools": [tool(json!({ "type": "array" }), Value::Null)] }))
        .is(400, "tools[0].function.parameters must be of type object");
    chat(json!({ "n": -1 })).is(400, "n must be between 1 and ");
    let prefilled = json!([messages[0], { "role": "assistant", "content": "Well," }]);
    ask(&server, "/api/chat", json!({ "messages": prefilled })).is(400, "prefilled");
    chat(json!({ "messages": prefilled })).is(200, "");
}

#[test]
fn older_and_newer_forms_of_tools() {
    let server = Server::tiny(&[]);
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let refused = |field: &str, value: Value| {
        let request = json!({ "messages": messages, field: value });
        ask(&server, "/v1/chat/completions", request).is(400, &format!("\"param\":\"{field}\""));
    };
    refused("functions", json!([{ "name": "f", "parameters": {} }]));
    refused("function_call", json!({ "name": "f" }));
    let past = json!([messages[0], { "role": "assistant", "content": null,
        "function_call": { "name": "f", "arguments": "{}" } }]);
    ask(&server, "/v1/chat/completions", json!({ "messages": past }))
        .is(400, "messages[1].function_call");
}

/// `keep_alive`, `raw` and fields that cannot be followed, as Ollama's clients send them.
#[test]
fn fields_of_ollama() {
    let server = Server::tiny(&[]);
    let generate = |more: Value| {
        let mut request = json!({ "prompt": "Hi", "raw": true, "stream": false,
            "options": { "num_predict": 1 } });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask(&server, "/api/generate", request)
    };
    for keep in [json!(-1), json!("-1m"), json!("5m"), json!(60), json!("1h30m")] {
        generate(json!({ "keep_alive": keep })).is(200, "\"done\":true");
    }
    for wrong in [json!("abc"), json!(""), json!([]), json!(true)] {
        generate(json!({ "keep_alive": wrong })).is(400, "keep_alive");
    }
    generate(json!({ "think": false, "images": [], "suffix": "", "template": "" })).is(200, "");
    generate(json!({ "think": true })).is(400, "think needs a chat template");
    generate(json!({ "think": "loud" })).is(400, "think must be");
    generate(json!({ "suffix": "end" })).is(400, "suffix");
    generate(json!({ "template": "{{ .Prompt }}" })).is(400, "template");
    generate(json!({ "images": ["aGk="] })).is(400, "images");
    let unload = json!({ "prompt": "", "keep_alive": 0 });
    ask(&server, "/api/generate", unload).is(200, "\"done_reason\":\"unload\"");
}
