//! The NPU before a plan is recorded on it.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pianola_formats::TensorSource;
use pianola_plan::{
    Allocation, AllocationKind, Ceilings, Device, DeviceError, DeviceId, DeviceSpec, HeapShare,
    KernelVariant, Numeric, Plan, Recording, Takeover, WeightShape,
};

use super::arena::Arena;
use super::assigned::{Assigned, LACKS};
use super::attend::flash_for;
use super::costs::{self, CONFIGURATION_SWITCH, Switches};
use super::encode::Form;
use super::error::OpenError;
use super::kv::KvMemory;
use super::link::{Link, LinkParts};
use super::measure;
use super::options::{NpuOptions, Precision};
use super::packages::{self, Kernels, Refused};
use super::recording::{NpuRecording, RecordingParts};
use super::session::{Needs, Source};
use super::variants;
use super::weights::Weights;
use super::worker::Worker;
use crate::amdxdna::{Calls, Identity, SystemCalls, discover};
#[cfg(feature = "emulated")]
use crate::{amdxdna::Generation, emulated::Emulated};

/// Fewest rows of a step that products are taken over from: a tile of fewer is mostly padding.
const LEAST_ROWS: usize = 32;

/// An NPU with kernel packages that passed their self-tests on it.
pub struct NpuDevice {
    source: Source,
    identity: Identity,
    kernels: Arc<Kernels>,
    options: NpuOptions,
    emulated: bool,
}

/// What a plan's text says of the device.
#[derive(Clone, Debug)]
pub struct NpuFacts {
    /// The form of weights and inputs.
    pub precision: Precision,
    /// Whether both are rotated before they become int8.
    pub rotation: bool,
    /// The packages of products with weights, all of one xclbin: the largest first.
    pub products: Vec<String>,
    /// The same of attention's products; none where the processor computes them.
    pub attention: Vec<String>,
    /// Packages of whole attentions.
    pub flash: Vec<String>,
    /// Packages that cannot be read or failed their self-tests, with the reason.
    pub refused: Vec<Refused>,
    /// Sound packages that nothing needs, with the reason.
    pub unused: Vec<Refused>,
    /// Configurations of the array that take turns where a plan uses all of these packages.
    pub configurations: usize,
    /// The time that each change between them takes, by others' measurements.
    pub switch: Duration,
}

impl NpuDevice {
    /// Opens the NPU, and tests its packages on it.
    pub fn open(options: NpuOptions) -> Result<NpuDevice, OpenError> {
        let node = match &options.node {
            Some(node) => node.clone(),
            None => discover()?.swap_remove(0).identity.path,
        };
        NpuDevice::over(options, Arc::new(SystemCalls), &node, false)
    }

    /// A faultless model of an NPU in this process, which computes what the packages' manifests state. It
    /// says nothing of any device's speed.
    #[cfg(feature = "emulated")]
    pub fn emulated(options: NpuOptions) -> Result<NpuDevice, OpenError> {
        let (packages, _) = packages::find(&options, Generation::Npu1)?;
        let machine = Emulated::of_packages(&packages)?;
        NpuDevice::emulated_by(options, Arc::new(machine))
    }

    /// The same with a model of the caller's.
    #[cfg(feature = "emulated")]
    pub fn emulated_by(
        options: NpuOptions,
        machine: Arc<Emulated>,
    ) -> Result<NpuDevice, OpenError> {
        NpuDevice::over(options, machine, Emulated::path(), true)
    }

    fn over(
        options: NpuOptions,
        calls: Arc<dyn Calls>,
        node: &Path,
        emulated: bool,
    ) -> Result<NpuDevice, OpenError> {
        let (run, tiled) = (options.run, options.tiled);
        let source = Source { calls, node: node.to_path_buf(), run, tiled };
        let device = source.open()?;
        let identity = device.identity().clone();
        let (found, mut refused) = packages::find(&options, identity.generation)?;
        if found.is_empty() && refused.is_empty() {
            let (folder, device) = (options.kernels.clone(), identity.generation.name());
            return Err(OpenError::NoPackages { folder, device });
        }
        let sound = packages::test(&source, &device, found, &mut refused);
        let precision = options.precision;
        let kernels = packages::choose(sound, &options, refused).map_err(|refused| {
            OpenError::NoneUsable { folder: options.kernels.clone(), precision, refused }
        })?;
        Ok(NpuDevice { source, identity, kernels: Arc::new(kernels), options, emulated })
    }

