//! A loaded model: its engine, and what requests to it need besides.

use crate::error::{ApiError, ErrorKind};
use crate::generation::Generation;
use crate::hub::LoadFailure;
use crate::output::Output;
use pianola_engine::{Constraint, Service, Text};
use pianola_text::Conversation;

/// A loaded model.
pub(crate) struct LoadedModel {
    /// What clients call it.
    pub id: String,
    service: Service,
}

impl LoadedModel {
    pub fn new(id: String, service: Service) -> Result<LoadedModel, LoadFailure> {
        Ok(LoadedModel { id, service })
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Tokeniser and template.
    pub fn text(&self) -> Result<&Text, ApiError> {
        self.service.text().ok_or_else(|| {
            let message = format!("{} has no tokeniser, so it cannot read text", self.id);
            ApiError::new(ErrorKind::InvalidRequest, message)
        })
    }

    /// The bytes of a token.
    pub fn token_bytes(&self, token: u32) -> Vec<u8> {
        let text = self.service.text();
        text.and_then(|text| text.tokenizer.token_bytes(token)).unwrap_or_default().to_vec()
    }

    /// The tokens of a conversation.
    pub fn render(&self, conversation: Conversation) -> Result<Vec<u32>, ApiError> {
        let text = self.text()?;
        let Some((template, _)) = &text.template else {
            return Err(ApiError::new(
                ErrorKind::InvalidRequest,
                format!(
                    "{} has no chat template, so it cannot chat; /v1/completions continues a text",
                    self.id
                ),
            ));
        };
        Ok(template.render_tokens(&conversation, &text.tokenizer)?)
    }

    /// What restricts the tokens of an answer.
    pub fn constraint(
        &self,
        _generation: &Generation,
    ) -> Result<Option<Box<dyn Constraint>>, ApiError> {
        Ok(None)
    }

    /// What becomes of the text of an answer.
    pub fn output(&self, _generation: &Generation) -> Output {
        Output::new()
    }
}
