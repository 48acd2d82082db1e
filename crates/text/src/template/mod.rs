//! Chat templates: Jinja with the settings, functions and filters that Hugging
//! Face gives it.

mod abilities;
mod conversation;
mod origin;
mod protect;
pub(crate) mod time;

use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::{Map, json};

pub(crate) use abilities::Abilities;
pub use conversation::{Conversation, Message};
pub use origin::TemplateOrigin;

use crate::error::Error;
use crate::jinja::{Fault, FaultKind, Program};
use conversation::{ContentForm, prepare};

/// A template that turns a conversation into the text a model was trained on.
pub struct ChatTemplate {
    /// What could not be parsed is an error when it is rendered: a model can do without its template.
    program: Result<Program, Fault>,
    source: String,
    bos: String,
    eos: String,
    form: ContentForm,
    abilities: OnceLock<Abilities>,
}

impl ChatTemplate {
    /// Compiles a Jinja template, given the texts of the tokens that begin and
    /// end a sequence.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<ChatTemplate, Error> {
        let template = ChatTemplate::of_file(source, bos, eos);
        match &template.program {
            Ok(_) => Ok(template),
            Err(fault) => Err(failure(fault.clone())),
        }
    }

    /// The template of a model file. One that does not parse fails when it is rendered, so that the
    /// model can be used without it.
    pub(crate) fn of_file(source: &str, bos: &str, eos: &str) -> ChatTemplate {
        let program = Program::parse(source);
        let (bos, eos) = (bos.to_owned(), eos.to_owned());
        let source = source.to_owned();
        let abilities = OnceLock::new();
        let mut template =
            ChatTemplate { program, source, bos, eos, form: ContentForm::Any, abilities };
        template.form = template.probe();
        template
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
        let now = now.unwrap_or_else(SystemTime::now);
        let program = self.program.as_ref().map_err(|fault| failure(fault.clone()))?;
        program.render(context, now).map_err(failure)
    }

    /// Finds out by trial which forms of content the template prints.
    fn probe(&self) -> ContentForm {
        const NEEDLE: &str = "pianola-needle";
        let prints = |content: serde_json::Value| {
            let message = Message { role: "user".into(), content, ..Message::default() };
            // A list that is printed as a list shows its keys.
            match self.render(&Conversation::new(vec![message])) {
                Ok(text) => Some(
                    text.contains(NEEDLE) && !text.contains("'type'") && !text.contains("\"type\""),
                ),
                // It will not render anything; one trial is enough.
                Err(Error::TemplateLimit(_)) => None,
                Err(_) => Some(false),
            }
        };
        let Some(text) = prints(json!(NEEDLE)) else { return ContentForm::Any };
        match (text, prints(json!([{ "type": "text", "text": NEEDLE }]))) {
            (true, Some(false)) => ContentForm::Text,
            (false, Some(true)) => ContentForm::Parts,
            _ => ContentForm::Any,
        }
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

fn failure(Fault { line, kind }: Fault) -> Error {
    let line = line.map(|line| format!(" (line {line})")).unwrap_or_default();
    match kind {
        FaultKind::Failed(message) => Error::Template(format!("{message}{line}")),
        FaultKind::Limit(limit) => Error::TemplateLimit(format!("{limit}{line}")),
        FaultKind::Refused(message) => Error::Refused(message),
    }
}
