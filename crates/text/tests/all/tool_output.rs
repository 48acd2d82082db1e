//! Calls in what models write, however it is cut.

use pianola_text::{OutputParser, ParserOptions, Piece, ReasoningMode, ToolFormat};
use proptest::prelude::*;

const FORMATS: [ToolFormat; 6] = [
    ToolFormat::Hermes,
    ToolFormat::SmolLm,
    ToolFormat::Llama3,
    ToolFormat::Mistral,
    ToolFormat::Gemma,
    ToolFormat::Generic,
];

fn options() -> ParserOptions {
    ParserOptions {
        tools: vec!["get_weather".into(), "add".into(), "now".into()],
        parallel_calls: true,
        json_answer: false,
        only_calls: false,
        reasoning: ReasoningMode::Tagged,
    }
}

/// The pieces of parts pushed one after another, neighbours of one kind merged.
fn parse<'a>(
    format: ToolFormat,
    options: &ParserOptions,
    parts: impl IntoIterator<Item = &'a str>,
) -> Vec<Piece> {
    let mut parser = OutputParser::new(format, options.clone());
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| parser.push(part)).collect();
    pieces.extend(parser.finish());
    let mut merged: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (merged.last_mut(), piece) {
            (Some(Piece::Text(text)), Piece::Text(more))
            | (Some(Piece::Reasoning(text)), Piece::Reasoning(more))
            | (Some(Piece::CallArguments(text)), Piece::CallArguments(more)) => {
                text.push_str(&more)
            }
            (_, piece) => merged.push(piece),
        }
    }
    merged
}

/// Pieces in short: `text`, `(reasoning)`, `name{arguments}.`
fn short(pieces: &[Piece]) -> String {
    let one = |piece: &Piece| match piece {
        Piece::Text(text) => format!("«{text}»"),
        Piece::Reasoning(text) => format!("({text})"),
        Piece::CallStart { name } => format!("@{name}"),
        Piece::CallArguments(text) => text.clone(),
        Piece::CallEnd => ".".into(),
    };
    pieces.iter().map(one).collect()
}

/// Parses the text whole, by characters, and cut in two and in three at every place.
fn check(format: ToolFormat, options: &ParserOptions, text: &str, expected: &str) {
    let whole = parse(format, options, [text]);
    assert_eq!(short(&whole), expected, "{format:?} {text:?}");
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let characters: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
    assert_eq!(parse(format, options, characters), whole, "{format:?} {text:?} by characters");
    for (index, &first) in cuts.iter().enumerate() {
        for &second in cuts[index..].iter().step_by(7) {
            let parts = [&text[..first], &text[first..second], &text[second..]];
            assert_eq!(parse(format, options, parts), whole, "{format:?} {parts:?}");
        }
    }
}

