//! All layers of a single row in one dispatch: `persistent`.
//!
//! A plan is taken whose layers are alike: q+k+v, attention, output, gate+up, down. What differs between them (weights,
//! norms, windows, tables) goes into a list that the kernel reads; everything else is a constant of it.

use super::project::persistent::{ProductCut, ProductWeights};
use super::project::product_gate_code as gate_code;
use super::{Body, Dispatch, Programmer};
use crate::constants::{heads as heads_id, persistent as id, prologue_input};
use crate::decode::PersistentTrial;
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::{persistent as policy, single};
use bytemuck::{Pod, Zeroable};
use pianola_plan::{Attend, FusedNorm, Kernel, Op, Project};

/// A layer as the kernel reads it; mirrors the `LAYER_` constants in `persistent.comp`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
pub(crate) struct LayerBytes {
    /// Of q, k, v, output, gate, up, down; pages; angles.
    pub addresses: [u64; 9],
    /// Norm of the input of q+k+v and of what is added to the residual stream there, and the same of gate+up.
    norms: [u32; 4],
    /// Of the seven weights.
    biases: [u32; 7],
    query_norm: u32,
    key_norm: u32,
    table: u32,
    window: u32,
    /// Bit w: weight w has the second type of its product.
    types: u32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Pod, Zeroable, Debug)]
struct PersistentConstants {
    layers: u32,
    exchanges: u32,
    spins: u32,
    query_heads: u32,
    kv_heads: u32,
    entries: u32,
    epsilon: f32,
    delta_epsilon: f32,
    feed_epsilon: f32,
    feed_delta_epsilon: f32,
    query_epsilon: f32,
    key_epsilon: f32,
    scale: f32,
    cap: f32,
}

/// The dispatch of a plan's layers, but for the memory that it needs besides.
pub(crate) struct PersistentProgram {
    variant: Variant,
    push: PersistentConstants,
    /// Layers without their addresses, and where these lead.
    pub layers: Vec<(LayerBytes, [Region; 9])>,
    pub workgroups: u32,
    /// Words that workgroups exchange.
    pub words: u64,
    /// Bytes of all workgroups' residual streams.
    pub residual_bytes: u64,
    vectors: Region,
    embedded: Region,
    stream: Region,
    delta: Region,
    /// Embedding and angles, which come before.
    before: Vec<Dispatch>,
    op: usize,
}

/// Memory of the dispatch that no plan has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PersistentMemory {
    pub layers: Region,
    pub words: Region,
    pub control: Region,
    pub notice: Region,
    pub residual: Region,
}

impl PersistentMemory {
    /// Memory that is nowhere, for programs that are never played.
    pub fn dry_run() -> PersistentMemory {
        let nowhere = Region::dry_run(0);
        let (layers, words, control) = (nowhere, nowhere, nowhere);
        PersistentMemory { layers, words, control, notice: nowhere, residual: nowhere }
    }
}

impl PersistentProgram {
    pub fn variant(&self) -> &Variant {
        &self.variant
    }

    fn dispatch(&self, memory: &PersistentMemory, push: PersistentConstants) -> Dispatch {
        let bindings = vec![
            memory.layers,
            memory.words,
            memory.control,
            memory.notice,
            self.vectors,
            self.vectors,
            memory.residual,
            self.embedded,
            self.stream,
            self.delta,
        ];
        let (variant, groups) = (self.variant.clone(), [self.workgroups, 1, 1]);
        let push = bytemuck::bytes_of(&push);
        Dispatch { barrier: true, ..Dispatch::new(variant, bindings, push, groups, self.op) }
    }

    /// The body of a play of one row.
    pub fn body(&self, memory: &PersistentMemory) -> Vec<Dispatch> {
        let mut dispatches = self.before.clone();
        dispatches.push(self.dispatch(memory, self.push));
        dispatches
    }

    /// A dispatch whose workgroups only meet, this often, and each time ask at most `spins` times.
    pub fn meeting(&self, memory: &PersistentMemory, exchanges: u32, spins: u32) -> Vec<Dispatch> {
        vec![self.dispatch(memory, PersistentConstants { exchanges, spins, ..self.push })]
    }
}

