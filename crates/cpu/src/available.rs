//! How much memory this process may use: what the machine has, and what its control groups allow. A
//! container is killed when it exceeds its group's limit, however much the machine has.

use std::path::{Path, PathBuf};

/// Gives the content of a file, if there is one that can be read.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Bytes in all and available, where the system reports them.
pub(crate) fn memory() -> Option<(u64, u64)> {
    memory_from(&|path| std::fs::read_to_string(path).ok())
}

fn memory_from(read: Read) -> Option<(u64, u64)> {
    let machine = read(Path::new("/proc/meminfo"))?;
    let kilobytes = |key: &str| {
        let line = machine.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    let (mut all, mut available) = (kilobytes("MemTotal")?, kilobytes("MemAvailable")?);
    for group in groups(read) {
        for limit in group.limits(read) {
            all = all.min(limit);
            available = available.min(limit.saturating_sub(group.used(read)));
        }
    }
    Some((all, available))
}

/// The names of one version's files.
struct Version {
    limits: &'static [&'static str],
    used: &'static str,
    /// Keys of `memory.stat`: pages of files, which the kernel takes back when it needs them.
    reclaimable: [&'static str; 2],
}

const FIRST: Version = Version {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: ["total_active_file", "total_inactive_file"],
};

/// Beyond `memory.high` a group is slowed down until it is of no use.
const SECOND: Version = Version {
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: ["active_file", "inactive_file"],
};

/// A control group that this process is in.
struct Group {
    folder: PathBuf,
    version: &'static Version,
}

/// The groups of this process that may limit its memory, with all that contain them. A folder that
/// is not there, as a container does not see its host's, is passed over when it is read.
fn groups(read: Read) -> Vec<Group> {
    let mine = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    // `number:controllers:path`; the second version has no controllers here.
    for line in mine.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, version) = match controllers {
            "" => ("/sys/fs/cgroup", &SECOND),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", &FIRST)
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        let folders = path.ancestors().map(|ancestor| Path::new(root).join(ancestor));
        groups.extend(folders.map(|folder| Group { folder, version }));
    }
    groups
}

impl Group {
    /// Bytes; a group without a limit says `max`, or a number beyond all memory.
    fn limits(&self, read: Read) -> Vec<u64> {
        let number = |name: &&str| read(&self.folder.join(name))?.trim().parse().ok();
        self.version.limits.iter().filter_map(number).collect()
    }

    /// Bytes in use that stay in use.
    fn used(&self, read: Read) -> u64 {
        let used = read(&self.folder.join(self.version.used));
        let used: u64 = used.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let statistics = read(&self.folder.join("memory.stat")).unwrap_or_default();
        let pages = statistics.lines().filter_map(|line| line.split_once(' '));
        let reclaimable = pages
            .filter(|(key, _)| self.version.reclaimable.contains(key))
            .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok());
        used.saturating_sub(reclaimable.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       32000 kB\nMemFree:  1 kB\nMemAvailable:   20000 kB\n";
    const K: u64 = 1024;

    fn memory_with(files: &[(&str, &str)]) -> Option<(u64, u64)> {
        memory_from(&|path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, content)| content.to_string())
        })
    }

    #[test]
    fn without_groups_the_machine_decides() {
        assert_eq!(memory_with(&[]), None);
        assert_eq!(memory_with(&[("/proc/meminfo", MEMINFO)]), Some((32000 * K, 20000 * K)));
        let files = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/user.slice\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/memory.current", "9999999\n"),
        ];
        assert_eq!(memory_with(&files), Some((32000 * K, 20000 * K)));
    }

    #[test]
    fn the_second_version_limits_by_every_group_on_the_way() {
        let mut files = vec![
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/pod/container\n"),
            ("/sys/fs/cgroup/pod/container/memory.max", "max"),
            ("/sys/fs/cgroup/pod/memory.max", "8192000\n"),
            ("/sys/fs/cgroup/pod/memory.current", "6000000\n"),
            (
                "/sys/fs/cgroup/pod/memory.stat",
                "anon 1\nactive_file 1500000\ninactive_file 500000\n",
            ),
        ];
        assert_eq!(memory_with(&files), Some((8192000, 4192000)));
        files.push(("/sys/fs/cgroup/pod/container/memory.high", "3000000\n"));
        files.push(("/sys/fs/cgroup/pod/container/memory.current", "1000000\n"));
        assert_eq!(memory_with(&files), Some((3000000, 2000000)));
        // Used up, and more.
        files.push(("/sys/fs/cgroup/memory.max", "100\n"));
        files.push(("/sys/fs/cgroup/memory.current", "200\n"));
        assert_eq!(memory_with(&files), Some((100, 0)));
    }

    #[test]
    fn the_first_version_is_read_where_it_rules() {
        let mut files = vec![
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "4:cpu,memory:/docker/1234\n1:cpuset:/\n0::/\n"),
            // A container sees its own group at the root.
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "3000000\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 2000000\n"),
        ];
        assert_eq!(memory_with(&files), Some((4000000, 3000000)));
        files[2].1 = "9223372036854771712\n";
        assert_eq!(memory_with(&files), Some((32000 * K, 20000 * K)));
    }
}