#[test]
fn calls_of_every_format_are_found() {
    use ToolFormat::*;
    let cases = [
        (
            Hermes,
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
            "@add{\"a\": 1}.",
        ),
        (
            Hermes,
            "I will look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"}</tool_call>\\\"\"}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
            "«I will look.\n»@add{\"a\": \"}</tool_call>\\\"\"}.@now{}.",
        ),
        (
            Hermes,
            "<think>\nHm, é.\n</think>\n\n<tool_call>{\"name\":\"now\",\"arguments\":{ }}</tool_call>\n",
            "(Hm, é.)@now{ }.",
        ),
        (
            Hermes,
            "<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"add\"}</tool_call>",
            "@add{\"a\": [1, {}]}.",
        ),
        (
            Hermes,
            "<tool_call>\n{{\"name\": \"add\", \"arguments\": {\"a\": 1}}}\n</tool_call>",
            "@add{\"a\": 1}.",
        ),
        (Hermes, "{{\"name\": \"add\", \"arguments\": {\"a\": 1}}}}\n", "@add{\"a\": 1}."),
        (
            Hermes,
            "```json\n{\n  \"name\": \"add\",\n  \"arguments\": {\"a\": 1}\n}\n```",
            "@add{\"a\": 1}.",
        ),
        (
            Hermes,
            "<tool_call>{\"id\": 7, \"name\": \"r\\u00e9\", \"arguments\": {}, \"x\": [\"}\"]}</tool_call> done",
            "@ré{}.« done»",
        ),
        (
            Hermes,
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}\n</tool_call>",
            "@add{\"a\": 1}.",
        ),
        (
            Hermes,
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1\n</tool_call>ok",
            "@add{\"a\": 1\n.«ok»",
        ),
        (Hermes, "<tool_call>{\"name\": \"now\"}</tool_call>", "@now{}."),
        (Hermes, "{\"name\": \"add\", \"arguments\": {\"a\": 2}}", "@add{\"a\": 2}."),
        (
            SmolLm,
            "<tool_call>[{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"now\", \"arguments\": {}}]</tool_call>",
            "@add{\"a\": 1}.@now{}.",
        ),
        (SmolLm, "<tool_call>[]</tool_call>", "«<tool_call>[]</tool_call>»"),
        (Llama3, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "@add{\"a\": 1}."),
        (
            Llama3,
            "<|python_tag|>{\"type\": \"function\", \"name\": \"add\", \"parameters\": {\"a\": 1}}",
            "@add{\"a\": 1}.",
        ),
        (
            Llama3,
            "{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
            "@add{}.@now{}.",
        ),
        (
            Llama3,
            "{\"name\": \"Bob\", \"parameters\": {}}",
            "«{\"name\": \"Bob\", \"parameters\": {}}»",
        ),
        (Llama3, "<|python_tag|>print(1)", "«<|python_tag|>print(1)»"),
        (
            Mistral,
            "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}, {\"name\": \"now\", \"arguments\": {}}]",
            "@add{\"a\": 1}.@now{}.",
        ),
        (
            Mistral,
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}]",
            "@add{\"a\": 1}.",
        ),
        (
            Mistral,
            "Yes.[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}",
            "«Yes.»@add{\"a\": 1}.@now{}.",
        ),
        (Mistral, "[TOOL_CALLS]add[OTHER]{}", "«[TOOL_CALLS]add[OTHER]{}»"),
        (
            Mistral,
            "{\"name\": \"add\", \"arguments\": {}}",
            "«{\"name\": \"add\", \"arguments\": {}}»",
        ),
        (Gemma, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "@add{\"a\": 1}."),
        (
            Gemma,
            "Sure:\n```json\n{\"name\": \"add\", \"parameters\": {\"a\": 1}}\n```\n",
            "«Sure:\n»@add{\"a\": 1}.",
        ),
        (Gemma, "```tool_code\n[{\"name\": \"now\", \"parameters\": {}}]\n```", "@now{}."),
        (
            Gemma,
            "```json\n{\"name\": \"Bob\", \"parameters\": {}}\n```",
            "«```json\n{\"name\": \"Bob\", \"parameters\": {}}\n```»",
        ),
        (
            Gemma,
            "```rust\nfn f() {}\n```\n{\"name\": \"add\", \"parameters\": {}}",
            "«```rust\nfn f() {}\n```\n{\"name\": \"add\", \"parameters\": {}}»",
        ),
        (Generic, "<tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>", "@other{}."),
        (
            Generic,
            "```text\n<tool_call>x\n```\n{\"name\": \"now\", \"parameters\": {}}",
            "«```text\n<tool_call>x\n```\n{\"name\": \"now\", \"parameters\": {}}»",
        ),
        (
            Generic,
            "[{\"name\": \"add\", \"parameters\": {}}, {\"name\": \"now\", \"parameters\": {}}] end",
            "@add{}.@now{}.« end»",
        ),
    ];
    for (format, text, expected) in cases {
        check(format, &options(), text, expected);
    }
}

#[test]
fn what_is_no_call_is_text() {
    let texts = [
        "",
        " \n",
        "Hello, wörld! 🙂",
        "a < b, <tool>, <tool_cal",
        "<tool_call>",
        "<tool_call>\n{\"name\": \"add\"",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": 5}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {'a': 1}}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>add(1)</tool_call> and <tool_call>",
        "{\"answer\": [1, 2, {\"name\": \"add\"}]}",
        "{\"name\": \"add\"}",
        "[1] is a reference",
        "{\"open",
        "```json\n{\"a\": 1}\n```\nand `x` and ``y`` ````",
        "[TOOL_CALLS",
        "[TOOL_CALLS]nothing",
        "<|python_tag|>",
        "x <think>no</think>",
    ];
    for format in FORMATS {
        for text in texts {
            let expected = if text.is_empty() { String::new() } else { format!("«{text}»") };
            check(format, &options(), text, &expected);
        }
    }
}

