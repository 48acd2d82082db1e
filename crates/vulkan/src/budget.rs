//! Whether a plan fits a GPU, found before anything is allocated.

use crate::describe::{GpuDescription, Heap};
use crate::device::VulkanOptions;
use crate::memory::{Memory, Purpose, Region, block_size, region_size};
use crate::policy::{Limits, rotated};
use crate::program::Resources;
use crate::weights::Weights;
use pianola_plan::{Allocation, DeviceError, DeviceId, HeapShare, Numeric, Plan, PromptWeights};

/// Name of a device's own memory.
const DEVICE_LOCAL: &str = "device-local";

/// What is free of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FreeHeap {
    bytes: u64,
    device_local: bool,
}

/// Memory that a GPU grants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    /// Heaps that weights may lie in, in the order they are filled: the device's own first. The
    /// host's memory counts where the device has it in common with the processor.
    heaps: Vec<FreeHeap>,
    /// Most bytes to take in all, where the user sets a limit.
    pub limit: Option<u64>,
    /// Whether that limit is of the device's own memory only, and the host's holds the rest.
    host: bool,
    /// Most bytes of one allocation.
    pub largest_allocation: u64,
    /// Most bytes of one slice of a matrix.
    pub largest_slice: u64,
    /// What kernels are cut by, and with it what they need besides.
    limits: Limits,
    prompt_weights: PromptWeights,
    /// A card with memory of its own.
    discrete: bool,
}

impl Budget {
    /// What a GPU grants now, less some that is left to others: the desktop, the driver, and what
    /// this program needs besides weights, pages and activations.
    pub fn of(options: &VulkanOptions) -> Budget {
        let gpu = &options.gpu;
        let memory = Memory::new(gpu.clone(), None).reaching_host(options.host_memory);
        let limits = Limits::of_options(options);
        Budget {
            limit: options.memory,
            host: options.host_memory,
            prompt_weights: options.prompt_weights,
            ..Budget::of_heaps(&memory.resident_heaps(), gpu.description(), limits)
        }
    }

    /// What a device grants of `heaps`, those that weights may lie in, where the user sets nothing.
    pub fn of_heaps(heaps: &[Heap], description: &GpuDescription, limits: Limits) -> Budget {
        let granted: u64 = heaps.iter().map(|heap| heap.budget).sum();
        let free = |heap: &Heap| FreeHeap {
            bytes: heap.budget.saturating_sub(heap.used),
            device_local: heap.device_local,
        };
        let mut heaps: Vec<FreeHeap> = heaps.iter().map(free).collect();
        leave(&mut heaps, granted);
        Budget {
            heaps,
            limit: None,
            host: false,
            largest_allocation: description.largest_allocation,
            largest_slice: description.slice_limit(),
            limits,
            prompt_weights: PromptWeights::default(),
            discrete: description.is_card(),
        }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        let bounded = |heap: &&FreeHeap| heap.device_local || !self.host;
        let sum =
            |heaps: &mut dyn Iterator<Item = &FreeHeap>| heaps.map(|heap| heap.bytes).sum::<u64>();
        let own = sum(&mut self.heaps.iter().filter(bounded));
        let rest = sum(&mut self.heaps.iter()) - own;
        self.limit.map_or(own, |limit| limit.min(own)) + rest
    }

    /// What a recording of device `device`'s part of `plan` keeps in device memory, in the order
    /// of allocation.
    pub fn allocations(
        &self,
        plan: &Plan,
        device: DeviceId,
    ) -> Result<Vec<Allocation>, DeviceError> {
        let prompt_weights = self.keeps_prompt_weights(plan, device)?;
        self.listed(plan, device, prompt_weights)
    }

    fn listed(
        &self,
        plan: &Plan,
        device: DeviceId,
        prompt_weights: bool,
    ) -> Result<Vec<Allocation>, DeviceError> {
        let mut all = Vec::new();
        let mut list = |allocation: &Allocation| {
            let bytes = region_size(allocation.bytes);
            all.push(Allocation { bytes, ..allocation.clone() });
            Ok(Region::dry_run(allocation.bytes))
        };
        Resources::new(plan, device, &self.limits, &mut list)?;
        let mut weights = Weights::new(plan, device, self.largest_slice, &mut list)?;
        if prompt_weights {
            weights.add_prompt_form(plan, device, self.largest_slice, &mut list)?;
        }
        Ok(all)
    }

