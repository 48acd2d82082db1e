//! Fields of `/v1/chat/completions` that cannot be ignored without changing what the request means.

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::Value;

/// Fields that are not supported, and what to use instead.
const REFUSED: [(&str, &str); 15] = [
    ("audio", "answers are text"),
    ("best_of", "use n and choose among the answers"),
    ("continue_final_message", "/v1/completions continues a text"),
    ("function_call", "use tool_choice, its successor"),
    ("functions", "use tools, its successor"),
    ("grammar", "use response_format of type json_schema"),
    ("guided_choice", "use response_format of type json_schema, with an enum"),
    ("guided_grammar", "use response_format of type json_schema"),
    ("guided_json", "use response_format of type json_schema"),
    ("guided_regex", "use response_format of type json_schema, with a pattern"),
    ("json_schema", "use response_format of type json_schema"),
    ("min_tokens", "an answer ends where the model ends it"),
    ("stop_token_ids", "use stop, with their text"),
    ("structured_outputs", "use response_format of type json_schema"),
    ("web_search_options", "this server searches nothing; offer a tool that does"),
];

/// Refuses such fields, unless their value asks for nothing.
pub(super) fn refuse(fields: &Fields<'_>) -> Result<(), ApiError> {
    for (field, instead) in REFUSED {
        if fields.value(field).is_some_and(|value| !asks_nothing(field, value)) {
            let message = format!("{field} is not supported here: {instead}");
            return Err(ApiError::invalid(field, message));
        }
    }
    let modalities = fields.texts("modalities")?;
    if modalities.iter().any(|modality| modality != "text") {
        return Err(fields.wrong("modalities", "[\"text\"]: answers are text"));
    }
    for (index, tool) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, &format!("tools[{index}]"))?;
        if tool.text("type")?.unwrap_or("function") != "function" {
            return Err(tool.wrong("type", "function: this server has no tools of its own"));
        }
    }
    Ok(())
}

fn asks_nothing(field: &str, value: &Value) -> bool {
    match value {
        Value::Bool(asked) => !asked,
        Value::Number(number) => {
            number.as_f64() == Some(0.0) || (field == "best_of" && number.as_f64() == Some(1.0))
        }
        Value::String(text) => {
            text.is_empty() || (field == "function_call" && (text == "none" || text == "auto"))
        }
        Value::Array(list) => list.is_empty(),
        // An empty object asks for a search.
        Value::Object(_) => false,
        Value::Null => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(body: Value) -> Option<ApiError> {
        refuse(&Fields::of(&body, "").unwrap()).err()
    }

    #[test]
    fn fields_with_a_meaning_are_refused_by_name() {
        for (field, value) in [
            ("audio", json!({ "voice": "alloy", "format": "wav" })),
            ("best_of", json!(2)),
            ("continue_final_message", json!(true)),
            ("function_call", json!({ "name": "f" })),
            ("functions", json!([{ "name": "f" }])),
            ("grammar", json!("root ::= \"a\"")),
            ("guided_choice", json!(["a", "b"])),
            ("guided_grammar", json!("start: \"a\"")),
            ("guided_json", json!({ "type": "integer" })),
            ("guided_regex", json!("a+")),
            ("json_schema", json!({})),
            ("min_tokens", json!(8)),
            ("stop_token_ids", json!([1])),
            ("structured_outputs", json!({ "choice": ["a"] })),
            ("web_search_options", json!({})),
            ("modalities", json!(["text", "audio"])),
        ] {
            let error = refused(json!({ field: value })).expect(field);
            assert_eq!(error.param.as_deref(), Some(field));
            assert!(error.message.starts_with(field), "{}", error.message);
        }
        let functions = refused(json!({ "functions": [{ "name": "f" }] })).unwrap();
        assert!(functions.message.contains("tools"));
    }

    #[test]
    fn the_reference_names_the_fields() {
        let page = include_str!("../../../../docs/reference/api.md");
        let start = page.find("Refused by name:").unwrap();
        let listed = page[start..].split("\n\n").next().unwrap();
        for (field, _) in REFUSED {
            assert!(listed.contains(&format!("`{field}`")), "{field}: {listed}");
        }
    }

    #[test]
    fn values_that_ask_for_nothing_are_accepted() {
        for (field, _) in REFUSED {
            assert!(refused(json!({ field: null })).is_none(), "{field}");
        }
        let body = json!({
            "modalities": ["text"], "functions": [], "function_call": "auto", "best_of": 1,
            "min_tokens": 0, "stop_token_ids": [], "continue_final_message": false, "grammar": "",
            "tools": [{ "type": "function", "function": { "name": "f" } }],
        });
        assert!(refused(body).is_none());
    }

    #[test]
    fn tools_of_unknown_types_are_refused() {
        for kind in ["custom", "web_search", "zzz"] {
            let function = json!({ "type": "function", "function": { "name": "f" } });
            let error = refused(json!({ "tools": [function, { "type": kind }] })).unwrap();
            assert_eq!(error.param.as_deref(), Some("tools[1].type"));
        }
    }
}
