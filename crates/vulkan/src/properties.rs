//! All that choices about a device depend on, as JSON: a part of what `pianola devices --json` prints of it, and what
//! the tests of policies read (`src/policy/devices/`).

use crate::describe::{GpuDescription, Heap, MatrixShape};
use crate::gpu::Gpu;
use crate::memory::Memory;
use crate::policy::fragments::Fragments;
use serde_json::{Value, json};
use std::sync::Arc;

/// A device's description, and what opening it shows.
#[derive(Clone, PartialEq, Debug)]
pub struct Properties {
    pub(crate) description: GpuDescription,
    /// Heaps that weights, pages and activations fill, in that order.
    pub(crate) weight_heaps: Vec<usize>,
    /// How matrices lie in registers, where kernels can make use of it.
    pub(crate) fragments: Option<Fragments>,
    /// What it lacks for chained kernels to wait for one another.
    pub(crate) exchange_lacks: Vec<&'static str>,
}

impl Properties {
    /// Those of an opened device.
    pub fn of(gpu: &Arc<Gpu>) -> Properties {
        Properties {
            description: gpu.description().clone(),
            weight_heaps: Memory::new(gpu.clone(), None).resident_heap_indices(),
            fragments: gpu.fragments(),
            exchange_lacks: gpu.exchange_lacks.clone(),
        }
    }

    /// As an object.
    pub fn to_json(&self) -> Value {
        let mut value = description_json(&self.description);
        value["weight_heaps"] = json!(self.weight_heaps);
        value["matrix_fragments"] = match &self.fragments {
            None => Value::Null,
            Some(fragments) => json!({
                "sharers": fragments.sharers,
                "first_rows_first": fragments.first_rows_first,
                "second_rows_first": fragments.second_rows_first,
                "token_side": fragments.token_side,
            }),
        };
        value["exchange_missing"] = json!(self.exchange_lacks);
        value
    }
}

/// A description as an object.
pub fn description_json(gpu: &GpuDescription) -> Value {
    let heap = |heap: &Heap| {
        json!({
            "bytes": heap.size,
            "budget_bytes": heap.budget,
            "used_bytes": heap.used,
            "device_local": heap.device_local,
        })
    };
    json!({
        "device": format!("vulkan:{}", gpu.index),
        "name": gpu.name,
        "driver": gpu.driver,
        "type": gpu.kind.to_string(),
        "api": [gpu.api.0, gpu.api.1, gpu.api.2],
        "heaps": gpu.heaps.iter().map(heap).collect::<Vec<_>>(),
        "subgroup": { "default": gpu.subgroup.0, "least": gpu.subgroup.1, "most": gpu.subgroup.2 },
        "cooperative_matrices": gpu.matrices.iter().map(shape_text).collect::<Vec<_>>(),
        "integer_dot_accelerated": gpu.integer_dot,
        "shared_memory_bytes": gpu.shared_memory,
        "units": gpu.units,
        "largest_binding_bytes": gpu.largest_binding,
        "largest_allocation_bytes": gpu.largest_allocation,
        "timestamp_nanoseconds": gpu.tick,
        "missing": gpu.missing,
    })
}

/// A shape of cooperative matrices in words: `16x16x16 f16 to f32`.
pub fn shape_text(shape: &MatrixShape) -> String {
    let [rows, columns, depth] = shape.size;
    format!("{rows}x{columns}x{depth} {} to {}", shape.types[0], shape.types[1])
}
