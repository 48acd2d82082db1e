//! Runs a test again, in a process of its own, under Khronos's validation layer.

use std::process::Command;

/// What the layer has to say while `test` runs, an ignored test of this very program.
///
/// Synchronisation is validated too, in each command buffer and across submissions: a kernel that
/// reads what another wrote without a barrier between them is reported even where the driver
/// happens to run them in order.
pub fn reports(test: &str) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
        .env(
            "VK_LAYER_ENABLES",
            "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT:\
             VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT",
        )
        // The loader says which layers it puts between the program and the driver.
        .env("VK_LOADER_DEBUG", "layer")
        .output()
        .unwrap();
    let (out, notes) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{test} failed under validation:\n{out}\n{notes}"
    );
    let loaded = |line: &str| {
        line.to_lowercase().contains("insert") && line.contains("VK_LAYER_KHRONOS_validation")
    };
    assert!(
        notes.lines().any(loaded),
        "the validation layer is not there, on Debian the package vulkan-validationlayers, which \
         scripts/test installs; the loader says:\n{notes}"
    );
    // The layer writes to the program's output: a line with the message's id, then its words.
    let marks = ["VUID-", "UNASSIGNED-", "SYNC-", "Validation Error", "Validation Warning"];
    out.lines()
        .filter(|line| marks.iter().any(|mark| line.contains(mark)))
        .map(str::to_string)
        .collect()
}
