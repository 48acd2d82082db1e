//! Numbers in words.

/// A number of things: `1 row`, `2 rows`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// Bytes for people.
pub fn size_text(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Parameters in millions, or in billions from a thousand of them on.
pub fn parameters_text(parameters: u64) -> String {
    match parameters {
        0..1_000_000_000 => format!("{:.1} M parameters", parameters as f64 / 1e6),
        _ => format!("{:.1} B parameters", parameters as f64 / 1e9),
    }
}

/// A device's part of a model of `all` layers in words: `layers 3 to 5 and the head`.
pub fn part_text(layers: std::ops::Range<usize>, all: usize, head: bool) -> String {
    match (layers.is_empty(), head) {
        (false, true) => format!("{} and the head", layer_range(layers, all)),
        (true, true) => "the head".to_string(),
        (_, false) => layer_range(layers, all),
    }
}

/// Layers in words: `layers 3 to 5`, `all 6 layers`.
pub fn layer_range(layers: std::ops::Range<usize>, all: usize) -> String {
    match layers.len() {
        0 => "no layer".to_string(),
        count if count == all => format!("all {all} layers"),
        1 => format!("layer {}", layers.start),
        _ => format!("layers {} to {}", layers.start, layers.end - 1),
    }
}
