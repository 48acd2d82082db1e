//! Vulkan drivers that are installed, as their manifests tell the loader.

use serde_json::Value;

use super::card::{Card, Vendor};
use super::install;
use super::machine::Machine;
use super::row::Row;

/// A manifest, and what is wrong with it.
pub struct Manifest {
    path: String,
    problem: Option<String>,
}

impl Manifest {
    /// The file's name without `.json`.
    fn name(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.strip_suffix(".json").unwrap_or(name)
    }

    /// Whether its driver computes on the processor.
    fn is_software(&self) -> bool {
        ["lvp", "swiftshader", "vk_swiftshader"].iter().any(|start| self.name().starts_with(start))
    }

    fn serves(&self, vendor: Vendor) -> bool {
        vendor.manifests().iter().any(|start| self.name().starts_with(start))
    }

    fn read(machine: &Machine, path: String) -> Manifest {
        let problem = problem(machine, &path);
        Manifest { path, problem }
    }
}

/// Why the loader cannot use a manifest.
fn problem(machine: &Machine, path: &str) -> Option<String> {
    let Some(text) = machine.read(path) else { return Some("it cannot be read".into()) };
    let value: Option<Value> = serde_json::from_str(&text).ok();
    let library = value.as_ref().and_then(|value| value["ICD"]["library_path"].as_str());
    let Some(library) = library else { return Some("it names no library".into()) };
    // A bare name is looked for by the system's linker, which has more folders than we know.
    let library = match (library.starts_with('/'), library.contains('/')) {
        (true, _) => library.to_string(),
        (false, true) => format!("{}/{library}", path.rsplit_once('/').map_or("", |(dir, _)| dir)),
        (false, false) => return None,
    };
    (!machine.exists(&library)).then(|| format!("its library {library} is not there"))
}

/// The variable that names drivers instead of the standard folders, and its value.
fn chosen(machine: &Machine) -> Option<(&'static str, &str)> {
    let variables = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
    variables.into_iter().find_map(|name| Some((name, machine.variable(name)?)))
}

/// The manifests that the loader reads, in its order.
pub fn find(machine: &Machine) -> Vec<Manifest> {
    let places: Vec<String> = match chosen(machine) {
        Some((_, list)) => list.split(':').map(String::from).collect(),
        None => {
            let home = machine.variable("HOME").unwrap_or_default();
            let folder = |variable: &str, default: &str| {
                machine.variable(variable).map_or(format!("{home}/{default}"), String::from)
            };
            let roots = [
                folder("XDG_CONFIG_HOME", ".config"),
                "/etc/xdg".into(),
                "/etc".into(),
                folder("XDG_DATA_HOME", ".local/share"),
                "/usr/local/share".into(),
                "/usr/share".into(),
            ];
            roots.map(|root| format!("{root}/vulkan/icd.d")).to_vec()
        }
    };
    let mut found = Vec::new();
    for place in places.iter().filter(|place| !place.is_empty()) {
        if place.ends_with(".json") || chosen(machine).is_some() && !machine.path(place).is_dir() {
            found.push(Manifest::read(machine, place.clone()));
            continue;
        }
        let names = machine.names(place).into_iter().filter(|name| name.ends_with(".json"));
        found.extend(names.map(|name| Manifest::read(machine, format!("{place}/{name}"))));
    }
    found
}

