//! `/openapi.json`, and `/docs`: the same document as a page, without a script.

use crate::reply::{self, Reply};
use hyper::StatusCode;
use serde_json::Value;
use std::sync::LazyLock;

const DOCUMENT: &str = include_str!("openapi.json");
const STYLE: &str = include_str!("docs.css");

/// Allows only the style sheet of this server.
const POLICY: &str = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// The methods of a path, in the order in which they are shown.
const METHODS: [&str; 4] = ["get", "head", "post", "delete"];

static PAGE: LazyLock<String> = LazyLock::new(|| {
    // A test parses it, too.
    let document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
    page(&document)
});

pub(crate) fn openapi() -> Reply {
    reply::whole(StatusCode::OK, "application/json", DOCUMENT)
}

pub(crate) fn style() -> Reply {
    reply::embedded("text/css; charset=utf-8", POLICY, STYLE)
}

pub(crate) fn docs() -> Reply {
    reply::embedded("text/html; charset=utf-8", POLICY, &PAGE)
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// A text of the document, safe to be shown.
fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

fn paragraph(value: &Value) -> String {
    match value.as_str() {
        Some(words) => format!("<p>{}</p>\n", escaped(words)),
        None => String::new(),
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Path, method and description of all operations of a tag.
fn operations<'a>(document: &'a Value, tag: &'a Value) -> Vec<(&'a str, &'static str, &'a Value)> {
    let of_path = |(path, methods): (&'a String, &'a Value)| {
        METHODS.into_iter().filter_map(move |method| {
            let operation = methods.get(method)?;
            (operation["tags"][0] == tag["name"]).then_some((path.as_str(), method, operation))
        })
    };
    entries(&document["paths"]).flat_map(of_path).collect()
}

fn page(document: &Value) -> String {
    let info = &document["info"];
    let mut links = String::new();
    let mut body = String::new();
    for tag in items(&document["tags"]) {
        body += &format!("<h2>{}</h2>\n{}", text(&tag["name"]), paragraph(&tag["description"]));
        for (path, method, operation) in operations(document, tag) {
            let id = text(&operation["operationId"]);
            let (method_name, path_name) = (method.to_uppercase(), escaped(path));
            links +=
                &format!("<li><a href=\"#{id}\"><code>{method_name} {path_name}</code></a></li>\n");
            body += &describe_operation(document, path, method, operation);
        }
    }
    body += "<h2>Schemas</h2>\n";
    for (name, schema) in entries(&document["components"]["schemas"]) {
        let name = escaped(name);
        body += &format!("<h3 id=\"schema-{name}\">{name}</h3>\n{}", table(schema));
    }
    let title = text(&info["title"]);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}: API</title>\n<link rel=\"stylesheet\" href=\"/docs.css\">\n</head>\n<body>\n\
         <h1>{title}</h1>\n{}<p>Machines read <a href=\"/openapi.json\">openapi.json</a>.</p>\n\
         <nav><ul>\n{links}</ul></nav>\n<main>\n{body}</main>\n</body>\n</html>\n",
        paragraph(&info["description"])
    )
}

fn describe_operation(document: &Value, path: &str, method: &str, operation: &Value) -> String {
    let mut html = format!(
        "<h3 id=\"{}\"><span class=\"method\">{}</span> <code>{}</code></h3>\n{}{}",
        text(&operation["operationId"]),
        method.to_uppercase(),
        escaped(path),
        paragraph(&operation["summary"]),
        paragraph(&operation["description"]),
    );
    if operation["security"].as_array().is_some_and(Vec::is_empty) {
        html += "<p>Needs no key.</p>\n";
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if !body.is_null() {
        html += &format!("<p>Body: {}</p>\n", kind(body));
    }
    html += "<details><summary>Answers</summary>\n<table>\n<tr><th>Status</th><th>Meaning</th><th>Body</th></tr>\n";
    for (status, answer) in entries(&operation["responses"]) {
        let answer = resolved(document, answer);
        let bodies: Vec<String> = entries(&answer["content"])
            .map(|(media, body)| {
                format!("<code>{}</code> {}", escaped(media), kind(&body["schema"]))
            })
            .collect();
        let (status, meaning) = (escaped(status), text(&answer["description"]));
        let bodies = bodies.join("<br>");
        html += &format!("<tr><td>{status}</td><td>{meaning}</td><td>{bodies}</td></tr>\n");
    }
    html + "</table></details>\n"
}

/// What a reference within the document stands for.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let pointer = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| document.pointer(pointer)).unwrap_or(value)
}

/// The fields of an object.
fn table(schema: &Value) -> String {
    if schema["properties"].is_null() {
        return format!("<p>{}</p>\n", kind(schema));
    }
    let mut html = "<table>\n<tr><th>Field</th><th>Type</th><th></th></tr>\n".to_string();
    for (name, field) in entries(&schema["properties"]) {
        let required = items(&schema["required"]).any(|other| other.as_str() == Some(name));
        let required = if required { " (required)" } else { "" };
        let (name, kind, words) = (escaped(name), kind(field), text(&field["description"]));
        html += &format!(
            "<tr><td><code>{name}</code>{required}</td><td>{kind}</td><td>{words}</td></tr>\n"
        );
    }
    html + "</table>\n"
}

