//! Which layers run where: the head and the last layers on the first device, as many as it has
//! memory for, those before them on the next, and the rest on the last.

use crate::error::EngineError;
use crate::options::LoadOptions;
use pianola_plan::{
    Allocation, AllocationKind, Ceilings, Device, DeviceId, DeviceSpec, Graph, KvDemand, ModelPart,
    Numeric, Placement, Plan, PlanError, PlanOptions, TakeoverTerms, kv_bytes, layer_range,
    size_text,
};
use std::sync::Arc;

/// Shortest context that a model is given before layers leave a device, where none was asked for.
const LEAST_CONTEXT: usize = 4096;
/// Contexts are tried in steps of this many tokens.
const CONTEXT_STEP: usize = 1024;

/// What is asked of the split.
#[derive(Clone, Copy, Debug)]
struct SplitRequest {
    /// Layers of the model.
    layers: usize,
    /// Devices.
    devices: usize,
    /// Layers to put on the first device, if the user says how many.
    layers_on_first: Option<usize>,
    /// Tokens of context, if the user says how many.
    context: Option<usize>,
    /// Tokens of context that the model allows.
    model_context: usize,
}

/// The chosen split and context.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Split {
    /// Layers on each device, in the order of preference.
    layers: Vec<usize>,
    context: usize,
}

impl SplitRequest {
    /// Shortest context that may be chosen, and longest.
    fn contexts(&self) -> (usize, usize) {
        match self.context {
            Some(asked) => (asked, asked),
            None => (LEAST_CONTEXT.min(self.model_context), self.model_context),
        }
    }

    /// These many layers on the first devices, and the rest on the last.
    fn split(&self, first: &[usize], context: usize) -> Split {
        let mut layers = first.to_vec();
        layers.resize(self.devices, 0);
        layers[self.devices - 1] += self.layers - first.iter().sum::<usize>();
        Split { layers, context }
    }

    /// As many layers as asked for on the first device, or all; the rest on the last.
    fn best(&self) -> Split {
        let first = self.layers_on_first.unwrap_or(self.layers);
        let first = if self.devices == 1 { 0 } else { first };
        self.split(&[first], self.contexts().1)
    }
}

