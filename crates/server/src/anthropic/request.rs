//! The fields of a request, besides its messages.

use super::messages;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Generation, JsonRule, OutputRule, Prompt, ToolChoice, Tools};
use crate::openai;
use pianola_text::Conversation;
use serde_json::json;

/// Reads all that makes up the prompt and restricts the answer.
pub(super) fn read(fields: &Fields<'_>) -> Result<Generation, ApiError> {
    refuse(fields)?;
    let mut conversation = Conversation::new(messages::read(fields)?);
    conversation.extra = openai::read_template_variables(fields)?;
    if !conversation.extra.contains_key("enable_thinking") {
        conversation.extra.insert("enable_thinking".into(), wants_thinking(fields)?.into());
    }
    let mut generation = Generation::new(Prompt::Chat(conversation));
    generation.tools = read_tools(fields)?;
    generation.output = read_format(fields)?;
    Ok(generation)
}

/// Reads how tokens are sampled and when the answer ends.
pub(super) fn read_sampling(
    fields: &Fields<'_>,
    generation: &mut Generation,
) -> Result<(), ApiError> {
    openai::read_sampler(fields, generation)?;
    let most = openai::read_positive(fields, "max_tokens")?;
    generation.max_tokens = Some(most.ok_or_else(|| fields.missing("max_tokens"))?);
    generation.stop = openai::read_stops(fields, "stop_sequences")?;
    Ok(())
}

/// Fields that cannot be ignored without changing what the request means.
fn refuse(fields: &Fields<'_>) -> Result<(), ApiError> {
    // A later request of a thread has its new messages only. Told so, clients send all of them.
    if fields.value("thread").is_some() {
        let message = "threads are not kept here; send the whole conversation without thread";
        let details =
            json!({ "error_code": "thread_unsupported_request", "unsupported": ["thread"] });
        return Err(ApiError {
            details: Some(Box::new(details)),
            ..ApiError::invalid("thread", message)
        });
    }
    if fields.list("mcp_servers")?.is_some_and(|servers| !servers.is_empty()) {
        let message = "mcp_servers is not supported: this server calls no others";
        return Err(ApiError::invalid("mcp_servers", message));
    }
    Ok(())
}

/// In this API a model thinks where it is asked to.
fn wants_thinking(fields: &Fields<'_>) -> Result<bool, ApiError> {
    match fields.object("thinking")? {
        None => Ok(false),
        Some(thinking) => match thinking.required_text("type")? {
            "enabled" | "adaptive" => Ok(true),
            "disabled" => Ok(false),
            _ => Err(thinking.wrong("type", "enabled, adaptive or disabled")),
        },
    }
}

/// Tools of other types than `custom` run on Anthropic's servers or are known to its models only:
/// they are left out of the prompt.
fn read_tools(fields: &Fields<'_>) -> Result<Tools, ApiError> {
    let mut list = Vec::new();
    for (index, tool) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, &format!("tools[{index}]"))?;
        if tool.text("type")?.is_none_or(|kind| kind == "custom") {
            let tool = openai::read_function_of(&tool, "input_schema")?;
            openai::add_tool(fields, &mut list, tool)?;
        }
    }
    let mut tools = Tools { list, choice: ToolChoice::Auto, parallel: true };
    if let Some(choice) = fields.object("tool_choice")? {
        tools.parallel = !choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
        tools.choice = match choice.required_text("type")? {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "tool" => ToolChoice::Named(choice.required_text("name")?.to_string()),
            "none" => ToolChoice::None,
            _ => return Err(choice.wrong("type", "auto, any, tool or none")),
        };
    }
    openai::checked_tools(fields, tools)
}

