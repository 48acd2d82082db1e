//! A text to show to others: without the user's name, home folder, host name and tokens.

use pianola_hub::Settings;

use super::environment;
use super::machine::Machine;

/// What must not be in a report, and what stands in its place.
pub struct Privacy {
    secrets: Vec<String>,
    homes: Vec<String>,
    users: Vec<String>,
    hosts: Vec<String>,
}

impl Privacy {
    pub fn of(machine: &Machine) -> Privacy {
        let user = machine.user();
        let variable = |name: &str| machine.variable(name).map(String::from);
        let host = |file: &str| machine.read(file).map(|text| text.trim().to_string());
        let mut secrets = environment::secrets(machine);
        // A token may come from a file.
        secrets.extend(Settings::from_environment().ok().and_then(|settings| settings.token));
        // Shorter ones would be found in every word.
        secrets.retain(|secret| secret.len() >= 4);
        let mut homes: Vec<String> = [variable("HOME"), user.home].into_iter().flatten().collect();
        homes.iter_mut().for_each(|home| home.truncate(home.trim_end_matches('/').len()));
        let users = [variable("USER"), variable("LOGNAME"), user.name];
        let hosts =
            [variable("HOSTNAME"), host("/proc/sys/kernel/hostname"), host("/etc/hostname")];
        let words = |words: [Option<String>; 3]| -> Vec<String> {
            words.into_iter().flatten().filter(|word| !word.is_empty()).collect()
        };
        homes.retain(|home| !home.is_empty());
        Privacy { secrets, homes, users: words(users), hosts: words(hosts) }
    }

    /// The text with all of that replaced.
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_string();
        for secret in &self.secrets {
            text = text.replace(secret, "…");
        }
        let replacements = [(&self.homes, "~"), (&self.hosts, "HOST"), (&self.users, "USER")];
        for (words, replacement) in replacements {
            for word in words {
                text = replace_word(&text, word, replacement);
            }
        }
        text
    }
}

/// Replaces a word where it stands by itself: not inside a longer one.
fn replace_word(text: &str, word: &str, replacement: &str) -> String {
    let inside = |character: char| character.is_alphanumeric() || character == '_';
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, found) = rest.split_at(at);
        let after = &found[word.len()..];
        replaced.push_str(before);
        let previous = replaced.chars().next_back();
        let continues_before = previous.is_some_and(inside) && word.starts_with(inside);
        let continues_after = after.starts_with(inside) && word.ends_with(inside);
        let whole = !continues_before && !continues_after;
        replaced.push_str(if whole { replacement } else { word });
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::*;

    #[test]
    fn names_paths_and_tokens_are_replaced() {
        let files = [
            ("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n"),
            (
                "/etc/passwd",
                "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n",
            ),
            ("/proc/sys/kernel/hostname", "wonderland\n"),
        ];
        let variables = [("HOME", "/data/al/"), ("USER", "al"), ("HF_TOKEN", "hf_secret")];
        let privacy = Privacy::of(&Recorded::new(&files, &variables).0);
        let text = "/data/al/models and /home/alice/x on wonderland: algebra, /media/al/x, \
                    /data/album, hf_secret1";
        assert_eq!(
            privacy.redact(text),
            "~/models and ~/x on HOST: algebra, /media/USER/x, /data/album, …1"
        );
    }

    #[test]
    fn a_root_home_replaces_nothing() {
        let privacy = Privacy::of(&Recorded::new(&[], &[("HOME", "/")]).0);
        assert_eq!(privacy.redact("/usr/share"), "/usr/share");
    }
}
