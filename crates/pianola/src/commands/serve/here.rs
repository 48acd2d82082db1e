//! The models on this machine, for a server that was given no names: those of the store, and those of
//! the hub's cache. Other programs' models are served where they are named.

use std::collections::HashSet;
use std::path::PathBuf;

use pianola_hub::catalogue::{self, CATALOGUE};
use pianola_hub::obtain::OnMachine;
use pianola_hub::{LocalModels, Program, Settings, State, Store};

use super::served::{Served, add, served};
use crate::console::Console;
use crate::failure::Failure;
use crate::options::DEFAULT_MODEL;

/// A model that is here, by its name.
struct Candidate {
    name: String,
    path: PathBuf,
    /// Whether the store keeps it: then it is meant for us.
    stored: bool,
}

/// The models that can be read, the default model first, then as `pianola list` shows them. What is
/// known is not read again.
pub fn find(known: &[Served], console: Console) -> Result<Vec<Served>, Failure> {
    let mut models = Vec::new();
    for Candidate { name, path, stored } in candidates(console)? {
        let same = known.iter().find(|model| model.card.id == name && model.path == path);
        match same.map_or_else(|| served(&name, &path), |same| Ok(same.clone())) {
            // Of two with one name the first is meant, as -m has it.
            Ok(model) => drop(add(&mut models, model)),
            Err(error) => {
                let failure = Failure::from(error).about(&path);
                let message = failure.message().unwrap_or_default();
                let line = format!("{name} cannot be served: {message}");
                match stored {
                    true => console.notice(&line),
                    false => console.detail(&line),
                }
            }
        }
    }
    models.sort_by_key(|model| model.card.id != DEFAULT_MODEL);
    Ok(models)
}

fn candidates(console: Console) -> Result<Vec<Candidate>, Failure> {
    let mut found = Vec::new();
    for listed in Store::open()?.list()? {
        let (name, path) = (listed.name, listed.path);
        match listed.state {
            State::Present => found.push(Candidate { name, path, stored: true }),
            State::Partial | State::Damaged => console.notice(&format!(
                "{name} is {} and is not served; `pianola pull {name}` makes it whole",
                listed.state.name()
            )),
        }
    }
    // Without a home there is no cache of the hub.
    let Ok(settings) = Settings::from_environment() else { return Ok(found) };
    let machine = OnMachine::look()?;
    for entry in CATALOGUE {
        if let catalogue::Source::Hub(file) = &entry.source
            // Several programs that have it are told apart where one is named.
            && let Ok(Some(located)) = machine.catalogued(entry, file)
            && located.label == entry.name
        {
            found.push(Candidate { name: located.label, path: located.path, stored: false });
        }
    }
    let others = LocalModels::find(Some(&settings)).models.into_iter();
    found.extend(others.filter(|model| model.program == Program::Hub).map(|model| Candidate {
        name: model.full_name(),
        path: model.path,
        stored: false,
    }));
    Ok(found)
}

/// Says what is served, where that is a choice.
pub fn tell(models: &[Served], console: Console) {
    const MOST: usize = 10;
    let [first, others @ ..] = models else { return };
    if others.is_empty() {
        return;
    }
    let names: Vec<&str> = others.iter().take(MOST).map(|model| model.card.id.as_str()).collect();
    let more = match others.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    console.notice(&format!(
        "serving all that is here: {}, which is loaded first; {}{more}, loaded when asked for; -m serves only \
         what it names",
        first.card.id,
        names.join(", "),
    ));
}

/// What was served and is still here, then what has come.
pub fn merged(known: Vec<Served>, found: Vec<Served>) -> Vec<Served> {
    let ids = |models: &[Served]| -> HashSet<String> {
        models.iter().map(|model| model.card.id.clone()).collect()
    };
    let (here, before) = (ids(&found), ids(&known));
    let still = known.into_iter().filter(|model| here.contains(&model.card.id));
    let still: Vec<Served> = still.collect();
    let new = found.into_iter().filter(|model| !before.contains(&model.card.id));
    still.into_iter().chain(new).collect()
}

/// How a model that is not served can be.
pub fn advice(name: &str, follows: bool) -> String {
    if !follows {
        return "this server serves only what it was started with; start it with -m for each model, or \
                without a name for all that are here"
            .to_string();
    }
    match (catalogue::find(name), &catalogue::nearest(name)[..]) {
        (Some(entry), _) => format!("`pianola pull {}` fetches it", entry.name),
        (None, []) => {
            "`pianola pull NAME` fetches a model, `pianola serve -m PATH` serves a file".to_string()
        }
        (None, near) => {
            format!("`pianola pull NAME` fetches a model (did you mean {}?)", near.join(" or "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str) -> Served {
        let card = pianola_server::ModelCard { id: id.into(), ..Default::default() };
        Served { card, path: id.into() }
    }

    #[test]
    fn what_comes_is_added_behind_and_what_goes_is_left_out() {
        let models = |ids: &[&str]| ids.iter().map(|id| model(id)).collect::<Vec<_>>();
        let now = merged(models(&["b", "c"]), models(&["a", "b", "d"]));
        let ids: Vec<&str> = now.iter().map(|model| model.card.id.as_str()).collect();
        assert_eq!(ids, ["b", "a", "d"]);
    }

    #[test]
    fn names_are_answered_with_what_fetches_them() {
        assert_eq!(advice("GEMMA3:4B", true), "`pianola pull gemma3:4b` fetches it");
        assert!(advice("gemma3:4bb", true).contains("did you mean gemma3:4b"));
        assert!(advice("gpt-3.5-turbo", true).contains("serve -m PATH"));
        assert!(advice("gemma3:4b", false).contains("start it with -m"));
    }
}
