//! Whether this user may use the GPUs: the files that drivers open, `/dev/dri/renderD*`. NPUs have such
//! files, too: `/dev/accel/accel*`.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use super::machine::{Machine, User};
use super::row::Row;

/// A device's file.
pub struct RenderNode {
    pub path: String,
    /// The group that may open it.
    pub group: Option<u32>,
    /// Why it could not be opened, if so.
    pub refused: Option<ErrorKind>,
}

/// The GPUs' nodes that there are, each tried.
pub fn find(machine: &Machine) -> Vec<RenderNode> {
    find_in(machine, "/dev/dri", "renderD")
}

/// The files in a folder whose names begin so, each tried.
pub fn find_in(machine: &Machine, folder: &str, prefix: &str) -> Vec<RenderNode> {
    let names = machine.names(folder).into_iter().filter(|name| name.starts_with(prefix));
    let node = |name: String| {
        let path = format!("{folder}/{name}");
        let place = machine.path(&path);
        let opened = File::options().read(true).write(true).open(&place);
        RenderNode { path, group: group_of(&place), refused: opened.err().map(|e| e.kind()) }
    };
    names.map(node).collect()
}

#[cfg(unix)]
fn group_of(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|metadata| metadata.gid())
}

#[cfg(not(unix))]
fn group_of(_: &Path) -> Option<u32> {
    None
}

/// A row for each node. `groups` is the text of `/etc/group`; `driven` says that the kernel drives a GPU.
pub fn rows(nodes: &[RenderNode], user: &User, groups: &str, driven: bool) -> Vec<Row> {
    if nodes.is_empty() && driven {
        let text = "there is no /dev/dri/renderD*, through which drivers reach the GPU";
        return vec![Row::warning("access", text).fix(
            "load the GPU's kernel driver; in a container, start it with `--device /dev/dri`",
        )];
    }
    nodes.iter().map(|node| row(node, user, groups)).collect()
}

/// Whether a node can be opened, and if not, why.
pub fn row(node: &RenderNode, user: &User, groups: &str) -> Row {
    let path = &node.path;
    match node.refused {
        None => return Row::fine("access", format!("{path} can be opened")),
        Some(ErrorKind::PermissionDenied) => {}
        Some(other) => return Row::warning("access", format!("{path} cannot be opened: {other}")),
    }
    let entry = groups.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
        fields.len() > 3 && node.group.is_some_and(|group| fields[2].parse() == Ok(group))
    });
    let group = entry.as_ref().map_or("render", |fields| fields[0]);
    let member = entry.as_ref().is_some_and(|fields| {
        fields[3].split(',').any(|member| Some(member) == user.name.as_deref())
    });
    let in_force = node.group.is_some_and(|group| user.groups.contains(&group));
    let text = format!("{path} may not be opened by this user");
    match (in_force, member) {
        (true, _) => Row::warning("access", format!("{text}, though in its group {group}"))
            .fix(format!("sudo chmod g+rw {path}")),
        (false, true) => {
            Row::warning("access", format!("{text}: group {group} counts from the next login"))
                .fix("log out and in again")
        }
        (false, false) => Row::warning("access", format!("{text}: it is not in group {group}"))
            .fix(format!("sudo usermod -aG {group} $USER   (then log out and in again)")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    const GROUPS: &str = "root:x:0:\nvideo:x:44:\nrender:x:105:bob\n";

    fn node(refused: Option<ErrorKind>) -> [RenderNode; 1] {
        [RenderNode { path: "/dev/dri/renderD128".into(), group: Some(105), refused }]
    }

    #[test]
    fn a_user_outside_the_group_is_told_the_command() {
        let user = |name: &str| User { name: Some(name.into()), ..User::default() };
        let denied = node(Some(ErrorKind::PermissionDenied));
        let rows_of = |name| rows(&denied, &user(name), GROUPS, true).remove(0);
        let alice = rows_of("alice");
        assert_eq!(alice.verdict, Verdict::Warning);
        assert!(alice.fix.unwrap().starts_with("sudo usermod -aG render $USER "));
        assert_eq!(rows_of("bob").fix.as_deref(), Some("log out and in again"));
        let inside = User { groups: vec![105], ..user("bob") };
        let row = rows(&denied, &inside, GROUPS, true).remove(0);
        assert!(row.fix.unwrap().starts_with("sudo chmod g+rw /dev/dri/renderD128"));
        let fine = rows(&node(None), &user("alice"), GROUPS, true).remove(0);
        assert_eq!(fine.verdict, Verdict::Fine);
    }

    #[test]
    fn nodes_are_missed_only_where_there_is_a_gpu() {
        assert!(rows(&[], &User::default(), GROUPS, false).is_empty());
        assert_eq!(rows(&[], &User::default(), GROUPS, true)[0].verdict, Verdict::Warning);
        let machine = Recorded::new(&[("/dev/dri/card0", ""), ("/dev/dri/renderD129", "")], &[]);
        let found = find(&machine.0);
        assert_eq!(found.len(), 1);
        assert!(found[0].path == "/dev/dri/renderD129" && found[0].refused.is_none());
    }
}