/// The most layers on each device in turn that fit, at the longest context that then fits: a
/// shorter context costs only those who need it, a layer on a slower device costs every token.
/// `fits` says whether every device but the last holds its part; none if nothing fits.
fn choose<E>(
    request: SplitRequest,
    fits: &mut dyn FnMut(&Split) -> Result<bool, E>,
) -> Result<Option<Split>, E> {
    let (shortest, longest) = request.contexts();
    let best = request.best();
    // With layers left for several devices, these are filled in turn.
    let whole = best.layers[0] == request.layers || request.devices <= 2;
    if whole && fits(&best)? {
        return Ok(Some(best));
    }
    let mut layers: Vec<usize> = Vec::new();
    for device in 0..request.devices - 1 {
        let left = request.layers - layers.iter().sum::<usize>();
        let (fewest, most) = match request.layers_on_first.filter(|_| device == 0) {
            Some(asked) => (asked, asked),
            None => (0, left),
        };
        let mut holds = |count: usize| {
            let first: Vec<usize> = layers.iter().copied().chain([count]).collect();
            fits(&request.split(&first, shortest))
        };
        if !holds(fewest)? {
            return Ok(None);
        }
        let (mut low, mut high) = (fewest, most);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if holds(middle)? { low = middle } else { high = middle - 1 }
        }
        layers.push(low);
    }
    if !fits(&request.split(&layers, shortest))? {
        return Ok(None);
    }
    let steps = |index: usize| (shortest + index * CONTEXT_STEP).min(longest);
    let (mut low, mut high) = (0, (longest - shortest).div_ceil(CONTEXT_STEP));
    while low < high {
        let middle = (low + high).div_ceil(2);
        match fits(&request.split(&layers, steps(middle)))? {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    Ok(Some(request.split(&layers, steps(low))))
}

/// Plans a graph on the devices of the options. `options` has the longest context.
pub(crate) fn plan(
    graph: Graph,
    options: PlanOptions,
    asked: &LoadOptions,
) -> Result<Planned, EngineError> {
    let devices = &asked.devices;
    let request = SplitRequest {
        layers: graph.layers,
        devices: devices.len(),
        // More than there are means all of them.
        layers_on_first: asked.layers_on_first.map(|count| count.min(graph.layers)),
        context: asked.context,
        model_context: options.context,
    };
    match (asked.layers_on_first, devices.len()) {
        (_, 0) => return Err(EngineError::NoDevice),
        (Some(_), 1) => return Err(EngineError::OneDevice),
        (Some(0), _) => return Err(EngineError::NoLayersOnFirst),
        _ => {}
    }
    let all_devices = asked.all_devices();
    let placed = placed_parts(asked)?;
    let planner = Planner { graph, options, devices, all_devices, placed };
    let mut planned = match devices.len() {
        1 => planner.on_one(request)?,
        _ => Planned { plan: planner.on_several(request)?, refusal: None },
    };
    let plan = &mut planned.plan;
    remark_inexact(plan, &planner);
    offer_products(plan, asked)?;
    let devices = plan.devices_among(&asked.all_devices());
    for (id, device) in plan.device_ids().zip(devices) {
        let remarks = device.remarks(plan, id);
        plan.remarks.extend(remarks);
    }
    Ok(planned)
}

/// Says where an exact plan has parts on a device that does not compute exactly.
fn remark_inexact(plan: &mut Plan, planner: &Planner<'_>) {
    for (part, spec) in planner.placed.iter().filter(|_| plan.options.numeric == Numeric::Exact) {
        let device = planner.all_devices.iter().find(|device| device.spec().name == spec.name);
        let takeover = device.and_then(|device| device.takeover());
        if takeover.is_some_and(|takeover| !takeover.exact) {
            plan.remarks.push(format!("{part} on {} is not exact, whatever the mode", spec.name));
        }
    }
}

/// Parts that were placed by the names of devices.
fn placed_parts(asked: &LoadOptions) -> Result<Vec<(ModelPart, DeviceSpec)>, EngineError> {
    let specs: Vec<DeviceSpec> = asked.all_devices().iter().map(|device| device.spec()).collect();
    let find = |(part, name): &(ModelPart, String)| {
        let spec = specs.iter().find(|spec| spec.name == *name);
        let spec = spec.or_else(|| {
            // By the kind alone, too, where there is one of it.
            let kind = |spec: &&DeviceSpec| spec.name.split([' ', ':']).next() == Some(name);
            let mut alike = specs.iter().filter(kind);
            alike.next().filter(|_| alike.next().is_none())
        });
        let names = || specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
        spec.map(|spec| (*part, spec.clone())).ok_or_else(|| EngineError::NoSuchDevice {
            part: *part,
            name: name.clone(),
            devices: names(),
        })
    };
    asked.place.iter().map(find).collect()
}

/// What the plan's devices will allocate of the memory that another device has, too.
fn same_memory(
    plan: &Plan,
    all_devices: &[Arc<dyn Device>],
    other: &dyn Device,
) -> Result<Vec<Allocation>, EngineError> {
    let names = |device: &dyn Device| -> Vec<&'static str> {
        device.heaps(&[]).into_iter().flatten().map(|share| share.name).collect()
    };
    let heaps = names(other);
    let mut all = Vec::new();
    for (id, device) in plan.device_ids().zip(plan.devices_among(all_devices)) {
        if names(device.as_ref()).iter().any(|name| heaps.contains(name)) {
            all.extend(device.allocations(plan, id)?);
        }
    }
    Ok(all)
}

/// Adds segmentations in which the accelerators compute products, as far as they pay.
fn offer_products(plan: &mut Plan, asked: &LoadOptions) -> Result<(), EngineError> {
    plan.remarks.extend(asked.remarks.iter().cloned());
    // Those that were given parts by name have their share.
    let free = |device: &&Arc<dyn Device>| {
        let name = device.spec().name;
        !plan.devices.iter().any(|spec| spec.name == name)
    };
    let free: Vec<Arc<dyn Device>> = asked.accelerators.iter().filter(free).cloned().collect();
    if free.is_empty() {
        return Ok(());
    }
    let numeric = plan.options.numeric;
    // What is used whatever is predicted need not be measured.
    let always = |device: &Arc<dyn Device>| device.takeover().is_some_and(|it| it.always);
    let measure = |device: &Arc<dyn Device>| match free.iter().all(always) {
        true => None,
        false => device.measure(numeric),
    };
    let known = |device: &Arc<dyn Device>| measure(device).unwrap_or(Ceilings::UNKNOWN);
    let mut ceilings: Vec<Ceilings> =
        plan.devices_among(&asked.all_devices()).iter().map(known).collect();
    for device in &free {
        let before = plan.devices.len();
        let speed = measure(device);
        let shared = same_memory(plan, &asked.all_devices(), device.as_ref())?;
        let terms =
            TakeoverTerms { ceilings: &ceilings, speed, shared: &shared, overlap: asked.overlap };
        plan.offer(device.as_ref(), terms);
        if plan.devices.len() > before {
            ceilings.push(speed.unwrap_or(Ceilings::UNKNOWN));
        }
    }
    Ok(())
}

