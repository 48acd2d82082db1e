//! The products between two attentions of a single row in one dispatch: `persistent`.
//!
//! A plan is taken whose layers are alike: q+k+v, attention, output, gate+up, down.

use super::project::persistent::{NO_BIAS, ProductCut, ProductWeights};
use super::project::product_gate_code as gate_code;
use super::{Body, Dispatch, Programmer};
use crate::constants::{persistent as id, prologue_input};
use crate::decode::PersistentTrial;
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::{persistent as policy, single};
use bytemuck::{Pod, Zeroable};
use pianola_plan::{Attend, FusedNorm, Kernel, Op, Project};

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Pod, Zeroable, Debug)]
struct PersistentConstants {
    flags: u32,
    exchanges: u32,
    spins: u32,
    norms: [u32; 4],
    epsilons: [f32; 4],
    biases: [u32; 7],
    head_columns: [u32; 3],
}

/// Flags of [`PersistentConstants`]; the lower bits are types.
const FIRST_LAYER: u32 = 0x100;
const LAST_LAYER: u32 = 0x200;

/// A layer's products: q+k+v, output, gate+up, down.
struct PlannedLayer {
    weights: [ProductWeights; 4],
    /// As in [`PersistentConstants`].
    norms: [u32; 4],
    attention: PlannedAttention,
}

/// An attention, what it reads and what it leaves.
struct PlannedAttention {
    launch: Dispatch,
    heads: Region,
    head_columns: [u32; 3],
    attended: Region,
    op: usize,
}

/// The dispatches of a plan's layers, but for the memory that they need besides.
pub(crate) struct PersistentProgram {
    variant: Variant,
    push: PersistentConstants,
    layers: Vec<PlannedLayer>,
    pub workgroups: u32,
    /// Words that workgroups exchange.
    pub words: u64,
    /// Bytes of all workgroups' residual streams.
    pub residual_bytes: u64,
    vectors: Region,
    embedded: Region,
    stream: Region,
    delta: Region,
    /// Embedding, angles and the first q+k+v, which come before.
    before: Vec<Dispatch>,
}

/// Memory of the dispatch that no plan has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PersistentMemory {
    pub words: Region,
    pub control: Region,
    pub notice: Region,
    pub residual: Region,
}

impl PersistentMemory {
    /// Memory that is nowhere, for programs that are never played.
    pub fn dry_run() -> PersistentMemory {
        let nowhere = Region::dry_run(0);
        PersistentMemory { words: nowhere, control: nowhere, notice: nowhere, residual: nowhere }
    }
}

impl PersistentProgram {
    pub fn variant(&self) -> &Variant {
        &self.variant
    }

    /// The products behind the attention of a layer.
    fn dispatch(
        &self,
        memory: &PersistentMemory,
        layer: usize,
        push: PersistentConstants,
    ) -> Dispatch {
        let ending = &self.layers[layer];
        let mut flags = if layer == 0 { FIRST_LAYER } else { 0 };
        if layer + 1 == self.layers.len() {
            flags |= LAST_LAYER;
        }
        // What is not computed is bound all the same.
        let beginning = self.layers.get(layer + 1).unwrap_or(ending);
        let products = || beginning.weights[..1].iter().chain(&ending.weights[1..]);
        let regions: Vec<Region> =
            products().flat_map(|product| product.regions.iter().copied()).collect();
        let biases: Vec<u32> =
            products().flat_map(|product| product.biases.iter().copied()).collect();
        let mut bit = 0;
        for product in products() {
            flags |= product.second << bit;
            bit += product.regions.len();
        }
        let mut bindings = [&regions[..], &regions[..], &regions[..]].concat();
        bindings.extend([
            memory.words,
            memory.control,
            memory.notice,
            self.vectors,
            self.vectors,
            memory.residual,
            self.embedded,
            self.stream,
            self.delta,
            ending.attention.attended,
            beginning.attention.heads,
        ]);
        let [norm, delta_norm, ..] = beginning.norms;
        let [.., feed_norm, feed_delta_norm] = ending.norms;
        let push = PersistentConstants {
            flags,
            norms: [norm, delta_norm, feed_norm, feed_delta_norm],
            biases: biases.try_into().expect("seven weights"),
            head_columns: beginning.attention.head_columns,
            ..push
        };
        let (variant, groups) = (self.variant.clone(), [self.workgroups, 1, 1]);
        let op = ending.attention.op + 1;
        let push = bytemuck::bytes_of(&push);
        Dispatch { barrier: true, ..Dispatch::new(variant, bindings, push, groups, op) }
    }

