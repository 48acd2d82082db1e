//! `inspect`: what is in a model's file.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::Args;
use pianola_engine::Text;
use pianola_formats::{Array, GgufSurvey, SurveyedTensor, TensorInfo, Value as Metadata};
use pianola_model::{Config, ModelError, ModelFile};
use pianola_plan::{parameters_text, size_text};
use serde_json::{Map, Value, json};

use crate::console::{self, Console, one_line as escaped};
use crate::failure::Failure;
use crate::model::{self, Located};
use crate::options::DEFAULT_MODEL;

/// Show a model's format, configuration, tensors, tokeniser, template and metadata.
///
/// Works for models that cannot be run, for truncated GGUF files and for unknown types too. The
/// problem is then shown in its place.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola inspect smollm2:135m
  pianola inspect model.gguf --tensors
  pianola inspect gemma3:270m --json | jq .config")]
pub struct Arguments {
    /// Model: a name, a GGUF file or a Hugging Face folder [default: smollm2:135m]
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    named: Option<OsString>,
    /// The same as MODEL
    #[arg(short, long, value_name = "MODEL")]
    model: Option<OsString>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print the chat template's text
    #[arg(long)]
    template: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Everything about a model, ready to be shown in either form.
struct Facts {
    format: String,
    config: Result<Config, String>,
    text: Result<Option<Text>, String>,
    tensors: Vec<Listed>,
    metadata: Map<String, Value>,
    /// Why the file does not open as a whole.
    problem: Option<String>,
}

/// A tensor by its description alone.
struct Listed {
    name: String,
    ty: String,
    shape: Vec<u64>,
    bytes: u64,
}

impl From<TensorInfo> for Listed {
    fn from(info: TensorInfo) -> Listed {
        let shape = info.shape.iter().map(|&extent| extent as u64).collect();
        Listed { name: info.name, ty: info.ty.to_string(), shape, bytes: info.bytes }
    }
}

impl From<SurveyedTensor> for Listed {
    fn from(SurveyedTensor { name, ty, shape, bytes }: SurveyedTensor) -> Listed {
        Listed { name, ty, shape, bytes: bytes.unwrap_or(0) }
    }
}

impl Facts {
    fn of(file: &ModelFile) -> Facts {
        Facts {
            format: match file {
                ModelFile::Gguf(gguf) => format!("GGUF version {}", gguf.version()),
                ModelFile::Folder(_) => "Hugging Face folder (safetensors)".to_string(),
            },
            config: file.config().map_err(|error| error.to_string()),
            text: Text::of(file).map_err(|error| error.to_string()),
            tensors: file.source().tensor_infos().into_iter().map(Listed::from).collect(),
            metadata: metadata(file),
            problem: None,
        }
    }

    /// What can be said of a file that does not open; the error itself where that is nothing.
    fn of_damaged(located: &Located, error: ModelError) -> Result<Facts, Failure> {
        let Ok(survey) = GgufSurvey::open(&located.path) else { return Err(error.into()) };
        let problem = error.to_string();
        let metadata = survey.metadata.iter().map(|(key, value)| (key.clone(), plain(value)));
        let listed = survey.tensors.len();
        Ok(Facts {
            format: format!(
                "GGUF version {}, {listed} of {} tensors listed",
                survey.version, survey.claimed
            ),
            config: Err(problem.clone()),
            text: Err("the file does not open".to_string()),
            metadata: metadata.collect(),
            tensors: survey.tensors.into_iter().map(Listed::from).collect(),
            problem: Some(problem),
        })
    }
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let name = arguments.named.as_ref().or(arguments.model.as_ref());
    let located = model::locate(name.map_or(DEFAULT_MODEL.as_ref(), OsString::as_os_str), console)?;
    let facts = match ModelFile::open(&located.path) {
        Ok(file) => Facts::of(&file),
        Err(error) => Facts::of_damaged(&located, error)?,
    };
    if arguments.json {
        return console::print_json(&object(&located, &facts, arguments));
    }
    console::print(&describe(&located, &facts, arguments))
}

/// The file's own words; arrays of a vocabulary's size are only counted.
fn metadata(file: &ModelFile) -> Map<String, Value> {
    match file {
        ModelFile::Gguf(gguf) => {
            gguf.metadata().map(|(key, value)| (key.to_string(), plain(value))).collect()
        }
        ModelFile::Folder(folder) => folder.config().as_object().cloned().unwrap_or_default(),
    }
}

fn plain(value: &Metadata) -> Value {
    match value {
        Metadata::Bool(value) => json!(value),
        Metadata::String(text) => json!(text),
        Metadata::Array(array) => abbreviated(array),
        Metadata::F32(value) => shortest(*value),
        Metadata::F64(value) => json!(value),
        _ => match value.as_integer() {
            Some(integer) => i64::try_from(integer).map_or(json!(integer.to_string()), Value::from),
            None => Value::Null,
        },
    }
}

/// A single float with the digits that tell it apart, not those of its double.
fn shortest(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().ok())
}