#[test]
fn a_call_after_something_like_one_is_found() {
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    for before in [
        "<tool_call>",
        "<tool_call>{\"a\" ",
        "<tool_call>[{\"name\": \"x\"",
        "{\"name\": \"Bob\"} ",
        "<",
    ] {
        let text = format!("{before}{call}");
        check(ToolFormat::Hermes, &options(), &text, &format!("«{before}»@now{{}}."));
    }
}

#[test]
fn markers_inside_one_another_take_linear_time() {
    let mut text = "<tool_call>{\"a\": [".repeat(50_000);
    text.push_str(&"]".repeat(50_000));
    let pieces = parse(ToolFormat::Hermes, &options(), [text.as_str()]);
    assert_eq!(pieces, [Piece::Text(text)]);
}

#[test]
fn an_answer_may_end_anywhere() {
    let text = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"b\"}}\n</tool_call>";
    let begun = text.find("\"a\"").unwrap() + 1;
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let pieces = parse(ToolFormat::Hermes, &options(), [&text[..end]]);
        if end < begun {
            assert_eq!(
                short(&pieces),
                if end == 0 { String::new() } else { format!("«{}»", &text[..end]) }
            );
        } else {
            let arguments = &text[begun - 2..end.min(text.find("}}").unwrap() + 1)];
            assert_eq!(short(&pieces), format!("@add{arguments}."));
        }
    }
}

#[test]
fn options_decide_what_is_looked_for() {
    let two = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    let one_call = ParserOptions { parallel_calls: false, ..options() };
    let second = "\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    check(ToolFormat::Hermes, &one_call, two, &format!("@add{{}}.«{second}»"));
    let list = "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]";
    let rest = ", {\"name\": \"now\", \"arguments\": {}}]";
    check(ToolFormat::Mistral, &one_call, list, &format!("@add{{}}.«{rest}»"));
    let no_tools = ParserOptions { tools: Vec::new(), ..options() };
    check(ToolFormat::Hermes, &no_tools, two, &format!("«{two}»"));
    check(ToolFormat::Hermes, &no_tools, " <think>a < b </think>\n\nc", "(a < b)«c»");
    check(ToolFormat::Hermes, &no_tools, "<think>\n\n</think>\n\nc", "«c»");
    check(ToolFormat::Hermes, &no_tools, "<think>never ends </thin", "(never ends </thin)");
    let off = ParserOptions { reasoning: ReasoningMode::Off, ..no_tools.clone() };
    check(ToolFormat::Hermes, &off, "<think>a</think>b", "«<think>a</think>b»");
    let open = ParserOptions { reasoning: ReasoningMode::of_prompt("x<think>\n"), ..no_tools };
    check(ToolFormat::Hermes, &open, "a</think>b", "(a)«b»");
    assert_eq!(ReasoningMode::of_prompt("x"), ReasoningMode::Tagged);
}

#[test]
fn every_call_syntax_is_read_back() {
    for format in FORMATS {
        let syntax = format.call_syntax();
        let key = syntax.arguments_key;
        let (open, close) = if syntax.list { ("[", "]") } else { ("", "") };
        let call = |name: &str| format!("{{\"name\": \"{name}\", \"{key}\": {{\"a\": 1}}}}");
        let calls = [call("add"), call("now")].join(syntax.separator);
        let text = format!("{}{open}{calls}{close}{}", syntax.begin, syntax.end);
        check(format, &options(), &text, "@add{\"a\": 1}.@now{\"a\": 1}.");
    }
}

fn fragments() -> impl Strategy<Value = Vec<&'static str>> {
    let fragment = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "```",
        "```json\n",
        "\n",
        "<think>",
        "</think>",
        "{",
        "}",
        "[",
        "]",
        "{\"name\": \"add\"",
        ", \"arguments\": {",
        "\"parameters\": {",
        "\"a\": ",
        "\"}\\\"\"",
        "add",
        "1",
        ",",
        ";",
        " ",
        "é🙂",
        "<",
        "`",
        "\"",
        "\\",
        "{}",
        "}}",
        "{\"name\": \"now\", \"arguments\": {}}",
    ]);
    prop::collection::vec(fragment, 0..24)
}

