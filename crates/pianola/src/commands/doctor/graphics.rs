//! GPUs: the kernel's drivers, Vulkan's loader and drivers, and the devices behind them.

use pianola_vulkan::{GpuDescription, GpuKind, Instance, MatrixShape, Selection};

use super::install::{self, Package};
use super::machine::Machine;
use super::row::{Row, size};
use super::{amdgpu, card, manifest, memory, render_node};

/// A version of Vulkan.
type Version = (u32, u32, u32);

pub fn examine(machine: &Machine) -> Vec<Row> {
    let cards = card::find(machine);
    let mut rows = card::rows(machine, &cards);
    let groups = machine.read("/etc/group").unwrap_or_default();
    let nodes = render_node::find(machine);
    rows.extend(render_node::rows(&nodes, &machine.user(), &groups, !cards.is_empty()));
    let loader = Instance::loader_version().map_err(|error| error.to_string());
    rows.push(loader_row(machine, &loader));
    rows.extend(manifest::rows(machine, &manifest::find(machine), &cards));
    let described = Instance::load().and_then(|instance| pianola_vulkan::describe(&instance));
    if let (Ok(_), Err(error)) = (&loader, &described) {
        rows.push(no_devices(&error.to_string(), !cards.is_empty() || !nodes.is_empty()));
    }
    let devices = described.unwrap_or_default();
    rows.extend(devices.iter().flat_map(|device| device_rows(machine, device)));
    rows.push(choice(&devices));
    let integrated = devices.iter().any(|device| device.kind == GpuKind::Integrated);
    rows.extend(amdgpu::rows(machine, memory::installed(machine).unwrap_or(0), integrated));
    rows
}

/// Without the loader no GPU is reached; the processor computes all the same.
fn loader_row(machine: &Machine, loader: &Result<Version, String>) -> Row {
    match loader {
        Ok((major, minor, patch)) => {
            Row::fine("loader", format!("libvulkan, Vulkan {major}.{minor}.{patch}"))
        }
        Err(reason) => {
            Row::warning("loader", reason).fix(install::command(machine, Package::Loader))
        }
    }
}

/// A loader that finds no device is as it should be only where there is no GPU.
fn no_devices(reason: &str, expected: bool) -> Row {
    match expected {
        true => Row::warning("devices", reason),
        false => Row::fine("devices", format!("none: {reason}")),
    }
}

/// What a device is, what it can do, and its memory.
fn device_rows(machine: &Machine, device: &GpuDescription) -> Vec<Row> {
    let name = format!("vulkan:{}", device.index);
    let (major, minor, patch) = device.api;
    let GpuDescription { kind, driver, missing, .. } = device;
    let text = format!("{}: {kind}, {driver}, Vulkan {major}.{minor}.{patch}", device.name);
    let headline = match (missing.is_empty(), *kind) {
        (false, _) => {
            let package = match driver.contains("NVIDIA") {
                true => Package::Nvidia,
                false => Package::Mesa,
            };
            Row::warning(&name, format!("{text}; not usable, it lacks {}", missing.join(", ")))
                .fix(format!("{}   (a newer version)", install::command(machine, package)))
        }
        (true, GpuKind::Software) => Row::fine(
            &name,
            format!(
                "{text}; a software driver, which computes on the processor; used only when named"
            ),
        ),
        (true, _) => Row::fine(&name, text),
    };
    let mut rows = vec![headline, Row::fine(format!("{name} features"), features(device))];
    let heap = |heap: &pianola_vulkan::Heap| {
        let kind = if heap.device_local { "device-local" } else { "host" };
        let (budget, used) = (size(heap.budget), size(heap.used));
        format!("{} {kind} ({budget} for this process, {used} used)", size(heap.size))
    };
    let heaps: Vec<String> = device.heaps.iter().map(heap).collect();
    rows.push(Row::fine(
        format!("{name} heaps"),
        if heaps.is_empty() { "none".into() } else { heaps.join(", ") },
    ));
    rows
}