/// A layer's kernels.
struct LayerKernels<'a> {
    qkv: &'a Project,
    attend: &'a Attend,
    out: &'a Project,
    feed: &'a Project,
    down: &'a Project,
}

impl LayerKernels<'_> {
    /// Whether each kernel reads what the one before left, and nothing stands between.
    fn is_chain(&self) -> bool {
        let LayerKernels { qkv, attend, out, feed, down } = self;
        let plain = |project: &Project| project.soft_cap.is_none() && !project.select;
        let bare = |project: &Project| {
            let single = project.parts.len() == 1 && project.gate.is_none();
            single && project.residual.is_none() && project.norm.is_none()
        };
        let outputs: Vec<_> = qkv.parts.iter().map(|part| part.output).collect();
        [*qkv, out, feed, down].into_iter().all(plain)
            && outputs == [attend.query, attend.key, attend.value]
            && qkv.gate.is_none()
            && qkv.norm.is_some()
            && bare(out)
            && out.input == attend.output
            && feed.residual.is_some_and(|residual| residual.delta == out.parts[0].output)
            && feed.norm.is_some()
            && feed.gate.is_some_and(|gate| gate.1 == down.input)
            && bare(down)
    }
}

/// The one value of all layers.
fn one<T: PartialEq + Copy>(values: impl Iterator<Item = T>, what: &str) -> Result<T, String> {
    let mut values = values;
    let first = values.next().ok_or_else(|| "there is no layer".to_string())?;
    match values.all(|value| value == first) {
        true => Ok(first),
        false => Err(format!("layers differ in {what}")),
    }
}

fn epsilon(norm: Option<FusedNorm>) -> f32 {
    norm.map_or(0.0, |norm| norm.epsilon)
}