    fn name(&self) -> &'static str {
        if self.emulated { "npu (emulated)" } else { "npu" }
    }

    fn form(&self) -> Form {
        Form {
            precision: self.kernels.precision,
            piece: self.kernels.product_spec().shape.k,
            rotation: self.options.rotation,
        }
    }

    /// What a plan's text says of it.
    pub fn facts(&self) -> NpuFacts {
        let kernels = &self.kernels;
        let name = |package: &crate::package::Package| package.name().to_string();
        let attention = match kernels.precision {
            Precision::Bf16 => &kernels.products,
            Precision::Int8Pieces => &kernels.attention,
        };
        NpuFacts {
            precision: kernels.precision,
            rotation: kernels.precision == Precision::Int8Pieces && self.options.rotation,
            products: kernels.products.iter().map(name).collect(),
            attention: attention.iter().map(name).collect(),
            flash: kernels.flash.iter().map(name).collect(),
            refused: kernels.refused.clone(),
            unused: kernels.unused.clone(),
            configurations: kernels.configurations(),
            switch: CONFIGURATION_SWITCH,
        }
    }

    /// Bytes of the weights that a recording of device `id`'s part of `plan` keeps in host memory, beside
    /// what other devices keep of them.
    pub fn weight_bytes(&self, plan: &Plan, id: DeviceId) -> u64 {
        let form = self.form();
        let assigned = Assigned::new(plan, id);
        assigned.matrices(plan).map(|(_, rows, columns)| form.bytes(rows, columns)).sum()
    }

    /// How often a play of device `id`'s part of `plan` changes the array's configuration.
    pub fn switches(&self, plan: &Plan, id: DeviceId) -> Switches {
        Switches::of(&self.kernels, plan, &Assigned::new(plan, id))
    }

    fn needs(&self, assigned: &Assigned) -> Needs {
        let mut flash: Vec<usize> =
            assigned.attentions.iter().flat_map(|spec| flash_for(&self.kernels, spec)).collect();
        flash.sort_unstable();
        flash.dedup();
        Needs { attention: !assigned.attentions.is_empty(), flash }
    }
}

impl Device for NpuDevice {
    fn spec(&self) -> DeviceSpec {
        DeviceSpec {
            name: self.name().to_string(),
            layout: match self.kernels.precision {
                Precision::Bf16 => "bf16 rows",
                Precision::Int8Pieces => "int8 pieces",
            },
            fuses: true,
            rounds_rows: false,
            asynchronous: true,
            lacks: LACKS.to_vec(),
        }
    }

    fn description(&self) -> String {
        let Identity { generation, firmware: [major, minor, patch, build], .. } = &self.identity;
        let package = self.kernels.products[0].name();
        let precision = self.kernels.precision;
        format!(
            "{} ({}, firmware {major}.{minor}.{patch}.{build}, {precision} by {package})",
            self.name(),
            generation.name()
        )
    }

    /// Host memory: the array has none of its own for weights.
    fn memory(&self) -> Option<u64> {
        self.options.memory.or_else(measure::available_memory)
    }

    fn allocations(&self, plan: &Plan, id: DeviceId) -> Result<Vec<Allocation>, DeviceError> {
        let assigned = Assigned::new(plan, id);
        let allocation = |kind: AllocationKind, what: &str, bytes: u64, layer: Option<usize>| {
            Allocation { kind, what: what.to_string(), bytes, layer }
        };
        let arenas = (plan.arenas() * plan.arena.bytes) as u64;
        let needs = self.needs(&assigned);
        let second = usize::from(needs.attention && !self.kernels.attention.is_empty());
        let staging = ((1 + second) * self.options.tiled.staging_bytes) as u64;
        let mut all = vec![
            allocation(AllocationKind::Working, "the arena", arenas, None),
            allocation(AllocationKind::Working, "staging for the array", staging, None),
        ];
        for slot in assigned.slots() {
            let bytes = KvMemory::layer_bytes(plan, slot.group);
            all.push(allocation(AllocationKind::Kv, "the KV pages", bytes, plan.kv_layer(slot)));
        }
        let form = self.form();
        for &id in &assigned.weights {
            let bytes = match plan.graph.weight(id).shape {
                WeightShape::Matrix { rows, columns } => form.bytes(rows, columns),
                WeightShape::Vector { .. } => plan.graph.weight(id).bytes(),
            };
            let layer = plan.weight_layer(id.0);
            let what = "the array's copy of the weights";
            all.push(allocation(AllocationKind::Weights, what, bytes, layer));
        }
        Ok(all)
    }

