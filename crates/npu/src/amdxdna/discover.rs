//! Which NPUs this machine has, and why it has none.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::calls::{Calls, SystemCalls};
use super::device::{ContextUse, Identity, PowerMode, contexts_in_use};
use super::error::DriverError;
use super::node::Node;

/// A node of an NPU.
#[derive(Clone, Debug)]
pub struct Found {
    /// What the device says of itself.
    pub identity: Identity,
    /// The hardware contexts in use by all programs; none where the driver does not say.
    pub contexts: Option<Vec<ContextUse>>,
    /// The power mode; none where the driver does not say.
    pub power_mode: Option<PowerMode>,
}

/// Numbers that accelerator nodes may have. They are tried one by one instead of listed, because a
/// preloaded device model sees a file being opened and not a folder being read.
const NODES: u32 = 64;

/// The NPUs of this machine.
pub fn discover() -> Result<Vec<Found>, DriverError> {
    discover_with(Arc::new(SystemCalls), Path::new("/"))
}

/// The NPUs that are seen through other calls; `root` is where `sys` and `lib/firmware` are, for
/// the reason where there are none.
///
/// Nodes of other drivers are passed over. A node that may not be opened or cannot be asked is an
/// error only where no other is an NPU.
pub fn discover_with(calls: Arc<dyn Calls>, root: &Path) -> Result<Vec<Found>, DriverError> {
    let mut found = Vec::new();
    let mut first_error = None;
    for number in 0..NODES {
        let path = PathBuf::from(format!("/dev/accel/accel{number}"));
        match describe(&calls, &path) {
            Ok(device) => found.push(device),
            Err(DriverError::Open { errno: libc::ENOENT | libc::ENXIO | libc::ENODEV, .. }) => {}
            Err(DriverError::ForeignDriver { .. }) => {}
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    match (found.is_empty(), first_error) {
        (false, _) => Ok(found),
        (true, Some(error)) => Err(error),
        (true, None) => Err(absent(root)),
    }
}

fn describe(calls: &Arc<dyn Calls>, path: &Path) -> Result<Found, DriverError> {
    let node = Node::open(calls.clone(), path)?;
    let identity = Identity::query(&node)?;
    let (contexts, power_mode) = (contexts_in_use(&node).ok(), PowerMode::query(&node));
    Ok(Found { identity, contexts, power_mode })
}

/// PCI devices that amdxdna runs, with the name that each has in the firmware's folder.
const PCI_DEVICES: [u16; 2] = [0x1502, 0x17F0];

/// Why there is no node: looks for the device on the PCI bus and for its firmware.
fn absent(root: &Path) -> DriverError {
    let Ok(devices) = fs::read_dir(root.join("sys/bus/pci/devices")) else {
        return DriverError::NoDevice;
    };
    let number = |folder: &Path, name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    for folder in devices.flatten().map(|entry| entry.path()) {
        let device = number(&folder, "device");
        let device = device.filter(|device| PCI_DEVICES.contains(device));
        let (Some(0x1022), Some(device)) = (number(&folder, "vendor"), device) else { continue };
        let revision = number(&folder, "revision").unwrap_or(0);
        let name = format!("lib/firmware/amdnpu/{device:04x}_{revision:02x}");
        let firmware = root.join(name);
        return match firmware.is_dir() {
            true => DriverError::NotBound { device },
            false => DriverError::FirmwareMissing { file: firmware },
        };
    }
    DriverError::NoDevice
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with an NPU on its bus; removed when dropped.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Machine {
            let root = std::env::temp_dir().join(format!("npu-{name}-{}", std::process::id()));
            let device = root.join("sys/bus/pci/devices/0000:c4:00.1");
            fs::create_dir_all(&device).unwrap();
            for (file, text) in
                [("vendor", "0x1022\n"), ("device", "0x1502\n"), ("revision", "0x00\n")]
            {
                fs::write(device.join(file), text).unwrap();
            }
            Machine(root)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_device_without_firmware_names_the_folder() {
        let machine = Machine::new("firmware");
        let error = absent(&machine.0);
        let DriverError::FirmwareMissing { file } = &error else { panic!("{error}") };
        assert!(file.ends_with("lib/firmware/amdnpu/1502_00"));
        assert!(error.to_string().contains("linux-firmware"));
    }

    #[test]
    fn a_device_with_firmware_lacks_its_driver() {
        let machine = Machine::new("driver");
        fs::create_dir_all(machine.0.join("lib/firmware/amdnpu/1502_00")).unwrap();
        assert!(matches!(absent(&machine.0), DriverError::NotBound { device: 0x1502 }));
    }

    #[test]
    fn no_device_at_all() {
        let error = absent(Path::new("/nonexistent"));
        assert!(matches!(error, DriverError::NoDevice));
        assert!(error.to_string().contains("6.14"));
    }
}
