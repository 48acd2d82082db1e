//! The findings as text and as JSON.

use serde_json::{Value, json};

use super::row::{Group, Row, Verdict};
use crate::console;
use crate::version::{COMMIT, VERSION};

/// For people: a line a row, its command below it.
pub fn text(groups: &[Group]) -> String {
    let mut text = format!("pianola {VERSION} ({COMMIT})\n");
    for group in groups {
        text.push_str(&format!("\n{}\n", group.name));
        let width = group.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        for Row { verdict, name, text: words, fix } in &group.rows {
            let mark = match verdict {
                Verdict::Broken => "FAIL",
                verdict => verdict.name(),
            };
            text.push_str(&format!("  {mark:<4}  {name:<width$}  {words}\n"));
            for line in fix.iter().flat_map(|fix| fix.lines()) {
                text.push_str(&format!("        {:width$}  -> {line}\n", ""));
            }
        }
    }
    let count = |verdict| {
        groups.iter().flat_map(|group| &group.rows).filter(|row| row.verdict == verdict).count()
    };
    let (warnings, broken) = (count(Verdict::Warning), count(Verdict::Broken));
    let summary = match (warnings, broken) {
        (0, 0) => "everything is fine".to_string(),
        (_, 0) => format!("nothing prevents running; {}", console::count(warnings, "warning")),
        _ => format!(
            "{} running; {}",
            match broken {
                1 => "1 thing prevents".to_string(),
                _ => format!("{broken} things prevent"),
            },
            console::count(warnings, "warning")
        ),
    };
    text.push_str(&format!("\n{summary}\n"));
    text
}

/// For machines.
pub fn object(groups: &[Group]) -> Value {
    let row = |row: &Row| {
        json!({
            "verdict": row.verdict.name(),
            "name": row.name,
            "text": row.text,
            "fix": row.fix,
        })
    };
    let group = |group: &Group| json!({ "name": group.name, "rows": group.rows.iter().map(row).collect::<Vec<_>>() });
    let mut rows = groups.iter().flat_map(|group| &group.rows);
    json!({
        "version": VERSION,
        "commit": COMMIT,
        "passed": rows.all(|row| row.verdict != Verdict::Broken),
        "groups": groups.iter().map(group).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_printed_with_their_commands() {
        let rows = vec![
            Row::fine("loader", "found"),
            Row::warning("gtt", "small").fix("do this"),
            Row::broken("store", "gone"),
        ];
        let groups = [Group { name: "gpu", rows }];
        let text = text(&groups);
        let expected = "\ngpu\n  ok    loader  found\n  warn  gtt     small\n\
                        \x20               -> do this\n  FAIL  store   gone\n\n\
                        1 thing prevents running; 1 warning\n";
        assert!(text.ends_with(expected), "{text}");
        let object = object(&groups);
        assert_eq!(object["passed"], false);
        assert_eq!(object["groups"][0]["rows"][1]["fix"], "do this");
    }
}
