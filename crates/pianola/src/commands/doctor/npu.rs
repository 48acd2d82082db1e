//! AMD's NPU: its driver, firmware and node, the memory that may be locked for it, and its kernels.
//! Nothing here is needed to run models, so that nothing is worse than a warning.

use pianola_npu::amdxdna::{DriverError, Found, Generation, HEAP_BYTES, PowerMode, discover};
use pianola_npu::package::packages;
use pianola_npu::runner::TiledOptions;

use super::machine::{Machine, User};
use super::render_node::{self, RenderNode};
use super::row::{Row, size};
use crate::commands::npu;

/// The first kernel with the driver.
const KERNEL: (u32, u32) = (6, 14);
const AMD: &str = "0x1022";

pub fn examine(machine: &Machine) -> Vec<Row> {
    examine_with(machine, &discover())
}

/// `found` is what answers at the nodes.
fn examine_with(machine: &Machine, found: &Result<Vec<Found>, DriverError>) -> Vec<Row> {
    let answering = found.as_ref().ok().and_then(|devices| devices.first());
    let (mut rows, generation) = match (on_bus(machine), answering) {
        (Some(device), _) => {
            let groups = machine.read("/etc/group").unwrap_or_default();
            let nodes = render_node::find_in(machine, "/dev/accel", "accel");
            let mut rows = vec![device.row()];
            rows.push(kernel(machine.read("/proc/sys/kernel/osrelease").as_deref()));
            rows.extend(driver(machine, &device));
            rows.extend(access(&nodes, &machine.user(), &groups));
            (rows, device.generation)
        }
        // As in a container that has the node and not the bus: driver and access are fine.
        (None, Some(device)) => {
            let generation = device.identity.generation;
            let text = format!("{}, not seen on the PCI bus", described(generation));
            (vec![Row::fine("npu", text)], generation)
        }
        (None, None) => return vec![Row::fine("npu", "no NPU")],
    };
    rows.extend(answers(found));
    rows.extend(locked(&machine.read("/proc/self/limits").unwrap_or_default()));
    rows.extend(kernels(generation));
    rows
}

fn described(generation: Generation) -> String {
    format!("{} ({})", generation.name(), npu::processors(generation))
}

/// An NPU on the PCI bus.
struct PciDevice {
    address: String,
    number: &'static str,
    generation: Generation,
    /// The name of its folder of firmware: device and revision.
    firmware: String,
}

fn on_bus(machine: &Machine) -> Option<PciDevice> {
    const FOLDER: &str = "/sys/bus/pci/devices";
    machine.names(FOLDER).into_iter().find_map(|address| {
        let read = |file: &str| machine.read(&format!("{FOLDER}/{address}/{file}"));
        if read("vendor")?.trim() != AMD {
            return None;
        }
        let (number, generation) = match read("device")?.trim() {
            "0x1502" => ("1502", Generation::Npu1),
            "0x17f0" => ("17f0", Generation::Npu2),
            _ => return None,
        };
        let revision = read("revision").unwrap_or_default();
        let revision = revision.trim().trim_start_matches("0x");
        let firmware = format!("{number}_{revision:0>2}");
        Some(PciDevice { address, number, generation, firmware })
    })
}

impl PciDevice {
    fn row(&self) -> Row {
        let PciDevice { address, number, generation, .. } = self;
        let text = format!("{}, PCI 1022:{number} at {address}", described(*generation));
        Row::fine("npu", text)
    }
}

/// `release` is the kernel's version.
fn kernel(release: Option<&str>) -> Row {
    let release = release.unwrap_or("unknown").trim();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let version = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    };
    match version {
        Some(version) if version >= KERNEL => {
            Row::fine("kernel", format!("{release}; amdxdna is in Linux 6.14 and later"))
        }
        _ => Row::warning("kernel", format!("{release}: amdxdna is in Linux 6.14 and later"))
            .fix("install Linux 6.14 or later, and reboot"),
    }
}