/// A plan, and why it must not be loaded if memory does not hold it.
pub(crate) struct Planned {
    pub plan: Plan,
    pub refusal: Option<EngineError>,
}

impl Planned {
    /// The plan, if it may be loaded.
    pub fn checked(self) -> Result<Plan, EngineError> {
        self.refusal.map_or(Ok(self.plan), Err)
    }
}

/// Memory of the only device, and what a model takes of it beside keys and values.
struct Room {
    free: u64,
    weights: u64,
    working: u64,
}

impl Room {
    /// Bytes for keys and values. An eighth of the memory is left to other programs.
    fn for_kv(&self) -> u64 {
        (self.free - self.free / 8).saturating_sub(self.weights + self.working)
    }

    fn refusal(&self, device: String, kv: u64, context: usize) -> EngineError {
        let Room { free, weights, working } = *self;
        EngineError::NoRoomForModel { device, weights, working, kv, context, free }
    }
}

struct Planner<'a> {
    graph: Graph,
    options: PlanOptions,
    devices: &'a [Arc<dyn Device>],
    /// These, and those that parts may be placed on besides.
    all_devices: Vec<Arc<dyn Device>>,
    /// Parts of the model that were placed by name.
    placed: Vec<(ModelPart, DeviceSpec)>,
}

impl Planner<'_> {
    fn plan(&self, split: &Split, kv_bytes: Option<u64>) -> Result<Plan, PlanError> {
        // The first layers run on the last device.
        let counts = self.devices.iter().zip(&split.layers).rev();
        let counts: Vec<_> = counts.map(|(device, &count)| (device.spec(), count)).collect();
        let mut placement = Placement::by_layers(&self.graph, &counts);
        placement.place_parts(&self.graph, &self.placed);
        let options = PlanOptions { context: split.context, kv_bytes, ..self.options };
        Plan::new(self.graph.clone(), options, placement)
    }

    /// What the plan needs of a device; none where it runs nothing there.
    fn needed(
        &self,
        plan: &Plan,
        device: &dyn Device,
    ) -> Result<Option<Vec<Allocation>>, EngineError> {
        let name = device.spec().name;
        let id = plan.devices.iter().position(|spec| spec.name == name);
        Ok(id.map(|id| device.allocations(plan, DeviceId(id))).transpose()?)
    }

    /// Whether every device of `devices` holds its part.
    fn holds(&self, plan: &Plan, devices: &[Arc<dyn Device>]) -> Result<bool, EngineError> {
        for device in devices {
            if let Some(needed) = self.needed(plan, device.as_ref())?
                && !device.holds(&needed)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All devices but the last, which takes what is left, and refuses it at load if it has no room.
    fn before_last(&self) -> &[Arc<dyn Device>] {
        &self.devices[..self.devices.len() - 1]
    }

    fn fits(&self, split: &Split, kv_bytes: u64) -> Result<bool, EngineError> {
        match self.plan(split, Some(kv_bytes)) {
            Ok(plan) => self.holds(&plan, self.before_last()),
            Err(PlanError::KvBudget { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn on_several(&self, request: SplitRequest) -> Result<Plan, EngineError> {
        // Layers and context are chosen for few pages, and what is then left goes to more of them.
        let few = |lanes: usize, context: usize| {
            self.options.kv_bytes.unwrap_or_else(|| self.enough_kv(lanes, context))
        };
        let lanes = self.options.sequences;
        let mut found = choose(request, &mut |split| self.fits(split, few(lanes, split.context)))?;
        let mut served = lanes;
        // Before a layer leaves the first device, lanes make do with the pages of one.
        if found.as_ref().is_none_or(|split| split.layers != request.best().layers) {
            served = 1;
            found = choose(request, &mut |split| self.fits(split, few(1, split.context)))?;
        }
        let Some(split) = found else {
            let least = request.layers_on_first.unwrap_or(0);
            let least = request.split(&[least], request.contexts().0);
            // A budget of the user's that holds no sequence says so itself.
            let plan = self.plan(&least, Some(few(1, least.context)))?;
            return Err(self.no_room(&plan, request)?);
        };
        if self.options.kv_bytes.is_some() {
            return Ok(self.plan(&split, self.options.kv_bytes)?);
        }
        self.widen(&split, few(served, split.context))
    }

    /// The plan of a split with as many KV pages as there is memory for on every device, from
    /// `least` bytes on.
    fn widen(&self, split: &Split, least: u64) -> Result<Plan, EngineError> {
        /// Steps in which what is left is searched.
        const STEPS: u64 = 64;
        let most = self.plan(split, None)?;
        if self.holds(&most, self.devices)? {
            return Ok(most);
        }
        let most = most.kv_bytes();
        let share = |step: u64| Some(least + (most.saturating_sub(least) / STEPS) * step);
        let (mut low, mut high) = (0, STEPS);
        while low < high {
            let middle = (low + high).div_ceil(2);
            match self.holds(&self.plan(split, share(middle))?, self.devices)? {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        Ok(self.plan(split, share(low))?)
    }

    /// Bytes of pages with which one sequence of `context` tokens has room, and each of `lanes`
    /// lanes for a short one.
    fn enough_kv(&self, lanes: usize, context: usize) -> u64 {
        let chunk = self.options.max_rows;
        let groups: Vec<_> = self
            .graph
            .kv_groups
            .iter()
            .cloned()
            .map(|mut group| {
                group.ty = self.options.kv_type();
                group
            })
            .collect();
        let bytes = |sequences: usize, context: usize| {
            let demand = KvDemand { sequences, context, chunk };
            let pages = demand.pages(&groups, None).unwrap_or_default();
            u64::try_from(kv_bytes(&groups, &pages)).unwrap_or(u64::MAX)
        };
        bytes(1, context).max(bytes(lanes, context.min(LEAST_CONTEXT)))
    }

    /// Plans everything on one device, with KV pages in what the weights leave of its memory.
    fn on_one(&self, request: SplitRequest) -> Result<Planned, EngineError> {
        let device = &self.devices[0];
        let room = match self.options.kv_bytes {
            Some(_) => None,
            None => self.room(request, device.as_ref())?,
        };
        let budget = self.options.kv_bytes.or(room.as_ref().map(Room::for_kv));
        let mut fits = |split: &Split| match self.plan(split, budget) {
            Ok(_) => Ok(true),
            Err(PlanError::KvBudget { .. }) => Ok(false),
            Err(error) => Err(error),
        };
        let found = choose(request, &mut fits)?;
        let split = found.unwrap_or_else(|| request.split(&[], request.contexts().0));
        match (self.plan(&split, budget), room) {
            // One sequence, to show what is needed.
            (Err(PlanError::KvBudget { needed, context, .. }), Some(room)) => Ok(Planned {
                plan: self.plan(&split, Some(needed))?,
                refusal: Some(room.refusal(device.description(), needed, context)),
            }),
            (plan, _) => Ok(Planned { plan: plan?, refusal: None }),
        }
    }

    /// What the only device has; none if the system does not report it.
    fn room(
        &self,
        request: SplitRequest,
        device: &dyn Device,
    ) -> Result<Option<Room>, EngineError> {
        let Some(free) = device.memory() else { return Ok(None) };
        let largest = self.plan(&request.best(), None)?;
        let needed = same_memory(&largest, &self.all_devices, device)?;
        let of = |wanted: &dyn Fn(AllocationKind) -> bool| -> u64 {
            let alike = needed.iter().filter(|allocation| wanted(allocation.kind));
            alike.map(|allocation| allocation.bytes).sum()
        };
        // A second form of the weights is listed if it was asked for, or if memory is plenty.
        Ok(Some(Room {
            free,
            weights: of(&|kind| {
                matches!(kind, AllocationKind::Weights | AllocationKind::PromptWeights)
            }),
            working: of(&|kind| kind == AllocationKind::Working),
        }))
    }

    /// Why not even `plan`, the least that may be put on the first device, fits there.
    fn no_room(&self, plan: &Plan, request: SplitRequest) -> Result<EngineError, EngineError> {
        let device = &self.devices[0];
        let needed = self.needed(plan, device.as_ref())?.unwrap_or_default();
        let there = plan.layers_on(plan.head_device());
        let what = match there.len() {
            0 => "even the head".to_string(),
            _ => format!("{} and the head", layer_range(there, plan.layers())),
        };
        Ok(EngineError::NoRoom {
            device: device.description(),
            what,
            context: plan.options.context,
            needed: size_text(needed.iter().map(|allocation| allocation.bytes).sum()),
            free: size_text(device.memory().unwrap_or(0)),
            layers_asked: request.layers_on_first.is_some(),
            context_asked: request.context.is_some(),
        })
    }
}

#[cfg(test)]
mod tests;
