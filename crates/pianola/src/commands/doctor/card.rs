//! GPUs that the kernel sees, and the kernel's driver for each.

use super::install::{self, Package};
use super::machine::Machine;
use super::row::Row;

/// Vendors whose GPUs have Vulkan drivers that compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    Amd,
    Intel,
    Nvidia,
}

impl Vendor {
    pub fn name(self) -> &'static str {
        match self {
            Vendor::Amd => "AMD",
            Vendor::Intel => "Intel",
            Vendor::Nvidia => "NVIDIA",
        }
    }

    /// The package of its Vulkan driver.
    pub fn package(self) -> Package {
        match self {
            Vendor::Amd | Vendor::Intel => Package::Mesa,
            Vendor::Nvidia => Package::Nvidia,
        }
    }

    /// What the names of its Vulkan drivers' manifests begin with.
    pub fn manifests(self) -> &'static [&'static str] {
        match self {
            Vendor::Amd => &["radeon", "amd"],
            Vendor::Intel => &["intel"],
            Vendor::Nvidia => &["nvidia", "nouveau"],
        }
    }
}

/// A GPU on the PCI bus.
#[derive(Debug, PartialEq, Eq)]
pub struct Card {
    pub vendor: Vendor,
    /// `vendor:device`.
    id: String,
    /// The kernel's driver for it.
    driver: Option<String>,
}

impl Card {
    /// From the text of a device's `uevent`; none for other devices and other vendors.
    fn parse(uevent: &str) -> Option<Card> {
        let field =
            |key: &str| uevent.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        // Class 3 is display controllers; leading zeros are left out.
        let class = field("PCI_CLASS")?;
        if class.len() != 5 || !class.starts_with('3') {
            return None;
        }
        let id = field("PCI_ID")?;
        let vendor = match id.split(':').next()? {
            "1002" => Vendor::Amd,
            "8086" => Vendor::Intel,
            "10DE" => Vendor::Nvidia,
            _ => return None,
        };
        let driver = field("DRIVER").map(String::from);
        Some(Card { vendor, id: id.to_ascii_lowercase(), driver })
    }

    fn row(&self, machine: &Machine) -> Row {
        let name = format!("{} {}", self.vendor.name(), self.id);
        match &self.driver {
            Some(driver) if driver == "vfio-pci" => {
                Row::warning("card", format!("{name} is reserved for virtual machines (vfio-pci)"))
            }
            Some(driver) => Row::fine("card", format!("{name}, kernel driver {driver}")),
            None => {
                let fix = match self.vendor {
                    Vendor::Amd => "sudo modprobe amdgpu".to_string(),
                    Vendor::Intel => "sudo modprobe i915   (newer ones: xe)".to_string(),
                    Vendor::Nvidia => install::command(machine, Package::Nvidia),
                };
                Row::warning("card", format!("{name} has no kernel driver")).fix(fix)
            }
        }
    }
}

/// The GPUs of the machine.
pub fn find(machine: &Machine) -> Vec<Card> {
    let folder = "/sys/bus/pci/devices";
    let devices = machine.names(folder).into_iter();
    devices
        .filter_map(|name| Card::parse(&machine.read(&format!("{folder}/{name}/uevent"))?))
        .collect()
}

/// A row for each, and one for NVIDIA's kernel module, which containers see without the bus.
pub fn rows(machine: &Machine, cards: &[Card]) -> Vec<Row> {
    let mut rows: Vec<Row> = cards.iter().map(|card| card.row(machine)).collect();
    let module = machine.read("/proc/driver/nvidia/version").unwrap_or_default();
    let words = module.lines().next().unwrap_or_default().split_whitespace();
    let mut versions = words.filter(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    if let Some(version) = versions.next() {
        rows.push(Row::fine("kernel module", format!("nvidia {version}")));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    #[test]
    fn cards_are_found_on_the_bus() {
        let radeon =
            "DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:15BF\nPCI_SLOT_NAME=0000:c1:00.0\n";
        let bridge = "DRIVER=pcieport\nPCI_CLASS=60400\nPCI_ID=1022:14EE\n";
        let bare = "PCI_CLASS=30200\nPCI_ID=10DE:2335\n";
        let files = [
            ("/sys/bus/pci/devices/0000:00:01.1/uevent", bridge),
            ("/sys/bus/pci/devices/0000:01:00.0/uevent", bare),
            ("/sys/bus/pci/devices/0000:c1:00.0/uevent", radeon),
            ("/etc/os-release", "ID=debian\n"),
        ];
        let machine = Recorded::new(&files, &[]);
        let cards = find(&machine.0);
        assert_eq!(cards.len(), 2);
        let rows = rows(&machine.0, &cards);
        assert_eq!(rows[0].verdict, Verdict::Warning);
        assert_eq!(rows[0].fix.as_deref(), Some("sudo apt install nvidia-driver"));
        assert_eq!(rows[1], Row::fine("card", "AMD 1002:15bf, kernel driver amdgpu"));
    }

    #[test]
    fn the_module_of_nvidia_is_named() {
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n\
                       GCC version: gcc 13.3.0\n";
        let machine = Recorded::new(&[("/proc/driver/nvidia/version", version)], &[]);
        assert_eq!(rows(&machine.0, &[]), [Row::fine("kernel module", "nvidia 580.159.04")]);
    }
}
