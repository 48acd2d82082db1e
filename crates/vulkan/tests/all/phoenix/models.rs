//! The models whose pipelines are compiled.

use pianola_formats::TensorType;
use pianola_model::{RandomWeights, Shape, shape};
use pianola_plan::{BUCKETS, KvType, Numeric, Placement, Plan, PlanOptions};
use pianola_vulkan::{PromptWeights, VulkanDevice};

/// A model to compile for.
pub struct Model {
    pub name: String,
    pub plan: Plan,
    pub prompt_weights: PromptWeights,
}

impl Model {
    /// `type_of` says which type a matrix of that name has.
    fn new(name: &str, shape: Shape, type_of: impl Fn(&str) -> TensorType) -> Model {
        Model::with(name, shape, type_of, |_| ())
    }

    /// The same with options that `change` sets.
    fn with(
        name: &str,
        shape: Shape,
        type_of: impl Fn(&str) -> TensorType,
        change: impl Fn(&mut PlanOptions),
    ) -> Model {
        let config = shape.config();
        let weights = RandomWeights::new(&config, 7, |name, _, columns| {
            // Not every width is a whole number of 256-blocks: eight bits there, as converters do.
            let ty = type_of(name);
            if columns % ty.block_len() == 0 { ty } else { TensorType::Q8_0 }
        });
        let graph = pianola_model::graph(&config, &weights, None).unwrap();
        let mut options = PlanOptions {
            numeric: Numeric::Fast,
            kv_type: None,
            max_rows: BUCKETS[BUCKETS.len() - 1],
            // As `pianola perplexity` wants them.
            max_logit_rows: 256,
            context: config.context,
            sequences: 1,
            kv_bytes: None,
            fusion: true,
            reproducible: false,
        };
        change(&mut options);
        let placement = Placement::single(&graph, VulkanDevice::spec_named("vulkan"));
        let plan = Plan::new(graph, options, placement).unwrap();
        Model { name: name.to_string(), plan, prompt_weights: PromptWeights::Auto }
    }
}

/// Files called Q4_K_M keep embeddings and, in half of the layers, values and down in six bits.
fn q4_k_m(name: &str) -> TensorType {
    let layer = name.split('.').find_map(|word| word.parse::<usize>().ok());
    let fine = name.contains("attn_v.") || name.contains("ffn_down.");
    match layer {
        None => TensorType::Q6K,
        Some(layer) if fine && layer % 2 == 0 => TensorType::Q6K,
        Some(_) => TensorType::Q4K,
    }
}

pub fn models() -> Vec<Model> {
    let of = |name: &str| *shape(name).expect("a known shape");
    let mut models = vec![
        Model::new("gemma3:1b q8_0", of("gemma3:1b"), |_| TensorType::Q8_0),
        Model::new("gemma3:4b q4_0", of("gemma3:4b"), |_| TensorType::Q4_0),
        Model::new("gemma3:4b q4_k", of("gemma3:4b"), |_| TensorType::Q4K),
        Model::new("gemma3:4b q4_k_m", of("gemma3:4b"), q4_k_m),
        Model::new("gemma3:27b q4_0", of("gemma3:27b"), |_| TensorType::Q4_0),
    ];
    // Heads of 256, 128 and 64 values; four, two and three queries to a key.
    for name in ["gemma3:1b", "gemma3:27b", "llama3:8b", "smollm2:135m"] {
        let title = format!("{name} q4_0, kv q8_0");
        let bytes = |options: &mut PlanOptions| options.kv_type = Some(KvType::Q8);
        models.push(Model::with(&title, of(name), |_| TensorType::Q4_0, bytes));
    }
    // The ways to compute that a user has to ask for.
    for name in ["gemma3:4b", "llama3:8b"] {
        let q4_0 = |_: &str| TensorType::Q4_0;
        let title = |how: &str| format!("{name} q4_0, {how}");
        let prompts = Model::new(&title("--prompt-weights on"), of(name), q4_0);
        models.push(Model { prompt_weights: PromptWeights::On, ..prompts });
        models.push(Model::with(&title("--reproducible"), of(name), q4_0, |options| {
            options.reproducible = true;
        }));
        models.push(Model::with(&title("--exact"), of(name), q4_0, |options| {
            options.numeric = Numeric::Exact;
        }));
    }
    // Every operation by itself; Gemma 2 caps its logits.
    for name in ["gemma2:9b", "gemma3:1b"] {
        let title = format!("{name} q8_0, nothing fused");
        let small = of(name).reduced(1, 4096);
        models.push(Model::with(
            &title,
            small,
            |_| TensorType::Q8_0,
            |options| {
                options.fusion = false;
            },
        ));
    }
    // One layer with widths that all types can have.
    let small = of("llama3:8b").reduced(1, 4096);
    for &ty in TensorType::ALL {
        models.push(Model::new(&format!("llama {ty}"), small, move |_| ty));
    }
    models
}
