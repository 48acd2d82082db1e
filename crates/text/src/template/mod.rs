//! Chat templates: Jinja with the settings, functions and filters that Hugging
//! Face gives it.

mod conversation;
mod origin;
mod protect;
mod python;
mod time;

use std::time::SystemTime;

use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use serde_json::{Map, json};

pub use conversation::{Conversation, Message};
pub use origin::TemplateOrigin;

use crate::error::Error;
use conversation::{ContentForm, prepare};

/// Steps of the template's program. A conversation of thousands of messages
/// takes less than a hundredth of this; an endless template is stopped.
const FUEL: u64 = 10_000_000;

const NAME: &str = "chat template";

/// A template that turns a conversation into the text a model was trained on.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    form: ContentForm,
}

impl ChatTemplate {
    /// Compiles a Jinja template, given the texts of the tokens that begin and
    /// end a sequence.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", |message: String| {
            let refusal = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
            Err::<Value, _>(refusal.with_source(Refusal(message)))
        });
        environment.set_formatter(|out, _, value| {
            let mut text = String::new();
            python::print(value, &mut text)?;
            out.write_str(&text).map_err(minijinja::Error::from)
        });
        environment.add_template_owned(NAME, plain_generation_blocks(source)).map_err(failure)?;
        let (bos, eos) = (bos.to_owned(), eos.to_owned());
        let source = source.to_owned();
        let mut template = ChatTemplate { environment, source, bos, eos, form: ContentForm::Any };
        template.form = template.probe();
        Ok(template)
    }

    /// The text of a conversation. Special tokens that a message spells are in
    /// it like those of the template: see [`render_tokens`](Self::render_tokens).
    pub fn render(&self, conversation: &Conversation) -> Result<String, Error> {
        self.render_context(self.context(conversation)?, conversation.now)
    }

    /// The template as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The variables of the template. `tools` and `documents` are none rather
    /// than undefined where there are none: so it is in Python.
    fn context(
        &self,
        conversation: &Conversation,
    ) -> Result<Map<String, serde_json::Value>, Error> {
        let mut context = Map::new();
        context.insert("documents".into(), serde_json::Value::Null);
        context.extend(conversation.extra.clone());
        context.insert("messages".into(), prepare(&conversation.messages, self.form)?);
        context.insert("tools".into(), conversation.tools.clone().unwrap_or_default());
        let prompt = conversation.add_generation_prompt;
        context.insert("add_generation_prompt".into(), prompt.into());
        context.insert("bos_token".into(), self.bos.as_str().into());
        context.insert("eos_token".into(), self.eos.as_str().into());
        Ok(context)
    }

    fn render_context(
        &self,
        context: Map<String, serde_json::Value>,
        now: Option<SystemTime>,
    ) -> Result<String, Error> {
        let clock = Value::from_function(move |format: String| {
            time::format(now.unwrap_or_else(SystemTime::now), &format)
        });
        let variables = context
            .into_iter()
            .map(|(name, value)| (name, Value::from_serialize(value)))
            .chain([("strftime_now".to_owned(), clock)]);
        let variables: Value = variables.collect();
        let template = self.environment.get_template(NAME).map_err(failure)?;
        template.render(variables).map_err(failure)
    }

    /// Finds out by trial which forms of content the template prints.
    fn probe(&self) -> ContentForm {
        const NEEDLE: &str = "pianola-needle";
        let prints = |content: serde_json::Value| {
            let message = Message { role: "user".into(), content, ..Message::default() };
            // A list that is printed as a list shows its keys.
            self.render(&Conversation::new(vec![message])).is_ok_and(|text| {
                text.contains(NEEDLE) && !text.contains("'type'") && !text.contains("\"type\"")
            })
        };
        let text = prints(json!(NEEDLE));
        match (text, prints(json!([{ "type": "text", "text": NEEDLE }]))) {
            (true, false) => ContentForm::Text,
            (false, true) => ContentForm::Parts,
            _ => ContentForm::Any,
        }
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The message of `raise_exception`, carried through the template engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn failure(error: minijinja::Error) -> Error {
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        if let Some(Refusal(message)) = cause.downcast_ref() {
            return Error::Refused(message.clone());
        }
        source = cause.source();
    }
    Error::Template(error.to_string())
}

/// `{% generation %}` tells a trainer which text is the assistant's; here its
/// content is text like the rest. The engine does not know the tag, so it is
/// rewritten to one that does nothing.
fn plain_generation_blocks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        plain.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_start_matches(['{', '%', '-', '+']).trim_start();
        let word = word.trim_end_matches(['}', '%', '-', '+']).trim_end();
        match word {
            "generation" => plain.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => plain.push_str(&tag.replace("endgeneration", "endif")),
            _ => plain.push_str(tag),
        }
        rest = after;
    }
    plain + rest
}