    /// The body of a play of one row.
    pub fn body(&self, memory: &PersistentMemory) -> Vec<Dispatch> {
        let mut dispatches = self.before.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            dispatches.push(layer.attention.launch.clone());
            dispatches.push(self.dispatch(memory, index, self.push));
        }
        dispatches
    }

    /// A dispatch whose workgroups only meet, this often, and each time ask at most `spins` times.
    pub fn meeting(&self, memory: &PersistentMemory, exchanges: u32, spins: u32) -> Vec<Dispatch> {
        vec![self.dispatch(memory, 0, PersistentConstants { exchanges, spins, ..self.push })]
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
    /// The layers of a plan as two dispatches each, attention and all products up to the next one, or why they cannot be
    /// that.
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
        let attentions = layers
            .iter()
            .zip(chain.chunks(5))
            .map(|(layer, ops)| this.planned_attention(layer.attend, ops[1], body));
        let attentions = attentions.collect::<Result<Vec<PlannedAttention>, String>>()?;
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
            flags: 0,
            exchanges: 0,
            spins: trial.spins.unwrap_or(u32::MAX),
            norms: [0; 4],
            epsilons: [
                one(all().map(|layer| epsilon(layer.qkv.norm)), "their norms")?,
                one(all().skip(1).map(|layer| epsilon(later(layer))), "their norms")?,
                one(all().map(|layer| epsilon(layer.feed.norm)), "their norms")?,
                one(all().map(|layer| epsilon(between(layer))), "their norms")?,
            ],
            biases: [NO_BIAS; 7],
            head_columns: [0; 3],
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
        policy::check_shared_memory(&self.limits, shared_bytes(most_blocks, &cuts))?;
        let head = self.head_input()?;
        let embedded = this.whole(layers[0].qkv.input).map_err(|error| error.to_string())?.0;
        let mut dispatches = Vec::new();
        for op in before {
            let Kernel::Single(node) = plan.ops[op].kernel else { unreachable!("as found above") };
            this.single(op, node, 1, &mut dispatches).map_err(|error| error.to_string())?;
        }
        let start = dispatches.len();
        this.project(chain[0], layers[0].qkv, 1, &mut dispatches)
            .map_err(|error| error.to_string())?;
        dispatches[start].barrier = true;
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
            (id::OUT_BLOCKS, query_rows / 32),
            (id::DOWN_BLOCKS, feed_width / 32),
            (prologue_input::WIDTH, hidden),
            (prologue_input::PASSES, (hidden / 4).div_ceil(single::WORKGROUP)),
            (prologue_input::SUM, if normed { 2 } else { 1 }),
            (prologue_input::NORM, 1),
            (prologue_input::SUBGROUP, self.limits.subgroup),
        ];
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
        // Words of a row are padded to four columns for every invocation.
        let room = |width: u32| u64::from(width.next_multiple_of(4 * single::WORKGROUP));
        let words = 2 * room(hidden) + room(feed_width) + u64::from(2 * workgroups);
        let offset =
            |norm: Option<FusedNorm>| norm.map_or(0, |norm| self.weights.vector(norm.weight) / 4);
        let mut weights = weights.into_iter().map(Vec::into_iter);
        let mut weights: [_; 4] = std::array::from_fn(|_| weights.next().expect("four products"));
        let planned = layers.iter().zip(attentions).map(|(layer, attention)| PlannedLayer {
            weights: weights.each_mut().map(|list| list.next().expect("one for each layer")),
            norms: [
                offset(layer.qkv.norm),
                offset(later(layer)),
                offset(layer.feed.norm),
                offset(between(layer)),
            ],
            attention,
        });
        Ok(PersistentProgram {
            variant: Variant { shader: Shader::Persistent, constants },
            push,
            layers: planned.collect(),
            workgroups,
            words,
            residual_bytes: u64::from(workgroups) * u64::from(hidden) * 4,
            vectors: self.weights.vectors,
            embedded,
            stream: head[0],
            delta: head[1],
            before: dispatches,
        })
    }

    /// The attention of a layer, and where its rows lie.
    fn planned_attention(
        &self,
        attend: &Attend,
        op: usize,
        body: Body,
    ) -> Result<PlannedAttention, String> {
        let mut launches = Vec::new();
        self.attend(op, attend, body, &mut launches);
        let [launch] = &launches[..] else {
            return Err("attention takes several launches".to_string());
        };
        let [query, key, value] =
            [attend.query, attend.key, attend.value].map(|tensor| self.tensor(tensor));
        if query.0 != key.0 || query.0 != value.0 {
            return Err("queries, keys and values lie apart".to_string());
        }
        let attended = self.whole(attend.output).map_err(|error| error.to_string())?.0;
        Ok(PlannedAttention {
            launch: Dispatch { barrier: true, ..launch.clone() },
            heads: query.0,
            head_columns: [query.2, key.2, value.2],
            attended,
            op,
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

/// Bytes that a workgroup shares: codes of the widest row, sums of slices, and the rest.
fn shared_bytes(most_blocks: u32, cuts: &[ProductCut]) -> u32 {
    let sums: u32 = cuts.iter().map(|cut| cut.sums_bytes).sum();
    // Sums of up to MOST_SUBGROUPS subgroups.
    let rest = 2 * MOST_SUBGROUPS * 4 + 64;
    40 * most_blocks + sums + rest
}