impl Programmer<'_> {
    /// The layers of a plan as one dispatch, or why it cannot be that.
    pub fn persistent(&self, trial: &PersistentTrial) -> Result<PersistentProgram, String> {
        let plan = self.plan;
        if plan.segments.len() != 1 {
            return Err("several devices share the plan".to_string());
        }
        if plan.options.reproducible {
            return Err("the plan is to be reproducible".to_string());
        }
        let workgroups = policy::workgroups(&self.limits)?;
        let segment = 0;
        let ops = plan.segments[segment].ops.clone();
        let this = Programmer { within: ops.clone(), ..*self };
        let (before, chain): (Vec<usize>, Vec<usize>) =
            ops.filter(|&op| !plan.is_head(op)).partition(|&op| self.is_of_the_step_alone(op));
        let layers = self.layers(&chain)?;
        let body = Body::single(segment);
        let mut cuts = Vec::new();
        let mut weights: Vec<Vec<ProductWeights>> = Vec::new();
        for product in [
            |layer: &LayerKernels<'_>| layer.qkv.clone(),
            |layer: &LayerKernels<'_>| layer.out.clone(),
            |layer: &LayerKernels<'_>| layer.feed.clone(),
            |layer: &LayerKernels<'_>| layer.down.clone(),
        ] {
            let projects: Vec<Project> = layers.iter().map(product).collect();
            let projects: Vec<&Project> = projects.iter().collect();
            let (cut, of_layers) = this.persistent_product(&projects, trial.words)?;
            cuts.push(cut);
            weights.push(of_layers);
        }
        if cuts[2].groups < workgroups {
            return Err(format!(
                "the model is too small to give {workgroups} workgroups rows of gate+up"
            ));
        }
        let specs = || layers.iter().map(|layer| &layer.attend.spec);
        let geometry = specs().map(|spec| (spec.heads, spec.kv_heads, spec.head_dim));
        let (heads, kv_heads, head_dim) = one(geometry, "their heads")?;
        let (scale, cap) = one(specs().map(|s| (s.scale, s.soft_cap)), "how they scale scores")?;
        let cut = one(specs().map(|spec| this.single_cut(spec, body)), "their heads")?;
        let cut = cut.ok_or_else(|| format!("heads have {head_dim} values"))?;
        let splits = trial
            .splits
            .unwrap_or_else(|| policy::splits(workgroups, heads as u32, cut.splits))
            .min(cut.splits);
        let all_heads: Vec<_> = layers.iter().map(|layer| this.layer_heads(layer.attend)).collect();
        let first = &all_heads[0];
        if !all_heads.iter().all(|heads| heads.constants == first.constants) {
            return Err("layers differ in their heads".to_string());
        }
        let later =
            |layer: &LayerKernels<'_>| layer.qkv.residual.and_then(|residual| residual.norm);
        let between =
            |layer: &LayerKernels<'_>| layer.feed.residual.and_then(|residual| residual.norm);
        let all = || layers.iter();
        let normed = one(
            all()
                .skip(1)
                .map(|layer| later(layer).is_some())
                .chain(all().map(|layer| between(layer).is_some())),
            "the norms of what they add",
        )?;
        let push = PersistentConstants {
            layers: layers.len() as u32,
            exchanges: 0,
            spins: trial.spins.unwrap_or(u32::MAX),
            query_heads: heads as u32,
            kv_heads: kv_heads as u32,
            entries: first.entries,
            epsilon: one(all().map(|layer| epsilon(layer.qkv.norm)), "their norms")?,
            delta_epsilon: one(all().skip(1).map(|layer| epsilon(later(layer))), "their norms")?,
            feed_epsilon: one(all().map(|layer| epsilon(layer.feed.norm)), "their norms")?,
            feed_delta_epsilon: one(all().map(|layer| epsilon(between(layer))), "their norms")?,
            query_epsilon: one(all_heads.iter().map(|heads| heads.query_epsilon), "their norms")?,
            key_epsilon: one(all_heads.iter().map(|heads| heads.key_epsilon), "their norms")?,
            scale,
            cap: cap.unwrap_or(0.0),
        };
        let activation = one(all().map(|layer| gate_code(layer.feed)), "their activation")?;
        let hidden = plan.graph.tensor(layers[0].qkv.input).width as u32;
        let feed_width = plan.graph.tensor(layers[0].down.input).width as u32;
        let (query_rows, kv_rows) = ((heads * head_dim) as u32, (kv_heads * head_dim) as u32);
        if query_rows % 32 != 0 || plan.graph.tensor(layers[0].out.input).width as u32 != query_rows
        {
            return Err("heads are no whole blocks".to_string());
        }
        if single::WORKGROUP / self.limits.subgroup > MOST_SUBGROUPS {
            return Err("subgroups are too small".to_string());
        }
        let most_blocks = hidden.max(feed_width).max(query_rows) / 32;
        policy::check_shared_memory(
            &self.limits,
            shared_bytes(most_blocks, head_dim as u32, &cuts),
        )?;
        let head = self.head_input()?;
        let embedded = this.whole(layers[0].qkv.input).map_err(|error| error.to_string())?.0;
        let mut dispatches = Vec::new();
        for op in before {
            let Kernel::Single(node) = plan.ops[op].kernel else { unreachable!("as found above") };
            this.single(op, node, 1, &mut dispatches).map_err(|error| error.to_string())?;
        }
        // As in every body: it waits for the play before.
        if let Some(first) = dispatches.first_mut() {
            first.barrier = true;
        }
        let mut constants = vec![
            (id::WORKGROUP, single::WORKGROUP),
            (id::WORKGROUPS, workgroups),
            (id::ABSENT, trial.absent.unwrap_or(u32::MAX)),
            (id::FEED_GATE, activation),
            (id::KV_ROWS, kv_rows),
            (id::LATE_NORMS, u32::from(trial.late_norms)),
            (id::SPLITS, splits),
            (id::LEAST_PAGES, cut.least_pages),
            (id::OUT_BLOCKS, query_rows / 32),
            (id::DOWN_BLOCKS, feed_width / 32),
            (prologue_input::WIDTH, hidden),
            (prologue_input::PASSES, (hidden / 4).div_ceil(single::WORKGROUP)),
            (prologue_input::SUM, if normed { 2 } else { 1 }),
            (prologue_input::NORM, 1),
            (prologue_input::SUBGROUP, self.limits.subgroup),
        ];
        let value_of = |number: u32| first.constants.iter().find(|constant| constant.0 == number);
        let renamed =
            HEADS_IDS.into_iter().filter_map(|(there, here)| Some((here, value_of(there)?.1)));
        constants.extend(renamed);
        for (ids, cut) in PRODUCT_IDS.into_iter().zip(&cuts) {
            let values = [
                cut.types[0],
                cut.types[1],
                cut.shape.row_invocations,
                cut.shape.height,
                cut.shape.unroll,
                cut.slices,
                cut.most_groups,
            ];
            constants.extend(ids.into_iter().zip(values));
        }
        let words = u64::from(query_rows + 2 * kv_rows + query_rows + 2 * hidden + feed_width)
            + u64::from(2 * workgroups)
            + u64::from(heads as u32 * splits * (head_dim as u32 + 2));
        let list = layers.iter().enumerate().map(|(index, layer)| {
            let offset = |norm: Option<FusedNorm>| {
                norm.map_or(0, |norm| self.weights.vector(norm.weight) / 4)
            };
            let of = |product: usize| &weights[product][index];
            let parts = || (0..4).map(of);
            let mut types = 0;
            let mut bit = 0;
            for product in parts() {
                types |= product.second << bit;
                bit += product.regions.len();
            }
            let heads = &all_heads[index];
            let regions: Vec<Region> = parts()
                .flat_map(|product| product.regions.iter().copied())
                .chain([heads.pages, heads.angles])
                .collect();
            let biases: Vec<u32> =
                parts().flat_map(|product| product.biases.iter().copied()).collect();
            let bytes = LayerBytes {
                addresses: [0; 9],
                norms: [
                    offset(layer.qkv.norm),
                    offset(later(layer)),
                    offset(layer.feed.norm),
                    offset(between(layer)),
                ],
                biases: biases.try_into().expect("seven weights"),
                query_norm: heads.query_norm,
                key_norm: heads.key_norm,
                table: heads.table,
                window: layer.attend.spec.window.map_or(0, |window| window as u32),
                types,
            };
            (bytes, regions.try_into().expect("seven weights, pages and angles"))
        });
        Ok(PersistentProgram {
            variant: Variant { shader: Shader::Persistent, constants },
            push,
            layers: list.collect(),
            workgroups,
            words,
            residual_bytes: u64::from(workgroups) * u64::from(hidden) * 4,
            vectors: self.weights.vectors,
            embedded,
            stream: head[0],
            delta: head[1],
            before: dispatches,
            op: chain[0],
        })
    }

    /// Whether a kernel reads nothing but the step: embedding and angles.
    fn is_of_the_step_alone(&self, op: usize) -> bool {
        match self.plan.ops[op].kernel {
            Kernel::Single(node) => {
                matches!(self.plan.graph.nodes[node].op, Op::Embed { .. } | Op::RopeAngles { .. })
            }
            _ => false,
        }
    }

    /// Kernels as layers of five, each of which reads what the one before left.
    fn layers(&self, chain: &[usize]) -> Result<Vec<LayerKernels<'_>>, String> {
        let other = || "the layers are not q+k+v, attention, output, gate+up and down".to_string();
        let mut layers = Vec::new();
        let kernel = |op: &usize| &self.plan.ops[*op].kernel;
        for five in chain.chunks(5) {
            let [qkv, attend, out, feed, down] = five else { return Err(other()) };
            let (
                Kernel::Project(qkv),
                Kernel::Attend(attend),
                Kernel::Project(out),
                Kernel::Project(feed),
                Kernel::Project(down),
            ) = (kernel(qkv), kernel(attend), kernel(out), kernel(feed), kernel(down))
            else {
                return Err(other());
            };
            layers.push(LayerKernels { qkv, attend, out, feed, down });
        }
        let joined = layers.windows(2).all(|pair| {
            let added = pair[1].qkv.residual.map(|residual| (residual.base, residual.delta));
            let left = pair[0]
                .feed
                .residual
                .map(|residual| (residual.output, pair[0].down.parts[0].output));
            added.is_some() && added == left
        });
        let begins = layers.first().is_some_and(|layer| layer.qkv.residual.is_none());
        if !begins || !joined || !layers.iter().all(LayerKernels::is_chain) {
            return Err(other());
        }
        // The head's input may lie where the embedding did.
        if layers.len() < 2 {
            return Err("there is one layer".to_string());
        }
        Ok(layers)
    }

    /// What the head reads: the residual stream, and what the last layer adds to it.
    fn head_input(&self) -> Result<[Region; 2], String> {
        let heads = (0..self.plan.ops.len()).filter(|&op| self.plan.is_head(op));
        let mut projects = heads.filter_map(|op| match &self.plan.ops[op].kernel {
            Kernel::Project(project) => Some(project),
            _ => None,
        });
        let residual = projects.next().and_then(|project| project.residual);
        let residual = residual.ok_or_else(|| "the head adds no residual stream".to_string())?;
        let whole =
            |tensor| self.whole(tensor).map(|found| found.0).map_err(|error| error.to_string());
        Ok([whole(residual.base)?, whole(residual.delta)?])
    }
}

