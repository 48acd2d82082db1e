//! How a package is installed on this distribution.

use super::machine::Machine;

/// What may be missing.
#[derive(Clone, Copy, Debug)]
pub enum Package {
    /// Vulkan's loader.
    Loader,
    /// Mesa's Vulkan drivers, for AMD and Intel.
    Mesa,
    /// NVIDIA's driver.
    Nvidia,
    /// Python's installer, which fetches models that come in packages.
    Pip,
}

/// The command that installs it; for an unknown distribution the names to look for.
pub fn command(machine: &Machine, package: Package) -> String {
    let release = machine.read("/etc/os-release").unwrap_or_default();
    let field = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches('"').to_string()
    };
    let family = format!("{} {}", field("ID"), field("ID_LIKE"));
    let is = |names: &[&str]| family.split(' ').any(|word| names.contains(&word));
    if is(&["debian", "ubuntu"]) {
        let name = match package {
            Package::Loader => "libvulkan1",
            Package::Mesa => "mesa-vulkan-drivers",
            Package::Pip => "python3-pip",
            // Ubuntu names its drivers by version and has a command that knows them.
            Package::Nvidia if is(&["ubuntu"]) => return "sudo ubuntu-drivers install".into(),
            Package::Nvidia => "nvidia-driver",
        };
        format!("sudo apt install {name}")
    } else if is(&["fedora", "rhel"]) {
        let name = match package {
            Package::Loader => "vulkan-loader",
            Package::Mesa => "mesa-vulkan-drivers",
            Package::Nvidia => "akmod-nvidia",
            Package::Pip => "python3-pip",
        };
        format!("sudo dnf install {name}")
    } else if is(&["arch"]) {
        let name = match package {
            Package::Loader => "vulkan-icd-loader",
            Package::Mesa => "vulkan-radeon vulkan-intel",
            Package::Nvidia => "nvidia",
            Package::Pip => "python-pip",
        };
        format!("sudo pacman -S {name}")
    } else {
        let name = match package {
            Package::Loader => "the Vulkan loader (libvulkan1 or vulkan-loader)",
            Package::Mesa => "Mesa's Vulkan drivers (mesa-vulkan-drivers)",
            Package::Nvidia => "NVIDIA's driver",
            Package::Pip => "pip (python3-pip)",
        };
        format!("install {name} with this system's package manager")
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::*;

    #[test]
    fn each_distribution_has_its_command() {
        let on = |release: &str, package| {
            command(&Recorded::new(&[("/etc/os-release", release)], &[]).0, package)
        };
        assert_eq!(on("ID=debian\n", Package::Loader), "sudo apt install libvulkan1");
        assert_eq!(on("ID=mint\nID_LIKE=\"ubuntu debian\"\n", Package::Mesa), {
            "sudo apt install mesa-vulkan-drivers"
        });
        assert_eq!(on("ID=fedora\n", Package::Loader), "sudo dnf install vulkan-loader");
        assert_eq!(on("ID=arch\n", Package::Nvidia), "sudo pacman -S nvidia");
        assert!(on("ID=nixos\n", Package::Mesa).contains("package manager"));
    }
}
