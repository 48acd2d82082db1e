//! Where the vocabularies and templates of real models lie.

use crate::support::skip;
use std::path::PathBuf;

/// The folder of models, or `None` where the tests were told to do without.
#[track_caller]
pub fn models() -> Option<PathBuf> {
    match std::env::var("PIANOLA_TEST_MODELS") {
        Ok(skip) if skip == "skip" => {
            skip::skip("PIANOLA_TEST_MODELS is 'skip'");
            None
        }
        Ok(folder) => Some(PathBuf::from(folder)),
        Err(_) => panic!(
            "PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the vocabularies, \
             or set it to `skip`"
        ),
    }
}