fn abbreviated(array: &Array) -> Value {
    const LONG: usize = 16;
    let count = array.len();
    if count > LONG {
        return json!(format!("array of {count}"));
    }
    match array {
        Array::String(texts) => json!(texts),
        Array::Bool(values) => json!(values),
        Array::F32(_) | Array::F64(_) => json!(array.to_floats()),
        _ => json!(array.to_integers()),
    }
}

/// Count and bytes of each tensor type.
fn types(tensors: &[Listed]) -> BTreeMap<&str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for tensor in tensors {
        let (count, bytes) = types.entry(tensor.ty.as_str()).or_insert((0, 0u64));
        *count += 1;
        *bytes = bytes.saturating_add(tensor.bytes);
    }
    types
}

/// In a damaged file shapes may be anything.
fn parameters(tensors: &[Listed]) -> u64 {
    let elements = |tensor: &Listed| {
        tensor.shape.iter().fold(1u64, |product, &extent| product.saturating_mul(extent))
    };
    tensors.iter().map(elements).fold(0, u64::saturating_add)
}

fn weight_bytes(tensors: &[Listed]) -> u64 {
    tensors.iter().map(|tensor| tensor.bytes).fold(0, u64::saturating_add)
}

/// The configuration as pairs of name and value.
fn config_pairs(config: &Config) -> Vec<(&'static str, Value)> {
    let mut windows: Vec<Option<usize>> = config.windows.clone();
    windows.sort();
    windows.dedup();
    let windowed = config.windows.iter().filter(|window| window.is_some()).count();
    vec![
        ("architecture", json!(config.family.name)),
        ("name", json!(config.name)),
        ("context", json!(config.context)),
        ("vocabulary", json!(config.vocabulary)),
        ("layers", json!(config.layers)),
        ("hidden", json!(config.hidden)),
        ("feed_forward", json!(config.feed_forward)),
        ("heads", json!(config.heads)),
        ("kv_heads", json!(config.kv_heads)),
        ("head_dim", json!(config.head_dim)),
        ("epsilon", shortest(config.epsilon)),
        ("activation", json!(format!("{:?}", config.activation))),
        ("attention_scale", shortest(config.attention_scale)),
        ("rope_base", json!(config.rope.base)),
        ("rope_scaling", json!(rope_scaling(config))),
        ("window", json!(windows.into_iter().flatten().next())),
        ("windowed_layers", json!(windowed)),
        ("tied_embeddings", json!(config.tied)),
        ("attention_bias", json!(config.attention_bias)),
    ]
}

fn rope_scaling(config: &Config) -> String {
    use pianola_model::RopeScaling;
    match &config.rope.scaling {
        RopeScaling::None => "none".to_string(),
        RopeScaling::Linear { factor } => format!("linear, factor {factor}"),
        RopeScaling::Llama3 { factor, .. } => format!("llama3, factor {factor}"),
        RopeScaling::Yarn { factor, .. } => format!("yarn, factor {factor}"),
        RopeScaling::Factors(factors) => format!("{} factors from the file", factors.len()),
        RopeScaling::Long { original, .. } => {
            format!("longrope, long factors beyond a context of {original}")
        }
    }
}

fn object(located: &Located, facts: &Facts, arguments: &Arguments) -> Value {
    let types: Map<String, Value> = types(&facts.tensors)
        .into_iter()
        .map(|(ty, (count, bytes))| (ty.to_string(), json!({ "count": count, "bytes": bytes })))
        .collect();
    let config = match &facts.config {
        Ok(config) => config_pairs(config).into_iter().map(|(k, v)| (k.to_string(), v)).collect(),
        Err(problem) => Map::from_iter([("problem".to_string(), json!(problem))]),
    };
    let mut object = json!({
        "model": located.label,
        "path": located.path.to_string_lossy(),
        "format": facts.format,
        "config": config,
        "parameters": parameters(&facts.tensors),
        "bytes": weight_bytes(&facts.tensors),
        "tensor_types": types,
        "tokenizer": tokenizer_object(&facts.text),
        "chat_template": template_object(&facts.text, arguments.template),
        "metadata": facts.metadata,
    });
    if arguments.tensors {
        let tensors = facts.tensors.iter().map(|tensor| {
            json!({
                "name": tensor.name,
                "type": tensor.ty,
                "shape": tensor.shape,
                "bytes": tensor.bytes,
            })
        });
        object["tensors"] = tensors.collect();
    }
    if let Some(problem) = &facts.problem {
        object["problem"] = json!(problem);
    }
    object
}

