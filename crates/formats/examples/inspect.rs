//! Prints what is in a model, or decodes one tensor into an `.npy` file:
//! `inspect MODEL` or `inspect MODEL TENSOR OUT.npy`.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use pianola_formats::npy::F32Writer;
use pianola_formats::{Gguf, HuggingFaceFolder, TensorSource, Value};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(model) = arguments.first().map(Path::new) else {
        return Err("usage: inspect MODEL [TENSOR OUT.npy]".into());
    };
    let start = Instant::now();
    let source: Box<dyn TensorSource> = if model.is_dir() {
        let folder = HuggingFaceFolder::open(model)?;
        println!("config {:#?}", folder.config());
        folder.unsupported().for_each(|(name, dtype)| println!("not decoded: {name:?} {dtype:?}"));
        Box::new(folder)
    } else {
        let gguf = Gguf::open(model)?;
        println!("GGUF version {}, opened in {:?}", gguf.version(), start.elapsed());
        for (key, value) in gguf.metadata() {
            match value {
                Value::Array(array) => println!("{key:?} = array of {}", array.len()),
                value => println!("{key:?} = {value:?}"),
            }
        }
        Box::new(gguf)
    };
    if let [_, name, out] = &arguments[..] {
        let tensor = source.try_tensor(name)?;
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let mut writer = F32Writer::create(out, columns)?;
        writer.push_rows(&tensor.to_f32())?;
        writer.finish()?;
        return Ok(());
    }
    let mut types = BTreeMap::new();
    for info in source.tensor_infos() {
        println!("{:6} {:20} {:?}", info.ty, format!("{:?}", info.shape), info.name);
        let (count, bytes) = types.entry(info.ty).or_insert((0, 0));
        *count += 1;
        *bytes += info.bytes;
    }
    for (ty, (count, bytes)) in types {
        println!("{ty}: {count} tensors, {bytes} bytes");
    }
    Ok(())
}