/// Whether the driver runs the device, and if not, what it lacks.
fn driver(machine: &Machine, device: &PciDevice) -> Vec<Row> {
    let bound = format!("/sys/bus/pci/drivers/amdxdna/{}", device.address);
    if machine.exists(&bound) {
        return vec![Row::fine("driver", format!("amdxdna drives {}", device.address))];
    }
    let loaded = machine.exists("/sys/module/amdxdna");
    let firmware = format!("/lib/firmware/amdnpu/{}", device.firmware);
    if !machine.exists(&firmware) {
        let text = format!("amdxdna does not drive the device: there is no firmware in {firmware}");
        let fix = "install a current linux-firmware, then `sudo modprobe -r amdxdna && sudo modprobe amdxdna`";
        return vec![Row::warning("driver", text).fix(fix)];
    }
    vec![match loaded {
        false => Row::warning("driver", "amdxdna is not loaded").fix("sudo modprobe amdxdna"),
        true => Row::warning("driver", "amdxdna is loaded and does not drive the device")
            .fix("sudo dmesg | grep amdxdna   (says why)"),
    }]
}

/// `groups` is the text of `/etc/group`.
fn access(nodes: &[RenderNode], user: &User, groups: &str) -> Vec<Row> {
    if nodes.is_empty() {
        let text = "there is no /dev/accel/accel*, through which programs reach the NPU";
        let fix = "load the driver (above); in a container, start it with `--device /dev/accel`";
        return vec![Row::warning("access", text).fix(fix)];
    }
    nodes.iter().map(|node| render_node::row(node, user, groups)).collect()
}

/// What the device says of itself, once it can be opened.
fn answers(found: &Result<Vec<Found>, DriverError>) -> Vec<Row> {
    let devices = match found {
        Ok(devices) => devices,
        // The rows before say it with the command that mends it.
        Err(
            DriverError::NoDevice
            | DriverError::NotBound { .. }
            | DriverError::FirmwareMissing { .. }
            | DriverError::Permission { .. },
        ) => return Vec::new(),
        Err(error) => return vec![Row::warning("device", error.to_string())],
    };
    devices.iter().flat_map(of_device).collect()
}

fn of_device(device: &Found) -> Vec<Row> {
    let identity = &device.identity;
    let (major, minor) = identity.driver;
    let firmware = npu::firmware(identity.firmware);
    let used = device.contexts.as_ref().map_or(0, Vec::len);
    let contexts = npu::contexts(device);
    let mut rows = vec![
        Row::fine("interface", format!("amdxdna {major}.{minor} at {}", identity.path.display())),
        Row::fine("firmware", firmware),
        match used < identity.generation.contexts() {
            true => Row::fine("contexts", contexts),
            false => Row::warning("contexts", format!("{contexts}: none is free"))
                .fix("end a program that uses the NPU"),
        },
    ];
    rows.extend(device.power_mode.map(power));
    rows
}

fn power(mode: PowerMode) -> Row {
    match mode {
        PowerMode::PowerSaver => {
            let fix = format!("{}   (of AMD's XRT)", npu::CHANGE_POWER_MODE.trim_matches('`'));
            Row::warning("power", format!("{}: the array's clock is low", mode.name())).fix(fix)
        }
        _ => Row::fine("power", mode.name()),
    }
}

/// `limits` is the text of the process's limits.
fn locked(limits: &str) -> Option<Row> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let soft = line.split_whitespace().next()?;
    let needed = (HEAP_BYTES + TiledOptions::default().staging_bytes) as u64;
    let Ok(bytes) = soft.parse::<u64>() else { return Some(Row::fine("memlock", soft)) };
    let text = format!("{} may be locked; the NPU needs {}", size(bytes), size(needed));
    Some(match bytes >= needed {
        true => Row::fine("memlock", text),
        false => Row::warning("memlock", text).fix(
            "add `* - memlock unlimited` to /etc/security/limits.conf and log in again, or \
             LimitMEMLOCK=infinity to a systemd unit",
        ),
    })
}

fn kernels(generation: Generation) -> Vec<Row> {
    let Ok(folder) = npu::default_folder() else { return Vec::new() };
    let place = folder.join(generation.name()).display().to_string();
    match packages(&folder, generation) {
        Ok(listed) => {
            let packages = listed.iter().map(|(path, package)| {
                (npu::name(path), package.as_ref().err().map(ToString::to_string))
            });
            of_packages(&place, &packages.collect::<Vec<_>>())
        }
        Err(error) => vec![Row::warning("kernels", error.to_string())],
    }
}

