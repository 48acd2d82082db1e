//! `tools`, `tool_choice` and `response_format`.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{JsonRule, OutputRule, Tool, ToolChoice, Tools};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Most functions of a request.
const MAX_TOOLS: usize = 512;

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`. Tools of other types than functions name
/// services that this server does not have: they are left out of the prompt.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Tools, ApiError> {
    let mut list = Vec::new();
    for (index, tool) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, &format!("tools[{index}]"))?;
        if tool.text("type")?.unwrap_or("function") != "function" {
            continue;
        }
        let function = tool.object("function")?.ok_or_else(|| tool.missing("function"))?;
        add(fields, &mut list, read_function(&function)?)?;
    }
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let mut tools = Tools { list, choice: ToolChoice::Auto, parallel };
    match read_allowed(fields)? {
        Some(allowed) => {
            let allowed = allowed.object("allowed_tools")?.unwrap_or(allowed);
            restrict(&mut tools, &allowed, |tool| {
                let function = tool.object("function")?;
                Ok(function.as_ref().unwrap_or(tool).required_text("name")?.to_string())
            })?;
        }
        None => tools.choice = read_choice(fields)?,
    }
    checked(fields, tools)
}

/// `tool_choice` where it is of type `allowed_tools`.
pub(super) fn read_allowed<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>, ApiError> {
    match fields.value("tool_choice") {
        Some(choice) if choice["type"] == "allowed_tools" => fields.object("tool_choice"),
        _ => Ok(None),
    }
}

/// Keeps only the tools that `allowed.tools` lists; `name` reads the name of an entry. `allowed.mode` says
/// whether one of them has to be called.
pub(super) fn restrict(
    tools: &mut Tools,
    allowed: &Fields<'_>,
    name: impl Fn(&Fields<'_>) -> Result<String, ApiError>,
) -> Result<(), ApiError> {
    let known: HashSet<&str> = tools.list.iter().map(|tool| tool.name.as_str()).collect();
    let mut names = HashSet::new();
    let list = allowed.list("tools")?.ok_or_else(|| allowed.missing("tools"))?;
    for (index, tool) in list.iter().enumerate() {
        let tool = Fields::of(tool, &allowed.name(&format!("tools[{index}]")))?;
        if tool.text("type")?.unwrap_or("function") != "function" {
            continue;
        }
        let name = name(&tool)?;
        if !known.contains(name.as_str()) {
            let message =
                format!("tool_choice allows the function '{name}', which is not in tools");
            return Err(ApiError::invalid("tool_choice", message));
        }
        names.insert(name);
    }
    tools.list.retain(|tool| names.contains(&tool.name));
    tools.choice = match allowed.text("mode")?.unwrap_or("auto") {
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        _ => return Err(allowed.wrong("mode", "auto or required")),
    };
    Ok(())
}

/// Reads `tool_choice` where it is a word or names a function.
pub(super) fn read_choice(fields: &Fields<'_>) -> Result<ToolChoice, ApiError> {
    let must = "\"none\", \"auto\", \"required\" or an object that names a function";
    Ok(match fields.value("tool_choice") {
        None => ToolChoice::Auto,
        Some(Value::String(choice)) => match choice.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" | "any" => ToolChoice::Required,
            _ => return Err(fields.wrong("tool_choice", must)),
        },
        Some(choice) => {
            let name = choice["function"]["name"].as_str().or(choice["name"].as_str());
            ToolChoice::Named(name.ok_or_else(|| fields.wrong("tool_choice", must))?.to_string())
        }
    })
}

/// A function's name, description and parameters.
pub(crate) fn read_function(function: &Fields<'_>) -> Result<Tool, ApiError> {
    read_function_of(function, "parameters")
}

/// A function whose parameters are in the field `schema`.
pub(crate) fn read_function_of(function: &Fields<'_>, schema: &str) -> Result<Tool, ApiError> {
    let parameters = match function.value(schema) {
        Some(parameters @ Value::Object(_)) => {
            let is_object = |kind: &Value| kind == "object";
            let holds_object = match &parameters["type"] {
                Value::Null => true,
                Value::Array(kinds) => kinds.iter().any(is_object),
                kind => is_object(kind),
            };
            if !holds_object {
                return Err(function.wrong(schema, "of type object"));
            }
            parameters.clone()
        }
        Some(_) => return Err(function.wrong(schema, "a JSON schema")),
        None => json!({ "type": "object", "properties": {} }),
    };
    let name = function.required_text("name")?;
    if name.is_empty() || name.len() > 256 {
        return Err(function.wrong("name", "a name of 1 to 256 bytes"));
    }
    let description = function.text("description")?.map(str::to_string);
    let strict = function.flag("strict")?.unwrap_or(false);
    Ok(Tool { name: name.to_string(), description, parameters, strict })
}

/// Adds a function to those of a request, of which there is a limit.
pub(crate) fn add(fields: &Fields<'_>, list: &mut Vec<Tool>, tool: Tool) -> Result<(), ApiError> {
    if list.len() >= MAX_TOOLS {
        return Err(fields.wrong("tools", &format!("a list of at most {MAX_TOOLS} functions")));
    }
    list.push(tool);
    Ok(())
}

/// Names have to be unique, and a choice can only be of tools that there are.
pub(crate) fn checked(fields: &Fields<'_>, tools: Tools) -> Result<Tools, ApiError> {
    let mut seen = HashSet::new();
    if let Some(twice) = tools.list.iter().find(|tool| !seen.insert(tool.name.as_str())) {
        let message = format!("tools has two functions of the name '{}'", twice.name);
        return Err(ApiError::invalid("tools", message));
    }
    match &tools.choice {
        ToolChoice::Required if tools.list.is_empty() => {
            Err(fields.wrong("tool_choice", "\"none\" or \"auto\" where there are no functions"))
        }
        ToolChoice::Named(name) if !tools.list.iter().any(|tool| tool.name == *name) => {
            let message = format!("tool_choice names the function '{name}', which is not in tools");
            Err(ApiError::invalid("tool_choice", message))
        }
        _ => Ok(tools),
    }
}

/// Reads `response_format`.
pub(super) fn read_format(fields: &Fields<'_>) -> Result<OutputRule, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(OutputRule::Free) };
    match format.required_text("type")? {
        "text" => Ok(OutputRule::Free),
        "json_object" => Ok(match format.value("schema") {
            Some(schema) => {
                OutputRule::JsonSchema(JsonRule::strict("response_format", schema.clone()))
            }
            None => OutputRule::JsonObject,
        }),
        "json_schema" => {
            let named =
                format.object("json_schema")?.ok_or_else(|| format.missing("json_schema"))?;
            read_schema("response_format", &named)
        }
        _ => Err(format.wrong("type", "text, json_object or json_schema")),
    }
}

/// Reads `schema` and `strict`. With `strict: false` OpenAI promises no more than its best; here the answer
/// is valid by what a grammar can state of the schema. Absent, the answer has to be valid.
pub(super) fn read_schema(
    field: &'static str,
    fields: &Fields<'_>,
) -> Result<OutputRule, ApiError> {
    let schema = fields.value("schema").ok_or_else(|| fields.missing("schema"))?.clone();
    let strict = fields.flag("strict")?.unwrap_or(true);
    Ok(OutputRule::JsonSchema(JsonRule { field, schema, strict }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(choice: Value) -> Result<Tools, ApiError> {
        let function = |name: &str, strict: Value| json!({ "type": "function", "function": { "name": name, "strict": strict } });
        let tools = [function("f", true.into()), function("g", Value::Null)];
        read(&Fields::of(&json!({ "tools": tools, "tool_choice": choice }), "").unwrap())
    }

    #[test]
    fn strictness_is_read() {
        let tools = tools(Value::Null).unwrap();
        assert!(tools.list[0].strict && !tools.list[1].strict);
        let format = |strict: Value| {
            let named = json!({ "name": "n", "schema": { "type": "integer" }, "strict": strict });
            let body =
                json!({ "response_format": { "type": "json_schema", "json_schema": named } });
            match read_format(&Fields::of(&body, "").unwrap()).unwrap() {
                OutputRule::JsonSchema(rule) => rule.strict,
                other => panic!("{other:?}"),
            }
        };
        assert!(format(Value::Null) && format(true.into()) && !format(false.into()));
    }

    #[test]
    fn parameters_are_an_object() {
        let read = |parameters: Value| {
            let function = json!({ "name": "f", "parameters": parameters });
            read_function(&Fields::of(&function, "function").unwrap()).map(|_| ())
        };
        for right in [
            Value::Null,
            json!({}),
            json!({ "type": "object" }),
            json!({ "type": ["object", "null"] }),
            json!({ "anyOf": [{ "type": "object" }] }),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for wrong in [json!({ "type": "array" }), json!({ "type": ["string", "null"] })] {
            let error = read(wrong).unwrap_err();
            assert_eq!(error.message, "function.parameters must be of type object");
        }
    }

    #[test]
    fn tools_may_be_allowed() {
        let choice = |mode: &str, name: &str| {
            let tool = json!({ "type": "function", "function": { "name": name } });
            tools(
                json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": [tool] } }),
            )
        };
        let found = choice("required", "g").unwrap();
        assert_eq!((found.list.len(), found.list[0].name.as_str()), (1, "g"));
        assert_eq!(found.choice, ToolChoice::Required);
        assert_eq!(choice("auto", "f").unwrap().choice, ToolChoice::Auto);
        assert!(choice("auto", "h").unwrap_err().message.contains("'h'"));
        assert!(choice("never", "f").unwrap_err().message.contains("mode"));
    }

    #[test]
    fn names_are_unique_and_few() {
        let read = |names: &[String]| {
            let tools: Vec<Value> =
                names.iter().map(|name| json!({ "function": { "name": name } })).collect();
            read(&Fields::of(&json!({ "tools": tools }), "").unwrap())
        };
        assert!(read(&["f".into(), "f".into()]).unwrap_err().message.contains("'f'"));
        let mut names: Vec<String> = (0..MAX_TOOLS).map(|index| format!("f{index}")).collect();
        assert_eq!(read(&names).unwrap().list.len(), MAX_TOOLS);
        names.push("g".into());
        assert!(read(&names).unwrap_err().message.contains("at most 512"));
    }
}
