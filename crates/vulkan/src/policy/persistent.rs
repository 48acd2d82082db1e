//! Whether all workgroups of `Shader::Persistent` are resident at once.

use super::{Limits, single};

/// Registers of a unit on the cards that count their units (NVIDIA's multiprocessors, since 2012).
const UNIT_REGISTERS: u64 = 65_536;
/// How often workgroups meet in the test at load.
const EXCHANGES: u32 = 1000;
const SOFTWARE_EXCHANGES: u32 = 50;

/// How often workgroups meet in the test at load.
pub(crate) fn exchanges(software: bool) -> u32 {
    if software { SOFTWARE_EXCHANGES } else { EXCHANGES }
}

/// Workgroups of the dispatch: one for every unit. Or why there is no such number.
pub(crate) fn workgroups(limits: &Limits) -> Result<u32, String> {
    match limits.units {
        0 => Err("the driver does not count the device's units, so that nobody knows how many workgroups run at once".to_string()),
        units => Ok(units),
    }
}

/// Whether a unit has room for a workgroup, by the registers that the driver says an invocation takes.
pub(crate) fn check_registers(registers: Option<u64>) -> Result<(), String> {
    let Some(registers) = registers else {
        return Err("the driver does not say how many registers the kernel takes".to_string());
    };
    match registers * u64::from(single::WORKGROUP) <= UNIT_REGISTERS {
        true => Ok(()),
        false => Err(format!(
            "a unit has no room for a workgroup of {registers} registers an invocation"
        )),
    }
}

/// Whether the dispatch's shared memory fits a workgroup.
pub(crate) fn check_shared_memory(limits: &Limits, bytes: u32) -> Result<(), String> {
    match bytes <= limits.shared_memory {
        true => Ok(()),
        false => Err(format!(
            "a workgroup would share {bytes} bytes, and the device has {}",
            limits.shared_memory
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workgroup_fits_a_unit_by_its_registers() {
        assert!(check_registers(Some(128)).is_ok());
        assert!(check_registers(Some(136)).unwrap_err().contains("136"));
        assert!(check_registers(None).is_err());
    }
}
