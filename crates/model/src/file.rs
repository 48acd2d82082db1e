//! A model on disk: a GGUF file or a Hugging Face folder.

use crate::config::Config;
use crate::error::ModelError;
use crate::unread::is_vision;
use pianola_formats::{Gguf, HuggingFaceFolder, TensorSource};
use std::path::{Path, PathBuf};

/// Tensors of the part of a model that reads pictures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VisionTensors {
    /// How many.
    pub count: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// An opened model.
pub enum ModelFile {
    /// One file with everything in it.
    Gguf(Box<Gguf>),
    /// `config.json`, safetensors, tokeniser.
    Folder(Box<HuggingFaceFolder>),
}

impl ModelFile {
    /// Opens a file or a folder and checks its structure.
    pub fn open(path: &Path) -> Result<ModelFile, ModelError> {
        if path.is_dir() {
            let ggufs: Vec<PathBuf> = std::fs::read_dir(path)
                .into_iter()
                .flatten()
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
                .collect();
            // A folder made for one GGUF file stands for it.
            if let ([only], false) = (&ggufs[..], path.join("config.json").exists()) {
                return Ok(ModelFile::Gguf(Box::new(Gguf::open(only)?)));
            }
            return Ok(ModelFile::Folder(Box::new(HuggingFaceFolder::open(path)?)));
        }
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            return Err(ModelError::Path(format!(
                "{} is one file of a Hugging Face model; name its folder, which holds config.json too",
                path.display()
            )));
        }
        Ok(ModelFile::Gguf(Box::new(Gguf::open(path)?)))
    }

    /// Where tensors come from.
    pub fn source(&self) -> &dyn TensorSource {
        match self {
            ModelFile::Gguf(file) => file.as_ref(),
            ModelFile::Folder(folder) => folder.as_ref(),
        }
    }

    /// The tensors that no text model has: they are not loaded.
    pub fn vision_tensors(&self) -> VisionTensors {
        let infos = self.source().tensor_infos();
        let vision = infos.iter().filter(|info| is_vision(&info.name));
        vision.fold(VisionTensors::default(), |sum, info| VisionTensors {
            count: sum.count + 1,
            bytes: sum.bytes + info.bytes,
        })
    }

    /// Its configuration.
    pub fn config(&self) -> Result<Config, ModelError> {
        let config = match self {
            ModelFile::Gguf(file) => crate::gguf::config(file),
            ModelFile::Folder(folder) => crate::hugging_face::config(folder),
        };
        // Some tensors are part of it.
        self.source().check_read()?;
        config
    }
}