/// The drivers, those that cannot be used, and cards that have none.
pub fn rows(machine: &Machine, manifests: &[Manifest], cards: &[Card]) -> Vec<Row> {
    let usable = |manifest: &&Manifest| manifest.problem.is_none();
    let name = |manifest: &Manifest| match manifest.is_software() {
        true => format!("{} (software)", manifest.name()),
        false => manifest.name().to_string(),
    };
    let names: Vec<String> = manifests.iter().filter(usable).map(name).collect();
    let mut rows = Vec::new();
    let only = chosen(machine).map(|(variable, _)| variable);
    let text = match (names.is_empty(), only) {
        (true, None) => "no Vulkan driver is installed".to_string(),
        (true, Some(variable)) => format!("{variable} names no driver that can be used"),
        (false, None) => names.join(", "),
        (false, Some(variable)) => format!("{}, as {variable} says", names.join(", ")),
    };
    rows.push(match (names.is_empty(), only) {
        (true, Some(variable)) => Row::warning("drivers", text).fix(format!("unset {variable}")),
        _ => Row::fine("drivers", text),
    });
    for manifest in manifests {
        if let Some(problem) = &manifest.problem {
            let text = format!("{} cannot be used: {problem}", manifest.path);
            rows.push(Row::warning("driver", text).fix(match only {
                Some(variable) => format!("unset {variable}"),
                None => format!("sudo rm {}   (or install its driver again)", manifest.path),
            }));
        }
    }
    for vendor in [Vendor::Amd, Vendor::Intel, Vendor::Nvidia] {
        let present = cards.iter().any(|card| card.vendor == vendor);
        if present
            && only.is_none()
            && !manifests.iter().filter(usable).any(|one| one.serves(vendor))
        {
            let text = format!("there is no Vulkan driver for the GPU of {}", vendor.name());
            let fix = install::command(machine, vendor.package());
            rows.push(Row::warning("driver", text).fix(fix));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    const RADEON: &str = r#"{"ICD": {"api_version": "1.3.278", "library_path": "/lib/radeon.so"}}"#;
    const LAVAPIPE: &str =
        r#"{"ICD": {"api_version": "1.3.278", "library_path": "libvulkan_lvp.so"}}"#;
    const CARD: (&str, &str) = (
        "/sys/bus/pci/devices/0000:c1:00.0/uevent",
        "DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_ID=1002:15BF\n",
    );

    fn rows_of(files: &[(&str, &str)], variables: &[(&str, &str)]) -> Vec<Row> {
        let machine = &Recorded::new(files, variables).0;
        rows(machine, &find(machine), &super::super::card::find(machine))
    }

    #[test]
    fn drivers_are_listed_and_damaged_ones_named() {
        let mut files = vec![
            ("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json", LAVAPIPE),
            ("/usr/share/vulkan/icd.d/radeon_icd.x86_64.json", RADEON),
            ("/lib/radeon.so", ""),
            CARD,
        ];
        let fine = Row::fine("drivers", "lvp_icd.x86_64 (software), radeon_icd.x86_64");
        assert_eq!(rows_of(&files, &[]), [fine]);
        files.remove(2);
        let rows = rows_of(&files, &[]);
        assert_eq!(rows[0], Row::fine("drivers", "lvp_icd.x86_64 (software)"));
        assert!(rows[1].text.contains("/lib/radeon.so is not there"), "{rows:?}");
        assert!(rows[2].text.contains("no Vulkan driver for the GPU of AMD"), "{rows:?}");
        files.truncate(1);
        assert_eq!(rows_of(&files, &[]).len(), 1);
    }

    #[test]
    fn a_card_without_a_driver_is_told_the_package() {
        let rows = rows_of(&[CARD, ("/etc/os-release", "ID=ubuntu\n")], &[]);
        assert_eq!(rows[1].fix.as_deref(), Some("sudo apt install mesa-vulkan-drivers"));
        assert_eq!(rows[1].verdict, Verdict::Warning);
    }

    #[test]
    fn a_variable_that_leads_nowhere_is_named() {
        let rows = rows_of(&[], &[("VK_DRIVER_FILES", "/none")]);
        assert_eq!(rows[0].fix.as_deref(), Some("unset VK_DRIVER_FILES"));
        assert!(rows.iter().all(|row| row.verdict == Verdict::Warning));
        let files = [("/opt/lvp_icd.json", LAVAPIPE)];
        let rows = rows_of(&files, &[("VK_ICD_FILENAMES", "/opt/lvp_icd.json")]);
        assert_eq!(rows[0].text, "lvp_icd (software), as VK_ICD_FILENAMES says");
    }
}
