//! A file that is cut short while it is loaded: an error that says so, and the process goes on.

use crate::support::golden::{folder, logits, options};
use pianola_cpu::Level;
use pianola_engine::{Engine, EngineError, ErrorKind};
use pianola_formats::npy;
use std::fs::File;
use std::path::Path;

const CASE: &str = "llama-bias";

/// Loads a copy of a golden case, and cuts its weights to `length` bytes once some are read.
fn load(copy: &Path, length: Option<u64>) -> Result<Engine, EngineError> {
    std::fs::create_dir_all(copy).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(folder(CASE).join(name), copy.join(name)).unwrap();
    }
    let mut cut = length;
    Engine::load(copy, options(&folder(CASE), Level::best()), &mut |_, _| {
        if let Some(length) = cut.take() {
            let weights = File::options().write(true).open(copy.join("model.safetensors"));
            weights.unwrap().set_len(length).unwrap();
        }
    })
}

#[test]
fn a_file_that_is_cut_short_is_an_error_and_the_next_load_is_whole() {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("truncated");
    let whole = std::fs::metadata(folder(CASE).join("model.safetensors")).unwrap().len();
    // All, a part, and less than a page, of which no read takes notice.
    for length in [0, whole / 2, whole - 1] {
        let error = load(&copy, Some(length)).err().expect("the file was cut short");
        assert_eq!(error.kind(), ErrorKind::Load);
        let expected = format!("became shorter while it was read, from {whole} to {length} bytes");
        let found = error.to_string();
        assert!(found.contains("model.safetensors") && found.contains(&expected), "{found}");
    }
    let tokens = npy::read_tokens(folder(CASE).join("tokens.npy")).unwrap();
    let (_, expected) = npy::read_f32(folder(CASE).join("logits.npy")).unwrap();
    let found = logits(&mut load(&copy, None).unwrap(), &tokens, 512);
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-2));
}
