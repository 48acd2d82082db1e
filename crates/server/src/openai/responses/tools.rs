//! `tools` and `tool_choice` of Responses, which differ from those of chat.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{ToolChoice, Tools};
use crate::openai::tools;
use std::collections::HashMap;

/// The namespace and the name inside of it, by the function's name in the prompt.
pub(super) type Namespaces = HashMap<String, (String, String)>;

/// The name in the prompt of a function of a namespace.
pub(super) fn flat_name(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_string(),
    }
}

/// Reads the functions. Tools of other types name services that this server does not have: they are
/// left out of the prompt.
pub(super) fn read(fields: &Fields<'_>) -> Result<(Tools, Namespaces), ApiError> {
    let mut list = Vec::new();
    let mut namespaces = Namespaces::new();
    for (index, tool) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, &format!("tools[{index}]"))?;
        match tool.required_text("type")? {
            "function" => tools::add(fields, &mut list, tools::read_function(&tool)?)?,
            "namespace" => {
                let namespace = tool.required_text("name")?;
                let inner = tool.list("tools")?.unwrap_or_default();
                for (index, inner) in inner.iter().enumerate() {
                    let inner = Fields::of(inner, &tool.name(&format!("tools[{index}]")))?;
                    if inner.text("type")?.is_some_and(|kind| kind != "function") {
                        continue;
                    }
                    let mut function = tools::read_function(&inner)?;
                    let flat = flat_name(Some(namespace), &function.name);
                    let name = std::mem::replace(&mut function.name, flat.clone());
                    namespaces.insert(flat, (namespace.to_string(), name));
                    tools::add(fields, &mut list, function)?;
                }
            }
            _ => {}
        }
    }
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let mut tools = Tools { list, choice: ToolChoice::Auto, parallel };
    read_choice(fields, &mut tools)?;
    Ok((tools::checked(fields, tools)?, namespaces))
}

fn read_choice(fields: &Fields<'_>, tools: &mut Tools) -> Result<(), ApiError> {
    if let Some(allowed) = tools::read_allowed(fields)? {
        return tools::restrict(tools, &allowed, |tool| {
            Ok(flat_name(tool.text("namespace")?, tool.required_text("name")?))
        });
    }
    let is_object = fields.value("tool_choice").is_some_and(|choice| choice.is_object());
    let Some(choice) = (if is_object { fields.object("tool_choice")? } else { None }) else {
        tools.choice = tools::read_choice(fields)?;
        return Ok(());
    };
    match choice.text("type")?.unwrap_or("function") {
        "function" => {
            let (namespace, name) = (choice.text("namespace")?, choice.required_text("name")?);
            tools.choice = ToolChoice::Named(flat_name(namespace, name));
            Ok(())
        }
        other => {
            let message =
                format!("tool_choice of type {other} is not supported: it is no function");
            Err(ApiError::invalid("tool_choice", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn choice(tool_choice: Value) -> Result<(Tools, Namespaces), ApiError> {
        let body = json!({
            "tools": [
                { "type": "function", "name": "shell", "parameters": { "type": "object" }, "strict": false },
                { "type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [
                    { "type": "function", "name": "read", "parameters": null },
                    { "type": "custom", "name": "patch" },
                ] },
                { "type": "web_search" },
            ],
            "tool_choice": tool_choice,
        });
        read(&Fields::of(&body, "")?)
    }

    fn names(tools: &Tools) -> Vec<&str> {
        tools.list.iter().map(|tool| tool.name.as_str()).collect()
    }

    #[test]
    fn namespaces_become_names() {
        let (tools, namespaces) = choice(json!("auto")).unwrap();
        assert_eq!(names(&tools), ["shell", "mcp__files__read"]);
        assert_eq!(namespaces["mcp__files__read"], ("mcp__files".to_string(), "read".to_string()));
        assert_eq!(namespaces.len(), 1);
    }

    #[test]
    fn choices() {
        let of = |value: Value| choice(value).map(|(tools, _)| tools);
        assert_eq!(of(json!("required")).unwrap().choice, ToolChoice::Required);
        let named = of(json!({ "type": "function", "name": "shell" })).unwrap();
        assert_eq!(named.choice, ToolChoice::Named("shell".into()));
        let inner = json!({ "type": "function", "namespace": "mcp__files", "name": "read" });
        assert_eq!(of(inner).unwrap().choice, ToolChoice::Named("mcp__files__read".into()));
        let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": [
            { "type": "function", "name": "shell" }, { "type": "web_search" },
        ] });
        let allowed = of(allowed).unwrap();
        assert_eq!((names(&allowed), &allowed.choice), (vec!["shell"], &ToolChoice::Required));
        assert!(of(json!({ "type": "web_search" })).unwrap_err().message.contains("web_search"));
        assert!(
            of(json!({ "type": "function", "name": "no" })).unwrap_err().message.contains("'no'")
        );
    }

    #[test]
    fn names_are_unique() {
        let function = json!({ "type": "function", "name": "f" });
        let body = json!({ "tools": [function, function] });
        let error = read(&Fields::of(&body, "").unwrap()).unwrap_err();
        assert!(error.message.contains("'f'"));
    }
}