fn tokenizer_object(text: &Result<Option<Text>, String>) -> Value {
    match text {
        Ok(Some(text)) => {
            let tokenizer = &text.tokenizer;
            json!({
                "tokens": tokenizer.len(),
                "bos": tokenizer.bos(),
                "eos": tokenizer.eos(),
                "adds_bos": tokenizer.adds_bos(),
                "stop_tokens": tokenizer.stop_tokens(),
            })
        }
        Ok(None) => Value::Null,
        Err(problem) => json!({ "problem": problem }),
    }
}

fn template_object(text: &Result<Option<Text>, String>, with_source: bool) -> Value {
    let Ok(Some(Text { template: Some((template, origin)), .. })) = text else {
        return Value::Null;
    };
    let mut object = json!({ "origin": origin.to_string() });
    if with_source {
        object["text"] = json!(template.source());
    }
    object
}

fn describe(located: &Located, facts: &Facts, arguments: &Arguments) -> String {
    let mut text = format!(
        "{}: {}\n{}, {}, {} of weights\n\nconfiguration\n",
        escaped(&located.label),
        escaped(&located.path.display().to_string()),
        facts.format,
        parameters_text(parameters(&facts.tensors)),
        size_text(weight_bytes(&facts.tensors)),
    );
    match &facts.config {
        Ok(config) => {
            for (key, value) in config_pairs(config) {
                text.push_str(&format!("  {key:<18} {}\n", one_line(&value)));
            }
        }
        Err(problem) => text.push_str(&format!("  cannot be run: {}\n", escaped(problem))),
    }
    text.push_str("\ntensors\n");
    for (ty, (count, bytes)) in types(&facts.tensors) {
        text.push_str(&format!("  {ty:<6} {count:>5}  {:>9.1} MB\n", bytes as f64 / 1e6));
    }
    if arguments.tensors {
        for tensor in &facts.tensors {
            let shape = format!("{:?}", tensor.shape);
            let (ty, name) = (&tensor.ty, one_word(&tensor.name));
            text.push_str(&format!("  {ty:<6} {shape:<18} {name}\n"));
        }
    }
    text.push_str(&describe_text(&facts.text, arguments.template));
    text.push_str("\nmetadata\n");
    for (key, value) in &facts.metadata {
        text.push_str(&format!("  {} = {}\n", one_word(key), one_line(value)));
    }
    text
}

fn describe_text(side: &Result<Option<Text>, String>, with_source: bool) -> String {
    let text = match side {
        Ok(Some(text)) => text,
        Ok(None) => return "\ntokeniser\n  none: the model takes token ids only\n".to_string(),
        Err(problem) => {
            return format!("\ntokeniser\n  cannot be used: {}\n", escaped(problem));
        }
    };
    let tokenizer = &text.tokenizer;
    let named = |id: Option<u32>| match id {
        Some(id) => format!("{id} {:?}", tokenizer.token_text(id).unwrap_or_default()),
        None => "none".to_string(),
    };
    let stops: Vec<String> = tokenizer.stop_tokens().iter().map(|&id| named(Some(id))).collect();
    let mut out = format!(
        "\ntokeniser\n  tokens             {}\n  begin              {} ({})\n  end                {}\n  \
         ends an answer     {}\n",
        tokenizer.len(),
        named(tokenizer.bos()),
        if tokenizer.adds_bos() { "added to prompts" } else { "not added to prompts" },
        named(tokenizer.eos()),
        stops.join(", "),
    );
    out.push_str("\nchat template\n");
    match &text.template {
        Some((template, origin)) => {
            out.push_str(&format!("  {origin}\n"));
            if with_source {
                out.push_str(template.source());
                out.push('\n');
            }
        }
        None => out.push_str("  none: prompts are continued as they are\n"),
    }
    out
}

/// A value on one line of bounded length.
fn one_line(value: &Value) -> String {
    const LONGEST: usize = 100;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()),
        None => text,
    }
}

fn one_word(name: &str) -> String {
    name.chars().take(120).flat_map(char::escape_debug).collect()
}