    /// An eighth of what is available is left to others.
    fn heaps(&self, allocations: &[Allocation]) -> Option<Vec<HeapShare>> {
        let taken: u64 = allocations.iter().map(|allocation| allocation.bytes).sum();
        let free = self.memory().map_or(u64::MAX, |available| available - available / 8);
        (taken <= free).then(|| vec![HeapShare { name: "system memory", taken, free }])
    }

    fn record(
        &self,
        plan: &Arc<Plan>,
        id: DeviceId,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Recording>, DeviceError> {
        let assigned = Assigned::new(plan, id);
        assigned.check(plan)?;
        // Memory is granted before it is there; what is too much would end the process half-way.
        let needed = self.allocations(plan, id)?;
        if !self.holds(&needed) {
            return Err(DeviceError::OutOfMemory {
                device: self.name().to_string(),
                what: "a second copy of weights, pages and activations".to_string(),
                bytes: needed.iter().map(|allocation| allocation.bytes).sum(),
            });
        }
        let kv = KvMemory::new(plan, &assigned.slots())?;
        let weights = Weights::load(plan, &assigned.weights, self.form(), source, progress)?;
        let (fallback, clock) = (self.options.fallback, self.options.clock.clone());
        let device = self.name().to_string();
        let link = Link::open(LinkParts {
            source: self.source.clone(),
            kernels: self.kernels.clone(),
            needs: self.needs(&assigned),
            fallback,
            clock: clock.clone(),
            device: device.clone(),
        })?;
        let arenas = Arena::of_plan(plan).into_iter().map(Mutex::new).collect();
        let (plan, arenas) = (plan.clone(), Arc::new(arenas));
        let worker = Worker { plan, arenas, kv, weights, link, interrupt: None };
        Ok(Box::new(NpuRecording::new(worker, RecordingParts { device, fallback, clock })))
    }

    fn variants(&self, plan: &Plan, id: DeviceId) -> Result<Vec<KernelVariant>, DeviceError> {
        Ok(variants::of_ops(&self.kernels, plan, &Assigned::new(plan, id).ops))
    }

    /// Nothing of a model of a device: it has no speed.
    fn measure(&self, _numeric: Numeric) -> Option<Ceilings> {
        match self.emulated {
            true => None,
            false => measure::ceilings(&self.source, &self.kernels),
        }
    }

    fn takeover(&self) -> Option<Takeover> {
        // All products are of one xclbin, so that the array's configuration stays as it is. What a plan
        // changes that gives the device attention as well, by name, `remarks` says.
        Some(Takeover {
            least_rows: LEAST_ROWS,
            seconds_each: 0.0,
            exact: false,
            shares_memory: true,
            always: self.options.always,
        })
    }

    fn remarks(&self, plan: &Plan, id: DeviceId) -> Vec<String> {
        let name = self.name();
        let mut remarks = Vec::new();
        let Switches { rows, count, time } = self.switches(plan, id);
        if count > 0 {
            let milliseconds = 1e3 * time.as_secs_f64();
            remarks.push(format!(
                "{name} changes its array's configuration {count} times in a step of {rows} rows: \
                 {milliseconds:.0} ms on an npu1 by others' measurements, {} ms each",
                CONFIGURATION_SWITCH.as_millis()
            ));
        }
        let assigned = Assigned::new(plan, id);
        let values: usize = assigned.matrices(plan).map(|(_, rows, columns)| rows * columns).sum();
        if values > 0 {
            let seconds = values as f64 / costs::conversion_speed(self.form());
            remarks.push(format!(
                "the processor converts the weights of {name} at load: some {seconds:.1} s at the speed \
                 that it has now, besides reading them"
            ));
        }
        remarks
    }

    fn is_emulated(&self) -> bool {
        self.emulated
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
