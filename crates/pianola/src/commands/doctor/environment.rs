//! Variables that this program and the libraries below it read, those that are set.

use super::machine::Machine;
use super::row::Row;

/// What may be shown of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Its value.
    Value,
    /// An address: without name and password in it.
    Address,
    /// That it is set.
    Name,
}

const VARIABLES: [(&str, Shown); 32] = [
    ("PIANOLA_HOME", Shown::Value),
    ("PIANOLA_PIP", Shown::Value),
    ("PIANOLA_SIMD", Shown::Value),
    ("PIANOLA_API_KEYS", Shown::Name),
    ("HF_HOME", Shown::Value),
    ("HF_HUB_CACHE", Shown::Value),
    ("HF_ENDPOINT", Shown::Address),
    ("HF_TOKEN", Shown::Name),
    ("HF_TOKEN_PATH", Shown::Value),
    ("HF_HUB_OFFLINE", Shown::Value),
    ("OLLAMA_MODELS", Shown::Value),
    ("LLAMA_CACHE", Shown::Value),
    ("XDG_CACHE_HOME", Shown::Value),
    ("HTTPS_PROXY", Shown::Name),
    ("https_proxy", Shown::Name),
    ("HTTP_PROXY", Shown::Name),
    ("http_proxy", Shown::Name),
    ("ALL_PROXY", Shown::Name),
    ("all_proxy", Shown::Name),
    ("NO_PROXY", Shown::Name),
    ("no_proxy", Shown::Name),
    ("NO_COLOR", Shown::Value),
    ("TERM", Shown::Value),
    ("VK_DRIVER_FILES", Shown::Value),
    ("VK_ICD_FILENAMES", Shown::Value),
    ("VK_ADD_DRIVER_FILES", Shown::Value),
    ("VK_LOADER_DRIVERS_SELECT", Shown::Value),
    ("VK_LOADER_DRIVERS_DISABLE", Shown::Value),
    (LAYERS, Shown::Value),
    ("MESA_VK_DEVICE_SELECT", Shown::Value),
    ("RADV_DEBUG", Shown::Value),
    ("RADV_PERFTEST", Shown::Value),
];

/// Layers stand between a program and the driver.
const LAYERS: &str = "VK_INSTANCE_LAYERS";

pub fn examine(machine: &Machine) -> Vec<Row> {
    let set = |(name, shown): &(&str, Shown)| Some(row(name, machine.variable(name)?, *shown));
    let rows: Vec<Row> = VARIABLES.iter().filter_map(set).collect();
    match rows.is_empty() {
        true => vec![Row::fine("variables", "none is set that this program reads")],
        false => rows,
    }
}

/// The values that must never be shown.
pub fn secrets(machine: &Machine) -> Vec<String> {
    let private = VARIABLES.iter().filter(|(_, shown)| *shown == Shown::Name);
    let values = private.filter_map(|(name, _)| machine.variable(name));
    // Keys stand in a list.
    values.flat_map(|value| value.split(',')).map(|value| value.trim().to_string()).collect()
}

fn row(name: &str, value: &str, shown: Shown) -> Row {
    match shown {
        Shown::Value if name == LAYERS => {
            Row::warning(name, format!("{value}: layers slow down every call"))
                .fix(format!("unset {LAYERS}"))
        }
        Shown::Value => Row::fine(name, value),
        Shown::Address => Row::fine(name, without_credentials(value)),
        Shown::Name => Row::fine(name, "set (its value is not shown)"),
    }
}

/// An address without what stands before an @, and without its query.
fn without_credentials(address: &str) -> String {
    let address = address.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(s, rest)| (s, rest));
    let host_end = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(host_end);
    let host = host.rsplit('@').next().unwrap_or(host);
    match scheme {
        "" => format!("{host}{path}"),
        _ => format!("{scheme}://{host}{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    #[test]
    fn private_values_are_not_shown() {
        let variables = [
            ("HF_TOKEN", "hf_secret"),
            ("PIANOLA_API_KEYS", "key-one,key-two"),
            ("HTTPS_PROXY", "http://me:word@proxy:1"),
            ("HF_ENDPOINT", "https://me:word@hub.example/base?token=word"),
            ("PIANOLA_HOME", "/models"),
            ("OTHER", "x"),
        ];
        let machine = Recorded::new(&[], &variables);
        let rows = examine(&machine.0);
        assert_eq!(rows.len(), 5);
        let all = format!("{rows:?}");
        for secret in ["hf_secret", "key-one", "key-two", "word"] {
            assert!(!all.contains(secret), "{all}");
        }
        assert_eq!(rows[0], Row::fine("PIANOLA_HOME", "/models"));
        assert!(all.contains("https://hub.example/base\""), "{all}");
        assert!(secrets(&machine.0).contains(&"key-two".to_string()));
    }

    #[test]
    fn layers_are_a_warning_and_nothing_is_a_row() {
        let layers = Recorded::new(&[], &[(LAYERS, "VK_LAYER_KHRONOS_validation")]);
        assert_eq!(examine(&layers.0)[0].verdict, Verdict::Warning);
        assert_eq!(examine(&Recorded::new(&[], &[]).0)[0].name, "variables");
    }
}