    /// Whether weights are kept in a second form for prompts ([`PromptWeights`]).
    pub fn keeps_prompt_weights(&self, plan: &Plan, device: DeviceId) -> Result<bool, DeviceError> {
        let options = &plan.options;
        let obstacles = [
            (self.limits.byte_depth == 0, "the device has no matrix units for int8"),
            (options.numeric == Numeric::Exact, "exact mode rounds nothing"),
            (options.reproducible, "reproducible plans compute all rows alike"),
            (options.max_rows < rotated::LEAST_ROWS as usize, "plays have few rows"),
            (!rotated::has_room(&self.limits), "a workgroup has too little shared memory"),
        ];
        let obstacle = obstacles.into_iter().find(|obstacle| obstacle.0);
        self.prompt_weights.decide(obstacle.map(|obstacle| obstacle.1), || {
            // What follows is asked of those only that would gain.
            if !self.discrete || layer_weights(plan) < rotated::LEAST_WEIGHTS {
                return Ok(false);
            }
            let all = self.listed(plan, device, true)?;
            let sizes: Vec<u64> = all.iter().map(|allocation| allocation.bytes).collect();
            // Over the bus they would be read more slowly than the first form is decoded.
            let own = |heap: &HeapShare| heap.name == DEVICE_LOCAL || heap.taken == 0;
            Ok(self.share(&sizes).is_some_and(|heaps| heaps.iter().all(own)))
        })
    }

    /// How much the blocks that regions end up in take of each heap, allocated one by one as
    /// [`Memory::allocate`] does it; none if one finds no room.
    pub fn share(&self, regions: &[u64]) -> Option<Vec<HeapShare>> {
        let share = |heap: &FreeHeap| HeapShare {
            name: if heap.device_local { DEVICE_LOCAL } else { "host" },
            taken: 0,
            free: heap.bytes,
        };
        let mut heaps: Vec<HeapShare> = self.heaps.iter().map(share).collect();
        let mut rooms: Vec<u64> = Vec::new();
        let mut taken = 0;
        for &size in regions {
            let size = region_size(size);
            if let Some(room) = rooms.iter_mut().find(|room| **room >= size) {
                *room -= size;
                continue;
            }
            let mut block = |bytes: u64| {
                let within = self.limit.is_none_or(|limit| taken + bytes <= limit);
                let bounded = |heap: &HeapShare| !self.host || heap.name == DEVICE_LOCAL;
                let heap = heaps
                    .iter_mut()
                    .find(|heap| (within || !bounded(heap)) && heap.free - heap.taken >= bytes)?;
                heap.taken += bytes;
                if bounded(heap) {
                    taken += bytes;
                }
                Some(bytes)
            };
            if size > self.largest_allocation {
                return None;
            }
            let whole = block_size(Purpose::Resident, size, self.largest_allocation);
            let bytes = block(whole).or_else(|| block(size))?;
            rooms.push(bytes - size);
        }
        Some(heaps)
    }
}

/// Takes a twentieth of what was granted, and at least 256 MiB, off the heaps, the last first.
fn leave(free: &mut [FreeHeap], granted: u64) {
    let mut left = (granted / 20).max(256 << 20);
    for heap in free.iter_mut().rev() {
        let part = left.min(heap.bytes);
        heap.bytes -= part;
        left -= part;
    }
}