/// Reads `output_config.format`, and `output_format`, its name in earlier versions.
fn read_format(fields: &Fields<'_>) -> Result<OutputRule, ApiError> {
    let format = match fields.object("output_config")? {
        Some(config) => config.object("format")?,
        None => None,
    };
    let Some(format) = format.or(fields.object("output_format")?) else {
        return Ok(OutputRule::Free);
    };
    match format.required_text("type")? {
        "json_schema" => {
            let schema = format.value("schema").ok_or_else(|| format.missing("schema"))?;
            Ok(OutputRule::JsonSchema(JsonRule::strict("output_config.format", schema.clone())))
        }
        _ => Err(format.wrong("type", "json_schema")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Dialect, ErrorKind};
    use serde_json::Value;

    fn request(more: Value) -> Result<Generation, ApiError> {
        let mut body =
            json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 9 });
        let entries = more.as_object().cloned().unwrap_or_default();
        body.as_object_mut().unwrap().extend(entries);
        let fields = Fields::of(&body, "")?;
        let mut generation = read(&fields)?;
        read_sampling(&fields, &mut generation)?;
        Ok(generation)
    }

    fn error(more: Value) -> ApiError {
        match request(more) {
            Ok(_) => panic!("accepted"),
            Err(error) => error,
        }
    }

    fn thinks(generation: &Generation) -> bool {
        let Prompt::Chat(conversation) = &generation.prompt else { panic!("not a chat") };
        conversation.extra["enable_thinking"] == true
    }

    #[test]
    fn length_and_sampling() {
        let found = request(json!({
            "max_tokens": 64000, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
            "stop_sequences": ["END", ""],
        }))
        .unwrap();
        assert_eq!(found.max_tokens, Some(64000));
        assert_eq!((found.sampling.temperature, found.sampling.top_k), (0.5, 5));
        assert_eq!(found.stop, ["END"]);
        assert_eq!(error(json!({ "max_tokens": null })).param.as_deref(), Some("max_tokens"));
        assert_eq!(error(json!({ "max_tokens": 0 })).kind, ErrorKind::InvalidRequest);
    }

    #[test]
    fn what_coding_agents_send_is_accepted() {
        let found = request(json!({
            "thinking": { "type": "adaptive" },
            "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
            "output_config": { "effort": "high" },
            "metadata": { "user_id": "{\"device_id\":\"x\"}" },
            "service_tier": "auto",
            "tools": [
                { "name": "Read", "description": "Reads.", "input_schema": {
                    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                    "propertyNames": { "type": "string" },
                    "properties": { "n": { "type": "integer", "exclusiveMinimum": 0 } },
                } },
                { "type": "web_search_20250305", "name": "web_search", "max_uses": 8 },
                { "type": "custom", "name": "Write", "input_schema": { "type": "object" } },
            ],
        }))
        .unwrap();
        assert!(thinks(&found));
        let names: Vec<&str> = found.tools.list.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["Read", "Write"]);
        assert_eq!(found.tools.list[0].parameters["type"], "object");
        assert!(!thinks(&request(json!({})).unwrap()));
        assert!(!thinks(&request(json!({ "thinking": { "type": "disabled" } })).unwrap()));
        let enabled = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } });
        assert!(thinks(&request(enabled).unwrap()));
        let unknown = error(json!({ "thinking": { "type": "loud" } }));
        assert_eq!(unknown.param.as_deref(), Some("thinking.type"));
    }

    #[test]
    fn tool_choices() {
        let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
        let choice = |choice: Value| {
            request(json!({ "tools": tools, "tool_choice": choice })).map(|found| found.tools)
        };
        let any = choice(json!({ "type": "any", "disable_parallel_tool_use": true })).unwrap();
        assert_eq!((any.choice, any.parallel), (ToolChoice::Required, false));
        let named = choice(json!({ "type": "tool", "name": "f" })).unwrap();
        assert_eq!((named.choice, named.parallel), (ToolChoice::Named("f".into()), true));
        assert_eq!(choice(json!({ "type": "none" })).unwrap().choice, ToolChoice::None);
        let auto = choice(json!({ "type": "auto", "disable_parallel_tool_use": true })).unwrap();
        assert_eq!((auto.choice, auto.parallel), (ToolChoice::Auto, false));
        let twice = error(json!({ "tools": [tools[0], tools[0]] }));
        assert_eq!(twice.param.as_deref(), Some("tools"));
        let wrong = choice(json!({ "type": "always" })).err().unwrap();
        assert_eq!(wrong.param.as_deref(), Some("tool_choice.type"));
        let unknown = choice(json!({ "type": "tool", "name": "g" })).err().unwrap();
        assert!(unknown.message.contains("'g'"));
    }

    #[test]
    fn schemas() {
        let schema = json!({ "type": "object" });
        let format = json!({ "type": "json_schema", "schema": schema });
        let found = request(json!({ "output_config": { "format": format } })).unwrap();
        assert_eq!(
            found.output,
            OutputRule::JsonSchema(JsonRule::strict("output_config.format", schema))
        );
    }

    #[test]
    fn threads_are_refused_as_clients_expect() {
        let refused = error(json!({ "thread": { "type": "create" } }));
        assert_eq!(refused.kind.status(), 400);
        let body = refused.body(Dialect::Anthropic, "req_1");
        let details =
            json!({ "error_code": "thread_unsupported_request", "unsupported": ["thread"] });
        assert_eq!(body["error"]["details"], details);
        assert!(request(json!({ "thread": null })).is_ok());
    }
}
