//! Which layers run where: as many as fit on the GPU, the first of the others on the processor.

use crate::error::EngineError;
use pianola_plan::{
    DeviceKind, Graph, KvDemand, Plan, PlanError, PlanOptions, kv_bytes, layer_range, size_text,
};
use pianola_vulkan::{Budget, VulkanOptions};

/// Shortest context that a model is given before layers leave the GPU, where none was requested for.
const LEAST_CONTEXT: usize = 4096;
/// Contexts are tried in steps of so many tokens.
const CONTEXT_STEP: usize = 1024;

/// What is requested of the placement.
#[derive(Clone, Copy, Debug)]
struct SplitRequest {
    /// Layers of the model.
    layers: usize,
    /// Layers to put on the GPU, if the user says how many.
    layers_on_gpu: Option<usize>,
    /// Tokens of context, if the user says how many.
    context: Option<usize>,
    /// Tokens of context that the model allows.
    model_context: usize,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Choice {
    cpu_layers: usize,
    context: usize,
}

impl SplitRequest {
    /// Fewest layers on the processor that may be chosen, and most.
    fn cpu_layers(&self) -> (usize, usize) {
        match self.layers_on_gpu {
            Some(requested) => (self.layers - requested, self.layers - requested),
            None => (0, self.layers),
        }
    }

