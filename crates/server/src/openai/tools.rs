//! `tools`, `tool_choice` and `response_format`.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{OutputRule, Tool, ToolChoice, Tools};
use serde_json::{Value, json};

/// Most functions of a request.
const MOST_TOOLS: usize = 512;

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`. Tools of other types than functions are the
/// client's wishes for services that are not here: the model is not told of them.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Tools, ApiError> {
    let mut list = Vec::new();
    for (index, tool) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, &format!("tools[{index}]"))?;
        if tool.text("type")?.unwrap_or("function") != "function" {
            continue;
        }
        let function = tool.object("function")?.ok_or_else(|| tool.missing("function"))?;
        list.push(read_function(&function)?);
    }
    let choice = read_choice(fields)?;
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    checked(fields, Tools { list, choice, parallel })
}

/// Reads `tool_choice`.
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
        Some(parameters @ Value::Object(_)) => parameters.clone(),
        Some(_) => return Err(function.wrong(schema, "a JSON schema")),
        None => json!({ "type": "object", "properties": {} }),
    };
    let name = function.required_text("name")?;
    if name.is_empty() || name.len() > 256 {
        return Err(function.wrong("name", "a name of 1 to 256 bytes"));
    }
    let description = function.text("description")?.map(str::to_string);
    Ok(Tool { name: name.to_string(), description, parameters })
}

/// A choice can only be of tools that there are.
pub(crate) fn checked(fields: &Fields<'_>, tools: Tools) -> Result<Tools, ApiError> {
    if tools.list.len() > MOST_TOOLS {
        return Err(fields.wrong("tools", &format!("a list of at most {MOST_TOOLS} functions")));
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
            Some(schema) => OutputRule::JsonSchema(schema.clone()),
            None => OutputRule::JsonObject,
        }),
        "json_schema" => {
            let named =
                format.object("json_schema")?.ok_or_else(|| format.missing("json_schema"))?;
            let schema = named.value("schema").ok_or_else(|| named.missing("schema"))?;
            Ok(OutputRule::JsonSchema(schema.clone()))
        }
        _ => Err(format.wrong("type", "text, json_object or json_schema")),
    }
}
