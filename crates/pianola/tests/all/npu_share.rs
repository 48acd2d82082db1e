//! `npu share` through the binary, with an emulated NPU behind the device node and a software driver for the
//! GPU. Mesa 26's takes the emulated buffers for dma-bufs; older ones say what they lack.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use crate::common::npu::Machine;
use crate::support::skip;

#[test]
fn a_driver_without_the_extension_is_named() {
    let run = Machine::new().shell("pianola npu share --device vulkan:llvmpipe");
    if run.out.contains("  ok  ") {
        skip::skip("the software driver shares memory");
        return;
    }
    run.fails(1, &["4 of 4 ways failed", "VK_EXT_external_memory_dma_buf", "llvmpipe"]);
    assert_eq!(run.out.matches("\n  FAIL  ").count(), 4, "{run:#?}");
}

#[test]
fn devices_that_are_not_there() {
    let machine = Machine::new();
    machine.folder.pianola(["npu", "share"]).fails(1, &["NPU"]);
    machine.shell("pianola npu share --device vulkan:77").fails(1, &["index 77"]);
    machine.pianola("npu share --device cpu", "").fails(2, &["must be one GPU"]);
}

/// `PIANOLA_TEST_MESA26` is what `scripts/mesa26` prints. That driver exports nothing without
/// `/dev/udmabuf`, so that the ways through a buffer of the GPU's may fail.
#[test]
#[ignore = "scripts/acceptance runs it with Mesa 26"]
fn bytes_pass_between_the_npu_and_a_gpu() {
    let mesa26 = std::env::var("PIANOLA_TEST_MESA26").expect("PIANOLA_TEST_MESA26 is not set");
    let line = format!("{mesa26} \"$(command -v pianola)\" npu share --device vulkan:llvmpipe");
    let run = Machine::new().shell(&line);
    for words in
        ["the GPU writes into a buffer of the NPU's", "the GPU reads a buffer of the NPU's"]
    {
        assert!(run.out.contains(&format!("  ok    {words}: 1048576 bytes")), "{run:#?}");
    }
    let unsupported = run.out.matches("does not export storage buffers as a dma-buf").count();
    assert_eq!(run.out.matches("  FAIL  ").count(), unsupported, "{run:#?}");
}