/// Weights of a plan's layers, whatever devices these are on: how well a model bears rounding does not depend on them.
fn layer_weights(plan: &Plan) -> u64 {
    let weights = plan.graph.weights.iter().enumerate();
    let of_layers = weights.filter(|&(index, _)| plan.weight_layer(index).is_some());
    of_layers.map(|(_, spec)| spec.elements()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::VulkanDevice;
    use pianola_formats::TensorType;
    use pianola_model::{RandomWeights, SHAPES};
    use pianola_plan::{AllocationKind, Placement, PlanOptions};

    const MIB: u64 = 1 << 20;

    /// Heaps of so many MiB, the first the device's own.
    fn heaps(sizes: &[u64]) -> Vec<FreeHeap> {
        let heap =
            |(index, mib): (usize, &u64)| FreeHeap { bytes: mib * MIB, device_local: index == 0 };
        sizes.iter().enumerate().map(heap).collect()
    }

    fn budget(sizes: &[u64], limit: Option<u64>) -> Budget {
        let heaps = heaps(sizes);
        let limit = limit.map(|mib| mib * MIB);
        let limits = Limits {
            subgroup: 32,
            parallelism: 1 << 14,
            units: 0,
            shared_memory: 1 << 15,
            matrices: 0,
            byte_depth: 0,
            fragments: None,
        };
        let (largest_allocation, largest_slice) = (1024 * MIB, 128 * MIB);
        Budget {
            heaps,
            limit,
            host: false,
            largest_allocation,
            largest_slice,
            limits,
            prompt_weights: PromptWeights::Auto,
            discrete: true,
        }
    }

    fn taken(budget: &Budget, regions: &[u64]) -> Option<u64> {
        let regions: Vec<u64> = regions.iter().map(|mib| mib * MIB).collect();
        let heaps = budget.share(&regions)?;
        Some(heaps.iter().map(|heap| heap.taken).sum::<u64>() / MIB)
    }

    #[test]
    fn regions_share_blocks_and_heaps_fill_in_order() {
        let plenty = budget(&[4096], None);
        assert_eq!(taken(&plenty, &[25, 25, 12]), Some(64));
        assert_eq!(taken(&plenty, &[25, 25, 25, 12]), Some(128));
        assert_eq!(taken(&plenty, &[600, 10]), Some(600 + 64));
        // The second region does not fit the first heap as a whole block, but by itself.
        assert_eq!(taken(&budget(&[100], None), &[50, 25]), Some(64 + 25));
        let both = budget(&[100, 64], None);
        assert_eq!(taken(&both, &[50, 25]), Some(128));
        let shares = both.share(&[50 * MIB, 25 * MIB]).unwrap();
        assert_eq!(shares[1], HeapShare { name: "host", taken: 64 * MIB, free: 64 * MIB });
        assert_eq!(taken(&budget(&[100], None), &[50, 50]), None);
        assert_eq!(taken(&plenty, &[2000]), None);
    }

    #[test]
    fn the_users_limit_counts_before_what_is_there() {
        let limited = budget(&[4096, 4096], Some(75));
        assert_eq!(limited.bytes(), 75 * MIB);
        assert_eq!(taken(&limited, &[25, 25]), Some(64));
        assert_eq!(taken(&limited, &[25, 50]), None);
        assert_eq!(taken(&limited, &[50, 10, 11]), Some(75));
        assert_eq!(budget(&[100], Some(300)).bytes(), 100 * MIB);
    }

    /// A model in Q8_0, in plays of up to `max_rows` rows.
    fn plan(shape: &str, max_rows: usize, reproducible: bool) -> Plan {
        let shape = SHAPES.iter().find(|known| known.name == shape).unwrap();
        let weights = RandomWeights::new(&shape.config(), 1, |_, _, _| TensorType::Q8_0);
        let graph = pianola_model::graph(&shape.config(), &weights, None).unwrap();
        let placement = Placement::single(&graph, VulkanDevice::spec_named("vulkan"));
        let options = PlanOptions {
            numeric: Numeric::Fast,
            max_rows,
            max_logit_rows: 1,
            context: 512,
            sequences: 1,
            fusion: true,
            reproducible,
            kv_bytes: None,
            kv_type: None,
        };
        Plan::new(graph, options, placement).unwrap()
    }

    #[test]
    fn prompts_have_weights_of_their_own_where_everything_else_has_its_place() {
        let limits = |byte_depth| Limits {
            units: 0,
            subgroup: 32,
            parallelism: 1 << 17,
            shared_memory: 48 << 10,
            matrices: 16,
            byte_depth,
            fragments: None,
        };
        let of = |mib: u64, byte_depth: u32, prompt_weights: PromptWeights| Budget {
            limits: limits(byte_depth),
            prompt_weights,
            ..budget(&[mib], None)
        };
        let keeps = |budget: &Budget, plan: &Plan| budget.keeps_prompt_weights(plan, DeviceId(0));
        let (auto, on) = (PromptWeights::Auto, PromptWeights::On);
        let prompts = plan("gemma3:1b", 512, false);
        let all = of(4096, 32, auto).allocations(&prompts, DeviceId(0)).unwrap();
        let bytes = |second: bool| -> u64 {
            let kind = |allocation: &&Allocation| {
                (allocation.kind == AllocationKind::PromptWeights) == second
            };
            all.iter().filter(kind).map(|allocation| allocation.bytes).sum()
        };
        // 26 layers of 4 heads, 1 for keys and values, of 256: 1,152 wide, 6,912 between gate and down. A byte
        // a weight, and a scale a row.
        let rows = [(1024 + 2 * 256 + 2 * 6912, 1152), (1152, 1024), (1152, 6912)];
        let layer: u64 = rows.iter().map(|(rows, columns)| rows * (columns + 4)).sum();
        assert!(bytes(true).abs_diff(26 * layer) <= 26 * 7 * 256, "{}", bytes(true));
        // A small model has them only where it is told to.
        let small = plan("gemma3:270m", 512, false);
        assert!(!keeps(&of(4096, 32, auto), &small).unwrap());
        assert!(keeps(&of(4096, 32, on), &small).unwrap());
        // With room for everything else there is no room for it; what it leaves goes to nobody else.
        let rest = bytes(false).div_ceil(MIB) + 64;
        assert!(!keeps(&of(rest, 32, auto), &prompts).unwrap());
        let without = of(rest, 32, auto).allocations(&prompts, DeviceId(0)).unwrap();
        assert!(without.iter().all(|allocation| allocation.kind != AllocationKind::PromptWeights));
        assert!(keeps(&of(rest, 32, on), &prompts).unwrap());
        assert!(!keeps(&of(4096, 32, PromptWeights::Off), &prompts).unwrap());
        // A second heap, the host's, holds them, and is no place for them.
        let sizes: Vec<u64> = all.iter().map(|allocation| allocation.bytes).collect();
        let host = Budget { heaps: heaps(&[rest, 4096]), ..of(rest, 32, auto) };
        assert!(host.share(&sizes).is_some() && !keeps(&host, &prompts).unwrap());
        assert!(!keeps(&Budget { discrete: false, ..of(4096, 32, auto) }, &prompts).unwrap());
        for (byte_depth, plan, why) in [
            (0, prompts, "no matrix units for int8"),
            (32, plan("gemma3:1b", 512, true), "reproducible"),
            (32, plan("gemma3:1b", 32, false), "few rows"),
        ] {
            assert!(!keeps(&of(4096, byte_depth, auto), &plan).unwrap());
            let error = keeps(&of(4096, byte_depth, on), &plan).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_hosts_memory_holds_what_the_limit_leaves() {
        let limited = Budget { host: true, ..budget(&[4096, 4096], Some(75)) };
        assert_eq!(limited.bytes(), (75 + 4096) * MIB);
        let shares = limited.share(&[50 * MIB, 25 * MIB, 50 * MIB]).unwrap();
        let taken: Vec<u64> = shares.iter().map(|heap| heap.taken / MIB).collect();
        assert_eq!(taken, [64, 128]);
        assert_eq!(Budget { host: true, ..budget(&[100, 50], None) }.bytes(), 150 * MIB);
    }

    #[test]
    fn some_memory_is_left_to_others() {
        let mut free = heaps(&[512, 10_000]);
        leave(&mut free, 10_512 * MIB);
        assert_eq!(free[0].bytes, 512 * MIB);
        assert_eq!(free[1].bytes, 10_000 * MIB - 10_512 * MIB / 20);
        let mut free = heaps(&[100, 200]);
        leave(&mut free, 300 * MIB);
        assert_eq!(free, heaps(&[44, 0]));
    }
}