/// The features that decide which kernels run.
fn features(device: &GpuDescription) -> String {
    let shape = |shape: &MatrixShape| {
        let ([rows, columns, depth], [input, sum]) = (shape.size, shape.types);
        format!("{rows}x{columns}x{depth} {input} to {sum}")
    };
    let matrices = match device.matrices.is_empty() {
        true => "none".to_string(),
        false => device.matrices.iter().map(shape).collect::<Vec<_>>().join(", "),
    };
    let lacks = |what: &str| device.missing.iter().any(|missing| missing.starts_with(what));
    let dot = match (lacks("integer dot") || lacks("Vulkan 1.3"), device.integer_dot) {
        (true, _) => "missing",
        (false, true) => "accelerated",
        (false, false) => "emulated by the driver",
    };
    let half = if lacks("16-bit storage") || lacks("Vulkan 1.3") { "missing" } else { "present" };
    let (default, least, most) = device.subgroup;
    format!(
        "cooperative matrices: {matrices}; integer dot product: {dot}; subgroups: {default} ({least} to \
         {most}); 16-bit storage: {half}"
    )
}

/// What `--device auto` takes.
fn choice(devices: &[GpuDescription]) -> Row {
    match pianola_vulkan::select(devices, &Selection::Best) {
        Ok(device) => Row::fine(
            "auto",
            format!("--device auto takes vulkan:{} ({})", device.index, device.name),
        ),
        Err(_) => Row::fine("auto", "--device auto takes the processor: no GPU can be used here"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Recorded;
    use super::super::row::Verdict;
    use super::*;

    fn device(kind: GpuKind, missing: Vec<&'static str>) -> GpuDescription {
        GpuDescription {
            index: 0,
            name: "AMD Radeon 780M (RADV PHOENIX)".into(),
            driver: "radv Mesa 25.0.7".into(),
            kind,
            api: (1, 4, 305),
            heaps: vec![pianola_vulkan::Heap {
                size: 16 << 30,
                budget: 15 << 30,
                used: 0,
                device_local: true,
            }],
            subgroup: (64, 32, 64),
            matrices: vec![MatrixShape { size: [16, 16, 16], types: ["f16", "f32"] }],
            integer_dot: true,
            shared_memory: 64 << 10,
            units: 0,
            largest_binding: 4 << 30,
            largest_allocation: 4 << 30,
            tick: None,
            missing,
        }
    }

    #[test]
    fn a_missing_loader_is_a_warning_with_the_package() {
        let machine = Recorded::new(&[("/etc/os-release", "ID=debian\n")], &[]);
        let row = loader_row(&machine.0, &Err("there is no Vulkan loader".into()));
        assert_eq!(row.verdict, Verdict::Warning);
        assert_eq!(row.fix.as_deref(), Some("sudo apt install libvulkan1"));
        assert_eq!(no_devices("why", true).verdict, Verdict::Warning);
        assert_eq!(no_devices("why", false), Row::fine("devices", "none: why"));
        let fine = loader_row(&machine.0, &Ok((1, 3, 239)));
        assert_eq!(fine, Row::fine("loader", "libvulkan, Vulkan 1.3.239"));
    }

    #[test]
    fn devices_are_described() {
        let machine = &Recorded::new(&[], &[]).0;
        let rows = device_rows(machine, &device(GpuKind::Integrated, vec![]));
        assert_eq!(
            rows[0].text,
            "AMD Radeon 780M (RADV PHOENIX): integrated, radv Mesa 25.0.7, Vulkan 1.4.305"
        );
        assert_eq!(
            rows[1].text,
            "cooperative matrices: 16x16x16 f16 to f32; integer dot product: accelerated; subgroups: \
             64 (32 to 64); 16-bit storage: present"
        );
        assert_eq!(rows[2].text, "17.2 GB device-local (16.1 GB for this process, 0.0 kB used)");
        let lacking = device(GpuKind::Discrete, vec!["16-bit storage (storageBuffer16BitAccess)"]);
        let rows = device_rows(machine, &lacking);
        assert_eq!(rows[0].verdict, Verdict::Warning);
        assert!(rows[0].text.contains("it lacks 16-bit storage") && rows[0].fix.is_some());
        assert!(rows[1].text.ends_with("16-bit storage: missing"));
    }

    #[test]
    fn software_is_called_software_and_not_chosen() {
        let software = device(GpuKind::Software, vec![]);
        let rows = device_rows(&Recorded::new(&[], &[]).0, &software);
        assert!(rows[0].text.contains("a software driver"), "{rows:?}");
        assert!(choice(&[software]).text.contains("takes the processor"));
        assert!(choice(&[device(GpuKind::Integrated, vec![])]).text.contains("takes vulkan:0"));
    }
}
