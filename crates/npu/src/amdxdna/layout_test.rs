//! Sizes, offsets, request numbers and values of parameters: against published figures, always; against the kernel's own
//! header where it is installed (`/usr/include/drm/amdxdna_accel.h`, of linux-libc-dev 6.14 or
//! later) or where `PIANOLA_UAPI_INCLUDE` names its folder (`scripts/npu-header` fetches it).

use std::fmt::Write;
use std::mem::offset_of;
use std::path::PathBuf;
use std::process::Command;

use super::abi::*;

#[path = "../../../../tests/support/skip.rs"]
mod skip;

/// A structure: C's name, C's name of its request, size, request number, and its fields with C's
/// name of each and their offset.
struct Layout {
    c_name: &'static str,
    c_request: Option<&'static str>,
    number: u64,
    size: usize,
    fields: Vec<(&'static str, usize)>,
}

macro_rules! layout {
    ($type:ty, $c_name:literal, $request:expr, $number:expr, { $($field:ident: $c_field:literal),* $(,)? }) => {
        Layout {
            c_name: $c_name,
            c_request: $request,
            number: $number,
            size: size_of::<$type>(),
            fields: vec![$(($c_field, offset_of!($type, $field))),*],
        }
    };
}

macro_rules! request_layout {
    ($type:ty, $c_name:literal, $request:literal, { $($fields:tt)* }) => {
        layout!($type, $c_name, Some($request), <$type as Request>::NUMBER, { $($fields)* })
    };
}

fn requests_of_the_driver() -> Vec<Layout> {
    vec![
        request_layout!(CreateContext, "struct amdxdna_drm_create_hwctx",
            "DRM_IOCTL_AMDXDNA_CREATE_HWCTX", {
            ext: "ext", ext_flags: "ext_flags", qos: "qos_p", queue_buffer: "umq_bo",
            log_buffer: "log_buf_bo", operations_per_cycle: "max_opc", tiles: "num_tiles",
            memory_size: "mem_size", doorbell: "umq_doorbell", handle: "handle",
            syncobj: "syncobj_handle",
        }),
        request_layout!(DestroyContext, "struct amdxdna_drm_destroy_hwctx",
            "DRM_IOCTL_AMDXDNA_DESTROY_HWCTX", { handle: "handle", pad: "pad" }),
        request_layout!(ConfigContext, "struct amdxdna_drm_config_hwctx",
            "DRM_IOCTL_AMDXDNA_CONFIG_HWCTX", {
            handle: "handle", parameter: "param_type", value: "param_val",
            size: "param_val_size", pad: "pad",
        }),
        request_layout!(CreateBuffer, "struct amdxdna_drm_create_bo",
            "DRM_IOCTL_AMDXDNA_CREATE_BO", {
            flags: "flags", address: "vaddr", size: "size", kind: "type", handle: "handle",
        }),
        request_layout!(BufferInfo, "struct amdxdna_drm_get_bo_info",
            "DRM_IOCTL_AMDXDNA_GET_BO_INFO", {
            ext: "ext", ext_flags: "ext_flags", handle: "handle", pad: "pad",
            map_offset: "map_offset", user_address: "vaddr", device_address: "xdna_addr",
        }),
        request_layout!(SyncBuffer, "struct amdxdna_drm_sync_bo", "DRM_IOCTL_AMDXDNA_SYNC_BO", {
            handle: "handle", direction: "direction", offset: "offset", size: "size",
        }),
        request_layout!(Execute, "struct amdxdna_drm_exec_cmd", "DRM_IOCTL_AMDXDNA_EXEC_CMD", {
            ext: "ext", ext_flags: "ext_flags", context: "hwctx", kind: "type",
            commands: "cmd_handles", arguments: "args", command_count: "cmd_count",
            argument_count: "arg_count", sequence: "seq",
        }),
        request_layout!(GetInfo, "struct amdxdna_drm_get_info", "DRM_IOCTL_AMDXDNA_GET_INFO", {
            parameter: "param", size: "buffer_size", buffer: "buffer",
        }),
    ]
}

fn requests_of_drm() -> Vec<Layout> {
    vec![
        request_layout!(Version, "struct drm_version", "DRM_IOCTL_VERSION", {
            major: "version_major", minor: "version_minor", patch: "version_patchlevel",
            name_length: "name_len", name: "name", date_length: "date_len", date: "date",
            description_length: "desc_len", description: "desc",
        }),
        request_layout!(CloseBuffer, "struct drm_gem_close", "DRM_IOCTL_GEM_CLOSE", {
            handle: "handle", pad: "pad",
        }),
        request_layout!(HandleToFd, "struct drm_prime_handle", "DRM_IOCTL_PRIME_HANDLE_TO_FD", {
            handle: "handle", flags: "flags", fd: "fd",
        }),
        request_layout!(FdToHandle, "struct drm_prime_handle", "DRM_IOCTL_PRIME_FD_TO_HANDLE", {
            handle: "handle", flags: "flags", fd: "fd",
        }),
        request_layout!(DestroySyncobj, "struct drm_syncobj_destroy",
            "DRM_IOCTL_SYNCOBJ_DESTROY", { handle: "handle", pad: "pad" }),
        request_layout!(TimelineWait, "struct drm_syncobj_timeline_wait",
            "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT", {
            handles: "handles", points: "points", timeout_ns: "timeout_nsec",
            count: "count_handles", flags: "flags", first_signaled: "first_signaled",
            pad: "pad", deadline_ns: "deadline_nsec",
        }),
    ]
}

fn plain_structures() -> Vec<Layout> {
    vec![
        layout!(QualityOfService, "struct amdxdna_qos_info", None, 0, {
            gops: "gops", fps: "fps", dma_bandwidth: "dma_bandwidth", latency: "latency",
            frame_time: "frame_exec_time", priority: "priority",
        }),
        layout!(ComputeUnitConfig, "struct amdxdna_cu_config", None, 0, {
            buffer: "cu_bo", function: "cu_func", pad: "pad",
        }),
        layout!(TileMetadata, "struct amdxdna_drm_query_aie_tile_metadata", None, 0, {
            row_count: "row_count", row_start: "row_start", dma_channels: "dma_channel_count",
            locks: "lock_count", events: "event_reg_count", pad: "pad",
        }),
        layout!(ArrayMetadata, "struct amdxdna_drm_query_aie_metadata", None, 0, {
            column_bytes: "col_size", columns: "cols", rows: "rows", major: "version.major",
            minor: "version.minor", core: "core", memory: "mem", shim: "shim",
        }),
        layout!(Resources, "struct amdxdna_drm_get_resource_info", None, 0, {
            clock_max: "npu_clk_max", tops_max: "npu_tops_max", contexts_max: "npu_task_max",
            tops: "npu_tops_curr", contexts: "npu_task_curr",
        }),
        layout!(PowerStatus, "struct amdxdna_drm_get_power_mode", None, 0, {
            mode: "power_mode", pad: "pad",
        }),
        layout!(ContextStatus, "struct amdxdna_drm_query_hwctx", None, 0, {
            id: "context_id", first_column: "start_col", columns: "num_col", process: "pid",
            submissions: "command_submissions", completions: "command_completions",
            migrations: "migrations", preemptions: "preemptions", errors: "errors",
        }),
    ]
}

/// Values that are passed in the structures: C's name and ours.
fn values() -> Vec<(&'static str, u64)> {
    let parameters: [(&str, u32); 17] = [
        ("AMDXDNA_BO_SHARE", BUFFER_SHARE),
        ("AMDXDNA_BO_DEV_HEAP", BUFFER_HEAP),
        ("AMDXDNA_BO_DEV", BUFFER_DEVICE),
        ("AMDXDNA_BO_CMD", BUFFER_COMMAND),
        ("SYNC_DIRECT_TO_DEVICE", SYNC_TO_DEVICE),
        ("SYNC_DIRECT_FROM_DEVICE", SYNC_FROM_DEVICE),
        ("DRM_AMDXDNA_HWCTX_CONFIG_CU", CONFIG_CU),
        ("AMDXDNA_CMD_SUBMIT_EXEC_BUF", EXECUTE_BUFFER),
        ("AMDXDNA_QOS_NORMAL_PRIORITY", NORMAL_PRIORITY),
        ("DRM_AMDXDNA_QUERY_AIE_METADATA", ArrayMetadata::PARAMETER),
        ("DRM_AMDXDNA_QUERY_AIE_VERSION", <[u32; 2]>::PARAMETER),
        ("DRM_AMDXDNA_QUERY_HW_CONTEXTS", <[ContextStatus; MAX_CONTEXTS]>::PARAMETER),
        ("DRM_AMDXDNA_QUERY_FIRMWARE_VERSION", <[u32; 4]>::PARAMETER),
        ("DRM_AMDXDNA_GET_POWER_MODE", PowerStatus::PARAMETER),
        ("DRM_AMDXDNA_QUERY_RESOURCE_INFO", Resources::PARAMETER),
        (
            "(DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL | DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT)",
            WAIT_ALL_FOR_SUBMIT,
        ),
        ("(DRM_CLOEXEC | DRM_RDWR)", (libc::O_CLOEXEC | libc::O_RDWR) as u32),
    ];
    let wide = parameters.into_iter().map(|(name, value)| (name, u64::from(value)));
    wide.chain([("AMDXDNA_INVALID_ADDR", NO_ADDRESS)]).collect()
}

/// Sizes and numbers of the kernel's header of August 2026, computed by a C compiler.
#[test]
fn requests_have_the_published_sizes_and_numbers() {
    let figures: [(usize, u64); 14] = [
        (56, 0xC038_6440),
        (8, 0xC008_6441),
        (24, 0xC018_6442),
        (32, 0xC020_6443),
        (48, 0xC030_6444),
        (24, 0xC018_6445),
        (56, 0xC038_6446),
        (16, 0xC010_6447),
        (64, 0xC040_6400),
        (8, 0x4008_6409),
        (12, 0xC00C_642D),
        (12, 0xC00C_642E),
        (8, 0xC008_64C0),
        (48, 0xC030_64CA),
    ];
    let layouts: Vec<Layout> =
        requests_of_the_driver().into_iter().chain(requests_of_drm()).collect();
    assert_eq!(layouts.len(), figures.len());
    for (layout, (size, number)) in layouts.iter().zip(figures) {
        assert_eq!(layout.size, size, "{}", layout.c_name);
        assert_eq!(layout.number, number, "{}", layout.c_name);
        // The kernel's encoding carries the size in bits 16 to 29.
        assert_eq!((number >> 16 & 0x3FFF) as usize, size, "{}", layout.c_name);
    }
}

#[test]
fn structures_have_the_published_offsets() {
    assert_eq!(offset_of!(CreateContext, qos), 16);
    assert_eq!(offset_of!(CreateContext, queue_buffer), 24);
    assert_eq!(offset_of!(CreateContext, operations_per_cycle), 32);
    assert_eq!(offset_of!(CreateContext, tiles), 36);
    assert_eq!(offset_of!(CreateContext, doorbell), 44);
    assert_eq!(offset_of!(CreateContext, handle), 48);
    assert_eq!(offset_of!(CreateContext, syncobj), 52);
    assert_eq!(offset_of!(Execute, sequence), 48);
    assert_eq!(offset_of!(ContextUnits, units), 8);
    assert_eq!(size_of::<ComputeUnitConfig>(), 8);
    assert!(size_of::<ContextUnits>() <= 4096);
    assert_eq!(size_of::<QualityOfService>(), 24);
    assert_eq!(size_of::<TileMetadata>(), 16);
    assert_eq!(size_of::<ArrayMetadata>(), 64);
    assert_eq!(size_of::<Resources>(), 40);
    assert_eq!(offset_of!(ArrayMetadata, major), 8);
    assert_eq!(offset_of!(ArrayMetadata, core), 16);
    assert_eq!(offset_of!(ArrayMetadata, memory), 32);
    assert_eq!(offset_of!(ArrayMetadata, shim), 48);
}

/// The folder that has the kernel's header, if any.
fn header_folder() -> Option<PathBuf> {
    let named = std::env::var_os("PIANOLA_UAPI_INCLUDE").map(PathBuf::from);
    if let Some(folder) = &named {
        assert!(
            folder.join("drm/amdxdna_accel.h").is_file(),
            "PIANOLA_UAPI_INCLUDE has no drm/amdxdna_accel.h"
        );
    }
    let folders = named.into_iter().chain([PathBuf::from("/usr/include")]);
    folders.into_iter().find(|folder| folder.join("drm/amdxdna_accel.h").is_file())
}

/// A C program that prints one line for every figure, and the lines that it should print.
fn program_and_lines(layouts: &[Layout]) -> (String, String) {
    let mut program = String::from(
        "#include <fcntl.h>\n#include <stddef.h>\n#include <stdio.h>\n#include <drm/drm.h>\n\
         #include <drm/amdxdna_accel.h>\nint main(void) {\n",
    );
    let mut lines = String::new();
    for Layout { c_name, c_request, number, size, fields } in layouts {
        writeln!(program, "printf(\"{c_name} %zu\\n\", sizeof({c_name}));").unwrap();
        writeln!(lines, "{c_name} {size}").unwrap();
        for (field, offset) in fields {
            let value = format!("offsetof({c_name}, {field})");
            writeln!(program, "printf(\"{c_name}.{field} %zu\\n\", {value});").unwrap();
            writeln!(lines, "{c_name}.{field} {offset}").unwrap();
        }
        if let Some(request) = c_request {
            let value = format!("(unsigned long){request}");
            writeln!(program, "printf(\"{request} %lx\\n\", {value});").unwrap();
            writeln!(lines, "{request} {number:x}").unwrap();
        }
    }
    for (name, value) in values() {
        writeln!(program, "printf(\"{name} %llx\\n\", (unsigned long long){name});").unwrap();
        writeln!(lines, "{name} {value:x}").unwrap();
    }
    program.push_str("return 0; }\n");
    (program, lines)
}

#[test]
fn structures_are_those_of_the_kernels_header() {
    let Some(folder) = header_folder() else {
        skip::skip("no drm/amdxdna_accel.h (scripts/npu-header fetches it)");
        return;
    };
    let layouts: Vec<Layout> = requests_of_the_driver()
        .into_iter()
        .chain(requests_of_drm())
        .chain(plain_structures())
        .collect();
    let (program, lines) = program_and_lines(&layouts);
    let scratch = std::env::temp_dir().join(format!("npu-layout-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let (source, binary) = (scratch.join("layout.c"), scratch.join("layout"));
    std::fs::write(&source, program).unwrap();
    let mut compiler = Command::new("cc");
    let compiled = compiler.arg("-I").arg(&folder).arg(&source).arg("-o").arg(&binary).output();
    let Ok(compiled) = compiled else {
        assert!(std::env::var_os("PIANOLA_UAPI_INCLUDE").is_none(), "no C compiler");
        skip::skip("no C compiler");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().unwrap().stdout;
    std::fs::remove_dir_all(&scratch).unwrap();
    assert_eq!(String::from_utf8(printed).unwrap(), lines);
}