proptest! {
    #[test]
    fn pieces_do_not_depend_on_cuts(
        parts in fragments(),
        lengths in prop::collection::vec(1usize..9, 1..8),
        format in prop::sample::select(FORMATS.to_vec()),
        parallel_calls: bool,
    ) {
        let options = ParserOptions { parallel_calls, ..options() };
        let text = parts.concat();
        let whole = parse(format, &options, [text.as_str()]);
        prop_assert_eq!(&parse(format, &options, parts.iter().copied()), &whole);
        let mut rest = text.as_str();
        let mut cut = Vec::new();
        for length in lengths.iter().cycle() {
            let Some((at, _)) = rest.char_indices().nth(*length) else { break };
            cut.push(&rest[..at]);
            rest = &rest[at..];
        }
        cut.push(rest);
        prop_assert_eq!(&parse(format, &options, cut), &whole);
        // A call is opened, filled and closed, and arguments are what the model wrote.
        let mut open = false;
        for piece in &whole {
            match piece {
                Piece::CallStart { .. } => prop_assert!(!std::mem::replace(&mut open, true)),
                Piece::CallArguments(json) => {
                    let made = json == "{}";
                    prop_assert!(open && (made || text.contains(json.as_str())));
                },
                Piece::CallEnd => prop_assert!(std::mem::replace(&mut open, false)),
                Piece::Text(part) | Piece::Reasoning(part) => prop_assert!(!open && !part.is_empty()),
            }
        }
        prop_assert!(!open);
        if !whole.iter().any(|piece| matches!(piece, Piece::CallStart { .. } | Piece::Reasoning(_))) && !text.trim_start().starts_with("<think>") {
            let expected = if text.is_empty() { String::new() } else { format!("«{text}»") };
            prop_assert_eq!(short(&whole), expected);
        }
    }
}

/// Where the answer can only be calls, one that is cut off anywhere leaves no text behind.
#[test]
fn a_forced_call_that_is_cut_off_is_no_text() {
    for reasoning in [ReasoningMode::Off, ReasoningMode::Tagged, ReasoningMode::Open] {
        let forced = ParserOptions { only_calls: true, reasoning, ..options() };
        for format in FORMATS {
            let syntax = format.call_syntax();
            let (open, close) = if syntax.list { ("[", "]") } else { ("", "") };
            let object = format!(r#"{{"name": "add", "{}": {{"a": 1}}}}"#, syntax.arguments_key);
            let whole = format!("{}{open}{object}{close}{}", syntax.begin, syntax.end);
            check(format, &forced, &whole, r#"@add{"a": 1}."#);
            for cut in 0..whole.len() {
                let found = short(&parse(format, &forced, [&whole[..cut]]));
                let is_call = found.starts_with("@add{") && found.ends_with('.');
                assert!(found.is_empty() || is_call, "{format:?}: {found} of {}", &whole[..cut]);
            }
        }
    }
}

/// Where the answer is calls or JSON by a schema, JSON is never a call, whatever it looks like.
#[test]
fn an_answer_by_a_schema_is_no_call() {
    let json = ParserOptions { json_answer: true, ..options() };
    let call = r#"{"name": "add", "parameters": {"a": 1}}"#;
    let quoted = r#"{"text": "<tool_call>\n{\"name\": \"add\"} [TOOL_CALLS]add[ARGS]{} ```json"}"#;
    let spelled =
        "[[\"<tool_call>\", \"```json\\n\"]]\n<tool_call>{\"name\": \"now\", \"arguments\": {}}";
    for format in FORMATS {
        for text in [call, quoted, spelled, "[", "\"```\""] {
            check(format, &json, text, &format!("«{text}»"));
        }
        let syntax = format.marked_call_syntax();
        let (open, close) = if syntax.list { ("[", "]") } else { ("", "") };
        let object = format!(r#"{{"name": "add", "{}": {{"a": 1}}}}"#, syntax.arguments_key);
        let marked = format!("{}{open}{object}{close}{}", syntax.begin, syntax.end);
        check(format, &json, &marked, r#"@add{"a": 1}."#);
    }
}