/// Packages by their names, each with what is wrong with it.
fn of_packages(place: &str, packages: &[(String, Option<String>)]) -> Vec<Row> {
    let sound: Vec<&str> = packages
        .iter()
        .filter(|(_, problem)| problem.is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    let mut rows = vec![match (sound.is_empty(), packages.is_empty()) {
        (false, _) => Row::fine("kernels", format!("{} in {place}", sound.join(", ")))
            .fix("pianola npu check   (runs them against the processor)"),
        (true, true) => Row::fine("kernels", format!("no packages in {place}"))
            .fix("pianola npu import   (docs/how-to/try-an-npu.md has the commands)"),
        (true, false) => Row::warning("kernels", format!("no usable package in {place}"))
            .fix("pianola npu import   (docs/how-to/try-an-npu.md has the commands)"),
    }];
    for (name, problem) in packages {
        if let Some(problem) = problem {
            let text = format!("{name} cannot be used: {problem}");
            let fix = format!("pianola npu import … --name {name} --replace");
            rows.push(Row::warning("kernels", text).fix(fix));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use pianola_npu::amdxdna::{ContextUse, Identity};

    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    const DEVICE: &str = "/sys/bus/pci/devices/0000:c4:00.1";

    fn laptop(more: &[(&str, &str)]) -> Recorded {
        let file = |name: &str| format!("{DEVICE}/{name}");
        let (vendor, device, revision) = (file("vendor"), file("device"), file("revision"));
        let mut files = vec![
            (vendor.as_str(), "0x1022\n"),
            (device.as_str(), "0x1502\n"),
            (revision.as_str(), "0x00\n"),
            ("/sys/bus/pci/devices/0000:00:01.0/vendor", "0x1022\n"),
            ("/sys/bus/pci/devices/0000:00:01.0/device", "0x14eb\n"),
        ];
        files.extend(more);
        Recorded::new(&files, &[])
    }

    fn fix(row: &Row) -> &str {
        assert_eq!(row.verdict, Verdict::Warning, "{row:?}");
        row.fix.as_deref().unwrap()
    }

    #[test]
    fn a_machine_without_one_has_a_single_row() {
        let machine = Recorded::new(&[("/sys/bus/pci/devices/a/vendor", "0x8086\n")], &[]);
        let none = Err(DriverError::NoDevice);
        assert_eq!(examine_with(&machine.0, &none), [Row::fine("npu", "no NPU")]);
        let row = on_bus(&laptop(&[]).0).unwrap().row();
        assert!(row.text.starts_with("npu1 (XDNA: Phoenix, Hawk Point), PCI 1022:1502"), "{row:?}");
    }

    /// All rows of a laptop in their order, and those of a container that has the node alone.
    #[test]
    fn a_laptop_has_all_rows() {
        let names = |rows: &[Row]| -> Vec<String> {
            rows.iter().filter(|row| row.name != "kernels").map(|row| row.name.clone()).collect()
        };
        let machine = laptop(&[
            ("/proc/sys/kernel/osrelease", "6.15.1\n"),
            ("/sys/bus/pci/drivers/amdxdna/0000:c4:00.1", ""),
            ("/dev/accel/accel0", ""),
            ("/proc/self/limits", "Max locked memory   unlimited   unlimited   bytes\n"),
        ]);
        let rows = examine_with(&machine.0, &found(1));
        assert!(rows.iter().all(|row| row.verdict == Verdict::Fine), "{rows:#?}");
        let of_device = ["interface", "firmware", "contexts", "power", "memlock"];
        let of_machine = ["npu", "kernel", "driver", "access"];
        assert_eq!(names(&rows), [&of_machine[..], &of_device[..]].concat());
        let container =
            Recorded::new(&[("/proc/self/limits", "Max locked memory  64  64  bytes\n")], &[]);
        let rows = examine_with(&container.0, &found(0));
        assert_eq!(names(&rows), [&["npu"][..], &of_device[..]].concat());
        assert!(rows[0].text.ends_with("not seen on the PCI bus"), "{rows:#?}");
    }

    #[test]
    fn kernels_from_6_14_on_have_the_driver() {
        for release in ["6.14.0-37-generic\n", "6.15.4", "7.0.1-arch1-1", "6.14-rc3"] {
            assert_eq!(kernel(Some(release)).verdict, Verdict::Fine, "{release}");
        }
        for release in [Some("6.8.0-31-generic"), Some("5.15"), Some("what"), None] {
            assert!(fix(&kernel(release)).contains("6.14"), "{release:?}");
        }
    }

    #[test]
    fn a_driver_lacks_firmware_or_loading_or_something_to_look_up() {
        let row = |files: &[(&str, &str)]| {
            let machine = laptop(files);
            driver(&machine.0, &on_bus(&machine.0).unwrap()).remove(0)
        };
        let firmware = ("/lib/firmware/amdnpu/1502_00/npu.sbin", "");
        let missing = row(&[]);
        assert!(missing.text.contains("/lib/firmware/amdnpu/1502_00"), "{missing:?}");
        assert!(fix(&missing).contains("linux-firmware"));
        assert_eq!(fix(&row(&[firmware])), "sudo modprobe amdxdna");
        let loaded = ("/sys/module/amdxdna/refcnt", "0");
        assert!(fix(&row(&[firmware, loaded])).contains("dmesg"));
        let bound = ("/sys/bus/pci/drivers/amdxdna/0000:c4:00.1", "");
        assert_eq!(row(&[bound]).verdict, Verdict::Fine);
    }

    #[test]
    fn nodes_are_opened() {
        let user = User { name: Some("alice".into()), ..User::default() };
        let groups = "render:x:105:bob\n";
        assert!(fix(&access(&[], &user, groups)[0]).contains("--device /dev/accel"));
        let node =
            |refused| RenderNode { path: "/dev/accel/accel0".into(), group: Some(105), refused };
        let denied = access(&[node(Some(ErrorKind::PermissionDenied))], &user, groups);
        assert!(fix(&denied[0]).starts_with("sudo usermod -aG render $USER"));
        let fine = access(&[node(None)], &user, groups);
        assert_eq!(fine, [Row::fine("access", "/dev/accel/accel0 can be opened")]);
    }

    fn found(contexts: usize) -> Result<Vec<Found>, DriverError> {
        let identity = Identity {
            path: "/dev/accel/accel0".into(),
            driver: (0, 6),
            firmware: [1, 5, 5, 391],
            array: (1, 1),
            generation: Generation::Npu1,
            columns: 5,
            rows: 6,
            core_rows: 4,
        };
        let context =
            ContextUse { process: 77, first_column: 1, columns: 4, commands: (1, 1), errors: 0 };
        let (contexts, power_mode) = (Some(vec![context; contexts]), Some(PowerMode::Performance));
        Ok(vec![Found { identity, contexts, power_mode }])
    }

    #[test]
    fn a_device_tells_its_firmware_and_its_contexts() {
        let rows = answers(&found(2));
        assert_eq!(rows[0].text, "amdxdna 0.6 at /dev/accel/accel0");
        assert_eq!(rows[1], Row::fine("firmware", "1.5.5.391"));
        assert_eq!(rows[2], Row::fine("contexts", "2 of 6 in use, by process 77"));
        assert!(fix(&answers(&found(6))[2]).starts_with("end a program"));
        assert_eq!((rows[3].verdict, rows[3].text.as_str()), (Verdict::Fine, "performance"));
        let saving = power(PowerMode::PowerSaver);
        assert!(fix(&saving).starts_with("sudo xrt-smi configure --pmode "), "{saving:?}");
        assert!(answers(&Err(DriverError::NoDevice)).is_empty());
        let lost = answers(&Err(DriverError::DeviceLost { call: "GET_INFO" }));
        assert_eq!(lost[0].verdict, Verdict::Warning);
    }

    #[test]
    fn locked_memory_is_enough_or_not() {
        let row = |words: &str| locked(&format!("Max locked memory   {words}   bytes\n")).unwrap();
        assert_eq!(row("unlimited unlimited"), Row::fine("memlock", "unlimited"));
        let little = row("8388608 8388608");
        assert_eq!(little.text, "8.4 MB may be locked; the NPU needs 134.2 MB");
        assert!(fix(&little).contains("memlock unlimited"));
        assert_eq!(row("134217728 134217728").verdict, Verdict::Fine);
    }

    #[test]
    fn packages_are_named_with_what_is_wrong() {
        let sound = ("good".to_string(), None);
        let broken = ("bad".to_string(), Some("has another sum".to_string()));
        let rows = of_packages("/k/npu1", &[broken.clone(), sound]);
        assert_eq!(rows[0].text, "good in /k/npu1");
        assert_eq!(rows[0].verdict, Verdict::Fine);
        assert!(fix(&rows[1]).ends_with("--name bad --replace"));
        assert_eq!(rows[1].text, "bad cannot be used: has another sum");
        assert!(fix(&of_packages("/k/npu1", &[broken])[0]).starts_with("pianola npu import"));
        assert_eq!(of_packages("/k/npu1", &[])[0].text, "no packages in /k/npu1");
    }
}
