//! What the environment says.

use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use pianola_npu_model::{Addressing, Config, Model};

const KERNELS: &str = "PIANOLA_NPU_MODEL_KERNELS";
const FAULTS: &str = "PIANOLA_NPU_MODEL_FAULTS";
const ADDRESSES: &str = "PIANOLA_NPU_MODEL_ADDRESSES";
const HANG: &str = "PIANOLA_NPU_MODEL_HANG_MS";
const LOG: &str = "PIANOLA_NPU_MODEL_LOG";

/// Whether a path is the node's.
///
/// Asked at each `open`, before the process has set itself up: nothing is allocated here.
pub(crate) fn is_node(path: &[u8]) -> bool {
    // SAFETY: a C string; the environment is only read.
    let name = unsafe { libc::getenv(c"PIANOLA_NPU_MODEL_NODE".as_ptr()) };
    if name.is_null() {
        return path == b"/dev/accel/accel0";
    }
    // SAFETY: `getenv` returns a C string.
    path == unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes()
}

/// The model's settings.
pub(crate) struct Settings {
    config: Config,
    kernels: Option<PathBuf>,
    log: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn of_environment() -> Settings {
        let text = |name: &str| std::env::var(name).ok();
        let mut config = Config::default();
        if let Some(faults) = text(FAULTS) {
            config.faults = faults.parse().unwrap_or_else(|error| stop(FAULTS, &error));
        }
        match text(ADDRESSES).as_deref() {
            None | Some("user") => {}
            Some("implied") => config.addressing = Addressing::UserImplied,
            Some("dma") => config.addressing = Addressing::Dma,
            Some(_) => stop(ADDRESSES, &"not user, implied or dma"),
        }
        if let Some(limit) = text(HANG) {
            let limit =
                limit.parse().unwrap_or_else(|error: std::num::ParseIntError| stop(HANG, &error));
            config.hang_limit = Duration::from_millis(limit);
        }
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
        Settings { config, kernels: path(KERNELS), log: path(LOG) }
    }

    pub(crate) fn model(&self) -> Model {
        let model = Model::new(self.config.clone());
        if let Some(kernels) = &self.kernels
            && let Err(error) = model.register_file(kernels)
        {
            stop(KERNELS, &error);
        }
        model
    }

    /// Appends reasons of failures.
    pub(crate) fn log(&self, complaints: Vec<String>) {
        let Some(path) = &self.log else { return };
        if complaints.is_empty() {
            return;
        }
        let lines: String =
            complaints.iter().map(|line| format!("npu (emulated): {line}\n")).collect();
        if path.as_os_str().as_bytes() == b"stderr" {
            eprint!("{lines}");
            return;
        }
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(lines.as_bytes())) {
            stop(LOG, &error);
        }
    }
}

/// Ends the program: a device that is not what the test asked for proves nothing.
fn stop(name: &str, reason: &dyn std::fmt::Display) -> ! {
    let message = CString::new(format!("npu (emulated): {name}: {reason}\n")).unwrap_or_default();
    // SAFETY: writes the message's bytes to the standard error stream, then ends the process.
    unsafe {
        libc::write(2, message.as_ptr().cast(), message.as_bytes().len());
        libc::_exit(78)
    }
}
