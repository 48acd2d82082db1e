//! Hugging Face model folders: `config.json` and safetensors, in one file or in shards.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use serde_json::Value as Json;

use crate::error::{Error, ErrorKind, quoted};
use crate::json::{self, Entries};
use crate::safetensors::Safetensors;
use crate::tensor::{Tensor, TensorInfo, TensorSource, missing_tensor};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// An open model folder.
#[derive(Debug)]
pub struct HuggingFaceFolder {
    path: PathBuf,
    config: Json,
    generation_config: Option<Json>,
    shards: Vec<Safetensors>,
    /// Tensor names in the order of the file or the index, each with its shard.
    tensors: Vec<(String, usize)>,
    names: HashMap<String, usize>,
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: Entries<String>,
}

impl HuggingFaceFolder {
    /// Opens a folder and checks the headers of all its weights.
    pub fn open(path: &Path) -> Result<HuggingFaceFolder, Error> {
        if !path.is_dir() {
            let (kind, what) = match path.exists() {
                true => (ErrorKind::Argument, "is no folder"),
                false => (ErrorKind::Missing, "does not exist"),
            };
            let message = format!("{what}; a folder with {CONFIG} and {WEIGHTS} was expected");
            return Err(Error::new(kind, path, message));
        }
        if !path.join(CONFIG).is_file() {
            let message = format!("holds no {CONFIG}; is it a Hugging Face model folder?");
            return Err(Error::new(ErrorKind::Missing, path, message));
        }
        let config = json::read(&path.join(CONFIG))?;
        let generation_config = match path.join(GENERATION_CONFIG) {
            file if file.is_file() => Some(json::read(&file)?),
            _ => None,
        };
        let (shards, tensors) = open_weights(path)?;
        let names = tensors.iter().cloned().collect();
        let path = path.to_path_buf();
        Ok(HuggingFaceFolder { path, config, generation_config, shards, tensors, names })
    }

    /// The contents of `config.json`.
    pub fn config(&self) -> &Json {
        &self.config
    }

    /// The contents of `generation_config.json`, if there is one.
    pub fn generation_config(&self) -> Option<&Json> {
        self.generation_config.as_ref()
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file directly in the folder, if it exists.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        let file = self.path.join(name);
        (is_plain_name(name) && file.is_file()).then_some(file)
    }

    /// Names and dtypes of the tensors that are not decoded.
    pub fn unsupported(&self) -> impl Iterator<Item = (&str, &str)> {
        self.shards.iter().flat_map(Safetensors::unsupported)
    }

    fn shard(&self, name: &str) -> Option<&Safetensors> {
        self.names.get(name).map(|&shard| &self.shards[shard])
    }
}

/// Whether a name means a file directly in the folder: no separator of any system, no `..`.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let first = components.next();
    matches!(first, Some(Component::Normal(_)))
        && components.next().is_none()
        && !name.contains(['/', '\\', ':', '\0'])
}

type Weights = (Vec<Safetensors>, Vec<(String, usize)>);

fn open_weights(path: &Path) -> Result<Weights, Error> {
    let single = path.join(WEIGHTS);
    if single.is_file() {
        let shard = Safetensors::open(&single)?;
        let tensors = shard.all_names().map(|name| (name.to_string(), 0)).collect();
        return Ok((vec![shard], tensors));
    }
    let index_path = path.join(INDEX);
    if index_path.is_file() {
        return open_shards(path, &index_path);
    }
    let other = match path.join("pytorch_model.bin").is_file() {
        true => " (pytorch_model.bin is a pickle, which can run code; convert it to safetensors)",
        false => "",
    };
    let message = format!("holds neither {WEIGHTS} nor {INDEX}{other}");
    Err(Error::new(ErrorKind::Missing, path, message))
}

fn open_shards(path: &Path, index_path: &Path) -> Result<Weights, Error> {
    let index: Index = json::read(index_path)?;
    let mut shards = Vec::<Safetensors>::new();
    let mut opened = HashMap::<String, usize>::new();
    let mut tensors = Vec::new();
    for (name, file) in index.weight_map.0 {
        let shard = match opened.get(&file) {
            Some(&shard) => shard,
            None => {
                shards.push(open_shard(path, index_path, &name, &file)?);
                opened.insert(file.clone(), shards.len() - 1);
                shards.len() - 1
            }
        };
        if !shards[shard].contains(&name) {
            let message = format!(
                "puts tensor {} in {}, which does not hold it; download both again",
                quoted(&name),
                quoted(&file)
            );
            return Err(Error::new(ErrorKind::Malformed, index_path, message));
        }
        tensors.push((name, shard));
    }
    Ok((shards, tensors))
}

fn open_shard(path: &Path, index: &Path, tensor: &str, file: &str) -> Result<Safetensors, Error> {
    let (tensor, quoted_file) = (quoted(tensor), quoted(file));
    if !is_plain_name(file) {
        let message = format!("puts tensor {tensor} in {quoted_file}, outside the folder");
        return Err(Error::new(ErrorKind::Malformed, index, message));
    }
    let shard = path.join(file);
    if !shard.is_file() {
        let message =
            format!("puts tensor {tensor} in {quoted_file}, which is absent; download it");
        return Err(Error::new(ErrorKind::Missing, index, message));
    }
    Safetensors::open(&shard)
}

impl TensorSource for HuggingFaceFolder {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.shard(name)?.tensor(name)
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.shard(name)?.info(name)
    }

    fn tensor_infos(&self) -> Vec<TensorInfo> {
        let infos = self.tensors.iter().map(|(name, shard)| self.shards[*shard].info(name));
        infos.flatten().collect()
    }

    fn release(&self, bytes: &[u8]) {
        self.shards.iter().for_each(|shard| shard.release(bytes));
    }

    fn check_read(&self) -> Result<(), Error> {
        self.shards.iter().try_for_each(Safetensors::check_read)
    }

    fn try_tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let shard = self.shard(name).ok_or_else(|| missing_tensor(&self.path, name))?;
        shard.try_tensor(name)
    }
}