/// Constants of `include/heads.glsl`, and the numbers that they have here.
const HEADS_IDS: [(u32, u32); 5] = [
    (heads_id::HEAD_DIM, id::HEAD_DIM),
    (heads_id::KV_TYPE, id::KV_TYPE),
    (heads_id::QUERY_NORM, id::QUERY_NORM),
    (heads_id::KEY_NORM, id::KEY_NORM),
    (heads_id::ROPE, id::ROPE),
];

/// Constants of each product.
const PRODUCT_IDS: [[u32; 7]; 4] = [
    [
        id::QKV_TYPE_A,
        id::QKV_TYPE_B,
        id::QKV_ROW_INVOCATIONS,
        id::QKV_HEIGHT,
        id::QKV_UNROLL,
        id::QKV_SLICES,
        id::QKV_MOST_GROUPS,
    ],
    [
        id::OUT_TYPE_A,
        id::OUT_TYPE_B,
        id::OUT_ROW_INVOCATIONS,
        id::OUT_HEIGHT,
        id::OUT_UNROLL,
        id::OUT_SLICES,
        id::OUT_MOST_GROUPS,
    ],
    [
        id::FEED_TYPE_A,
        id::FEED_TYPE_B,
        id::FEED_ROW_INVOCATIONS,
        id::FEED_HEIGHT,
        id::FEED_UNROLL,
        id::FEED_SLICES,
        id::FEED_MOST_GROUPS,
    ],
    [
        id::DOWN_TYPE_A,
        id::DOWN_TYPE_B,
        id::DOWN_ROW_INVOCATIONS,
        id::DOWN_HEIGHT,
        id::DOWN_UNROLL,
        id::DOWN_SLICES,
        id::DOWN_MOST_GROUPS,
    ],
];

/// Subgroups of a workgroup that the kernel has room for.
const MOST_SUBGROUPS: u32 = 64;

/// Bytes that a workgroup shares: codes of the widest row, sums of slices, what attention needs, and the rest.
fn shared_bytes(most_blocks: u32, head_dim: u32, cuts: &[ProductCut]) -> u32 {
    let attention = 4 * head_dim * (1 + 2 + 8 + 3) + 8 + 2 * 8 * 4;
    let sums: u32 = cuts.iter().map(|cut| cut.sums_bytes).sum();
    let layers = 2 * size_of::<LayerBytes>() as u32;
    // Sums of up to MOST_SUBGROUPS subgroups.
    let rest = 2 * MOST_SUBGROUPS * 4 + 64;
    40 * most_blocks + sums + attention + layers + rest
}