    /// Shortest context that may be chosen, and longest.
    fn contexts(&self) -> (usize, usize) {
        match self.context {
            Some(requested) => (requested, requested),
            None => (LEAST_CONTEXT.min(self.model_context), self.model_context),
        }
    }
}

/// The fewest layers on the processor with which the rest fits, at the longest context that then
/// fits: a shorter context costs only those who need it, a layer on the processor costs every
/// token. `fits` says whether so many layers on the processor and such a context leave the GPU with
/// what it can hold; none if nothing does.
fn choose<E>(
    split: SplitRequest,
    fits: &mut dyn FnMut(Choice) -> Result<bool, E>,
) -> Result<Option<Choice>, E> {
    let (fewest, most) = split.cpu_layers();
    let (shortest, longest) = split.contexts();
    let best = Choice { cpu_layers: fewest, context: longest };
    if fits(best)? {
        return Ok(Some(best));
    }
    let layers = |cpu_layers| Choice { cpu_layers, context: shortest };
    if !fits(layers(most))? {
        return Ok(None);
    }
    // Between one that may not fit and one that does.
    let (mut low, mut high) = (fewest, most);
    while low < high {
        let middle = low + (high - low) / 2;
        match fits(layers(middle))? {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    let cpu_layers = high;
    let steps = |index: usize| (shortest + index * CONTEXT_STEP).min(longest);
    let (mut low, mut high) = (0, (longest - shortest).div_ceil(CONTEXT_STEP));
    while low < high {
        let middle = (low + high).div_ceil(2);
        match fits(Choice { cpu_layers, context: steps(middle) })? {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    Ok(Some(Choice { cpu_layers, context: steps(low) }))
}

/// What a user may say about the placement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requested {
    pub layers_on_gpu: Option<usize>,
    pub context: Option<usize>,
}

/// Plans `graph` for a GPU, with as much of it there as the memory allows. `options` has the
/// longest context and no layer on the processor.
pub(crate) fn on_gpu(
    graph: Graph,
    options: PlanOptions,
    requested: Requested,
    gpu: &VulkanOptions,
) -> Result<Plan, EngineError> {
    let budget = Budget::of(&gpu.gpu, gpu.memory);
    let plan = |choice: Choice, kv_bytes: Option<u64>| {
        let Choice { cpu_layers, context } = choice;
        Plan::new(graph.clone(), PlanOptions { cpu_layers, context, kv_bytes, ..options })
    };
    let whole = Choice { cpu_layers: 0, context: options.context };
    let largest = plan(whole, None)?;
    let layers = largest.layers();
    if let Some(count) = requested.layers_on_gpu {
        check_count(count, layers)?;
    }
    let split = SplitRequest {
        layers,
        layers_on_gpu: requested.layers_on_gpu,
        context: requested.context,
        model_context: options.context,
    };
    // Layers and context are chosen for few pages, and what is then left goes to more of them.
    let kv_bytes = |lanes: usize, context: usize| {
        options.kv_bytes.or_else(|| Some(enough_kv(&largest, lanes, context)))
    };
    let fits = |lanes: usize, choice: Choice| match plan(choice, kv_bytes(lanes, choice.context)) {
        Ok(plan) => Ok::<bool, EngineError>(budget.holds(&plan)?),
        Err(PlanError::KvBudget { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    };
    let lanes = options.sequences;
    let found = choose(split, &mut |choice| fits(lanes, choice))?;
    // Before a layer leaves the GPU, lanes make do with the pages of one.
    let (lanes, found) = match found {
        Some(choice) if choice.cpu_layers == split.cpu_layers().0 => (lanes, Some(choice)),
        _ => (1, choose(split, &mut |choice| fits(1, choice))?),
    };
    let Some(choice) = found else {
        let least = Choice { cpu_layers: split.cpu_layers().1, context: split.contexts().0 };
        // A budget of the user's that holds no sequence says so itself.
        let plan = plan(least, kv_bytes(1, least.context))?;
        return Err(no_room(&plan, &budget, requested, gpu));
    };
    if options.kv_bytes.is_some() {
        return Ok(plan(choice, options.kv_bytes)?);
    }
    let most = plan(choice, None)?;
    if budget.holds(&most)? {
        return Ok(most);
    }
    /// Steps in which what is left is searched.
    const STEPS: u64 = 64;
    let (least, most) = (enough_kv(&largest, lanes, choice.context), most.kv_bytes());
    let share = |step: u64| Some(least + (most.saturating_sub(least) / STEPS) * step);
    let (mut low, mut high) = (0, STEPS);
    while low < high {
        let middle = (low + high).div_ceil(2);
        match budget.holds(&plan(choice, share(middle))?)? {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    Ok(plan(choice, share(low))?)
}

/// Bytes of pages with which one sequence of `context` tokens has room, and so many lanes for a
/// short one each.
fn enough_kv(plan: &Plan, lanes: usize, context: usize) -> u64 {
    let max_rows = plan.options.max_rows;
    let groups = &plan.graph.kv_groups;
    let bytes = |sequences: usize, context: usize| {
        let demand = KvDemand { sequences, context, chunk: max_rows };
        let pages = demand.pages(groups, None).unwrap_or_default();
        u64::try_from(kv_bytes(groups, &pages)).unwrap_or(u64::MAX)
    };
    bytes(1, context).max(bytes(lanes, context.min(LEAST_CONTEXT)))
}

/// Plans `graph` for the processor, with KV pages in what the weights leave of its memory.
pub(crate) fn on_cpu(
    graph: Graph,
    options: PlanOptions,
    requested: Requested,
) -> Result<Plan, EngineError> {
    let plan = |context: usize, kv_bytes: Option<u64>| {
        Plan::new(graph.clone(), PlanOptions { context, kv_bytes, ..options })
    };
    let largest = plan(options.context, None)?;
    let budget = options.kv_bytes.or_else(|| {
        let (_, available) = pianola_cpu::describe().memory?;
        let taken = largest.weight_bytes() + largest.arena.bytes as u64;
        // Weights that do not fit are refused when they are loaded; an eighth is left to others.
        let fits = taken <= available;
        fits.then(|| (available - available / 8).saturating_sub(taken))
    });
    let split = SplitRequest {
        layers: 0,
        layers_on_gpu: None,
        context: requested.context,
        model_context: options.context,
    };
    let mut fits = |choice: Choice| match plan(choice.context, budget) {
        Ok(_) => Ok(true),
        Err(PlanError::KvBudget { .. }) => Ok(false),
        Err(error) => Err(error),
    };
    let context = choose(split, &mut fits)?.map_or(split.contexts().0, |choice| choice.context);
    Ok(plan(context, budget)?)
}

fn check_count(count: usize, layers: usize) -> Result<(), EngineError> {
    match count {
        0 => Err(EngineError::Option(
            "--layers-on-gpu 0 leaves the GPU without work; use --device cpu".to_string(),
        )),
        _ if count > layers => Err(EngineError::Option(format!(
            "--layers-on-gpu {count} is more than the {layers} layers of this model"
        ))),
        _ => Ok(()),
    }
}

/// Why not even `plan`, the least that may be put on the GPU, fits there.
fn no_room(plan: &Plan, budget: &Budget, requested: Requested, gpu: &VulkanOptions) -> EngineError {
    let needed = match budget.needed(plan) {
        Ok(needed) => needed,
        Err(error) => return error.into(),
    };
    let there = plan.layers_on(DeviceKind::Vulkan);
    let what = match there.len() {
        0 => "even the head".to_string(),
        _ => format!("{} and the head", layer_range(there, plan.layers())),
    };
    let limit = match gpu.memory {
        Some(limit) if limit <= budget.bytes() => " within --gpu-memory",
        _ => "",
    };
    let advice = match (requested.layers_on_gpu, requested.context) {
        (Some(_), _) => "ask for fewer --layers-on-gpu or a smaller --context",
        (None, Some(_)) => "ask for a smaller --context, or use --device cpu",
        (None, None) => "use --device cpu",
    };
    EngineError::GpuMemory(format!(
        "{} has no room for {what}: with activations and a context of {} tokens that is {}, and {} \
         are free{limit}; {advice}",
        gpu.gpu.description().name,
        plan.options.context,
        size_text(needed),
        size_text(budget.bytes()),
    ))
}

/// Where a loaded model lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Layers of the model.
    pub layers: usize,
    /// Of these, the first so many on the processor although there is a GPU.
    pub cpu_layers: usize,
    /// Bytes of weights in the processor's memory.
    pub cpu_bytes: u64,
    /// Bytes of weights, pages and activations that the GPU has.
    pub gpu: Option<pianola_vulkan::Placement>,
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Placement { layers, cpu_layers, cpu_bytes, gpu } = self;
        let Some(gpu) = gpu else {
            let all = layer_range(0..*layers, *layers);
            return write!(f, "{all} and the head on cpu ({})", size_text(*cpu_bytes));
        };
        if *cpu_layers > 0 {
            let first = layer_range(0..*cpu_layers, *layers);
            write!(f, "{first} on cpu ({}), ", size_text(*cpu_bytes))?;
        }
        let rest = match cpu_layers < layers {
            true => format!("{} and the head", layer_range(*cpu_layers..*layers, *layers)),
            false => "the head".to_string(),
        };
        write!(
            f,
            "{rest} on vulkan ({} device-local, {} host)",
            size_text(gpu.device_local),
            size_text(gpu.host)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Ten layers of 100 bytes, a head of 50, pages of a byte a layer for 16 tokens.
    fn chosen(memory: usize, split: SplitRequest) -> Option<Choice> {
        let mut fits = |Choice { cpu_layers, context }: Choice| {
            let layers = split.layers - cpu_layers;
            Ok::<_, Infallible>(50 + layers * (100 + context / 16) <= memory)
        };
        choose(split, &mut fits).unwrap()
    }

    const SPLIT: SplitRequest =
        SplitRequest { layers: 10, layers_on_gpu: None, context: None, model_context: 32_768 };

    #[test]
    fn everything_is_on_the_gpu_where_it_fits() {
        let all = Some(Choice { cpu_layers: 0, context: 32_768 });
        assert_eq!(chosen(50 + 10 * (100 + 2048), SPLIT), all);
    }

    #[test]
    fn the_context_gives_way_before_a_layer_does() {
        let shorter = |context| Some(Choice { cpu_layers: 0, context });
        assert_eq!(chosen(50 + 10 * (100 + 2048) - 1, SPLIT), shorter(31_744));
        assert_eq!(chosen(50 + 10 * (100 + 512), SPLIT), shorter(8192));
        assert_eq!(chosen(50 + 10 * (100 + 256), SPLIT), shorter(4096));
        let short = SplitRequest { model_context: 2000, ..SPLIT };
        assert_eq!(chosen(50 + 10 * (100 + 125), short), shorter(2000));
    }

    #[test]
    fn the_fewest_layers_go_to_the_processor() {
        let memory = 50 + 10 * (100 + 256) - 1;
        // Nine layers at 4096 tokens, and what is then left makes the context longer.
        assert_eq!(chosen(memory, SPLIT), Some(Choice { cpu_layers: 1, context: 4096 }));
        assert_eq!(chosen(50 + 400, SPLIT), Some(Choice { cpu_layers: 9, context: 4096 }));
        assert_eq!(chosen(50 + 500, SPLIT), Some(Choice { cpu_layers: 9, context: 6144 }));
        assert_eq!(chosen(50, SPLIT), Some(Choice { cpu_layers: 10, context: 32_768 }));
        assert_eq!(chosen(49, SPLIT), None);
    }

    #[test]
    fn what_the_user_says_stays() {
        let requested = SplitRequest { context: Some(32_768), ..SPLIT };
        let memory = 50 + 10 * (100 + 256);
        assert_eq!(chosen(memory, requested), Some(Choice { cpu_layers: 9, context: 32_768 }));
        let layers = SplitRequest { layers_on_gpu: Some(4), ..SPLIT };
        assert_eq!(chosen(memory, layers), Some(Choice { cpu_layers: 6, context: 12_288 }));
        assert_eq!(chosen(1000, layers), None);
        let both = SplitRequest { layers_on_gpu: Some(4), context: Some(4096), ..SPLIT };
        assert_eq!(chosen(memory, both), Some(Choice { cpu_layers: 6, context: 4096 }));
    }

    #[test]
    fn numbers_of_layers_are_checked() {
        assert!(check_count(26, 26).is_ok() && check_count(1, 26).is_ok());
        let none = check_count(0, 26).unwrap_err().to_string();
        assert!(none.contains("--device cpu"), "{none}");
        let many = check_count(27, 26).unwrap_err().to_string();
        assert!(many.contains("27") && many.contains("26 layers"), "{many}");
    }

    #[test]
    fn placements_read_well() {
        let gpu = pianola_vulkan::Placement { device_local: 14_300_000_000, host: 0 };
        let mut placement =
            Placement { layers: 62, cpu_layers: 6, cpu_bytes: 1_200_000_000, gpu: Some(gpu) };
        assert_eq!(
            placement.to_string(),
            "layers 0 to 5 on cpu (1.2 GB), layers 6 to 61 and the head on vulkan (14.3 GB \
             device-local, 0.0 MB host)"
        );
        placement.cpu_layers = 62;
        assert!(
            placement.to_string().contains("all 62 layers on cpu (1.2 GB), the head on vulkan")
        );
        placement.cpu_layers = 0;
        assert!(placement.to_string().starts_with("all 62 layers and the head on vulkan (14.3 GB"));
        placement.gpu = None;
        assert_eq!(placement.to_string(), "all 62 layers and the head on cpu (1.2 GB)");
    }
}