/// What a schema allows, in words.
fn kind(schema: &Value) -> String {
    let any = items(&schema["anyOf"]).filter(|one| one.get("required").is_none());
    let any: Vec<String> = any.map(kind).collect();
    let mut words = match schema {
        _ if schema["$ref"].is_string() => {
            let name = text(&schema["$ref"]);
            let name = name.rsplit('/').next().unwrap_or_default();
            format!("<a href=\"#schema-{name}\">{name}</a>")
        }
        _ if !any.is_empty() => any.join(" or "),
        _ if schema["enum"].is_array() => {
            let values = items(&schema["enum"]).map(|value| escaped(&value.to_string()));
            values.collect::<Vec<_>>().join(", ")
        }
        _ if !schema["const"].is_null() => escaped(&schema["const"].to_string()),
        _ if schema["type"] == "array" => format!("list of ({})", kind(&schema["items"])),
        _ => match &schema["type"] {
            Value::String(name) => escaped(name),
            Value::Array(names) => names.iter().map(text).collect::<Vec<_>>().join(" or "),
            _ => "anything".to_string(),
        },
    };
    let bounds = [
        ("minimum", "at least "),
        ("exclusiveMinimum", "above "),
        ("maximum", "at most "),
        ("minLength", "characters: at least "),
        ("maxLength", "characters: at most "),
        ("minItems", "entries: at least "),
        ("maxItems", "entries: at most "),
        ("default", "default "),
    ];
    for (name, before) in bounds {
        if let Some(value) = schema.get(name) {
            words += &format!(", {before}{}", escaped(&value.to_string()));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route;
    use std::collections::BTreeSet;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    #[test]
    fn the_document_lists_the_routes_there_are() {
        // A path's parameter is the route's star. HEAD is left out where there is GET.
        let mut listed = BTreeSet::new();
        for (path, methods) in entries(&document()["paths"]) {
            let path = path.split('{').next().unwrap_or_default().to_string()
                + if path.contains('{') { "*" } else { "" };
            for (method, _) in entries(methods) {
                listed.insert((path.clone(), method.to_uppercase()));
            }
        }
        let served: BTreeSet<(String, String)> = route::served().collect();
        let missing: Vec<_> = served.difference(&listed).collect();
        assert!(missing.is_empty(), "served and not in the document: {missing:?}");
        let unknown: Vec<_> = listed.difference(&served).collect();
        assert!(unknown.is_empty(), "in the document and not served: {unknown:?}");
    }

    #[test]
    fn the_documents_list_what_needs_no_key() {
        let public: BTreeSet<&str> = route::public().collect();
        for (path, methods) in entries(&document()["paths"]) {
            for (method, operation) in entries(methods) {
                let open = operation["security"].as_array().is_some_and(Vec::is_empty);
                assert_eq!(open, public.contains(path.as_str()), "{method} {path}");
            }
        }
        let explained = include_str!("../../../docs/explanation/server.md");
        let keys = explained.lines().skip_while(|line| !line.starts_with("- **Keys.**"));
        let keys = keys.take_while(|line| !line.starts_with("- **Host.**")).collect::<String>();
        for path in public {
            assert!(keys.contains(&format!("`{path}`")), "{path}: {keys}");
        }
    }

    #[test]
    fn the_reference_lists_the_routes_and_what_needs_no_key() {
        let page = include_str!("../../../docs/reference/api.md");
        let mut listed = BTreeSet::new();
        let mut open = BTreeSet::new();
        for line in page.lines().filter(|line| line.starts_with("| `/")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let path = cells[1].trim_matches('`');
            let path =
                path.split_once('{').map_or(path.to_string(), |(start, _)| format!("{start}*"));
            listed.extend(cells[2].split(", ").map(|method| (path.clone(), method.to_string())));
            if cells[3] == "no" {
                open.insert(path);
            }
        }
        assert_eq!(listed, route::served().collect());
        assert_eq!(open, route::public().map(str::to_string).collect());
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn check(document: &Value, value: &Value) {
            if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
                assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
            }
            entries(value).for_each(|(_, value)| check(document, value));
            items(value).for_each(|value| check(document, value));
        }
        check(&document(), &document());
    }

    #[test]
    fn names_of_operations_differ_and_their_tags_are_described() {
        let document = document();
        let tags: Vec<&Value> = items(&document["tags"]).collect();
        let shown: usize = tags.iter().map(|tag| operations(&document, tag).len()).sum();
        let all = entries(&document["paths"]).flat_map(|(_, methods)| entries(methods));
        let ids: Vec<&Value> = all.map(|(_, operation)| &operation["operationId"]).collect();
        assert_eq!(shown, ids.len());
        let names: BTreeSet<&str> = ids.iter().map(|id| id.as_str().unwrap()).collect();
        assert_eq!(names.len(), ids.len());
    }

    #[test]
    fn the_page_shows_all_and_escapes_it() {
        for (path, _) in entries(&document()["paths"]) {
            assert!(PAGE.contains(&escaped(path)), "{path}");
        }
        let hostile = serde_json::json!({
            "info": { "title": "<script>" },
            "components": { "schemas": { "\"><b>": { "enum": ["<i>"] } } },
        });
        let page = page(&hostile);
        assert!(!page.contains("<script>") && !page.contains("<b>") && !page.contains("<i>"));
    }
}
