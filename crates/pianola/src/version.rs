//! Which build this is.

/// The version, as Cargo knows it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit it was built from, with `-dirty` behind it where sources differed; `unknown` outside
/// a checkout.
pub const COMMIT: &str = env!("PIANOLA_COMMIT");
/// Both, for `--version`.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("PIANOLA_COMMIT"), ")");
