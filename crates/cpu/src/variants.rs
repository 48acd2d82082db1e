//! Which compiled kernels a play uses: what checks count.
//!
//! A kernel of the plan becomes calls of functions that are compiled for an instruction set, a type
//! and, where products take several rows at once, a number of rows.

use crate::pack::BLOCK;
use crate::policy::{
    BLOCK_ATTENTION_ROWS, ROTATED_ROWS, UNIT_ROWS, block_attention, direct_rows, refined_rows,
    rotated_rows, rotation,
};
use crate::simd::Level;
use pianola_plan::{
    Attend, AttentionSpec, DeviceId, Kernel, KernelVariant, KvType, Numeric, Op, Plan, Project,
    Step,
};
use std::collections::BTreeSet;

/// Rows that a product takes at once, as `simd/product.rs` and `simd/direct.rs` cut them.
const RUNS: [usize; 4] = [8, 4, 2, 1];

/// What a recording's kernels are compiled for, and whether its weights are kept in rotated form.
#[derive(Clone, Copy)]
pub(crate) struct KernelChoice {
    pub level: Level,
    pub kept: bool,
}

/// Variants that kernel `op` uses in `step`.
pub(crate) fn of_op(
    plan: &Plan,
    op: usize,
    step: &Step,
    choice: KernelChoice,
) -> Vec<KernelVariant> {
    let level = choice.level;
    let variant = |kernel: &str, choices: String| KernelVariant {
        kernel: kernel.to_string(),
        choices: format!("{level}{choices}"),
    };
    let rows = if plan.is_head(op) { step.logits.len() } else { step.rows.len() };
    let attends = |spec: &AttentionSpec| {
        let ty = plan.graph.kv_groups[spec.kv.group].ty;
        let blocks = block_attention(&plan.options, level, spec.head_dim);
        if blocks.is_some() && step.rows.len() >= BLOCK_ATTENTION_ROWS {
            return variant("attention", format!(", {ty} keys and values, many rows in bf16"));
        }
        let several = step.rows.len() > step.runs().count();
        let rows = if several { "several rows of a sequence" } else { "one row of a sequence" };
        variant("attention", format!(", {ty} keys and values, {rows}"))
    };
    let stores = |ty: KvType| variant("kv_write", format!(", {ty}"));
    let kv_type = |group: usize| plan.graph.kv_groups[group].ty;
    match &plan.ops[op].kernel {
        Kernel::Project(project) => {
            let products = of_product(plan, project, rows, plan.is_head(op), choice);
            products.into_iter().map(|choices| variant("product", choices)).collect()
        }
        Kernel::Attend(Attend { spec, .. }) => {
            let ty = kv_type(spec.kv.group);
            vec![stores(ty), attends(spec)]
        }
        Kernel::Single(node) => {
            let node = &plan.graph.nodes[*node];
            vec![match node.op {
                Op::KvWrite { kv } => stores(kv_type(kv.group)),
                Op::Attention(spec) => attends(&spec),
                Op::Embed { table, .. } => {
                    variant("embed", format!(", {}", plan.graph.weights[table.0].ty))
                }
                _ => variant(node.op.name(), String::new()),
            }]
        }
    }
}

/// Types and runs of rows of a product.
fn of_product(
    plan: &Plan,
    project: &Project,
    rows: usize,
    head: bool,
    KernelChoice { level, kept }: KernelChoice,
) -> Vec<String> {
    let width = plan.graph.tensor(project.input).width;
    let mut found = BTreeSet::new();
    for part in &project.parts {
        let ty = plan.graph.weights[part.weight.0].ty;
        let fast = plan.options.numeric == Numeric::Fast && width.is_multiple_of(BLOCK);
        let integer = fast && ty.is_quantized();
        // The integers of a head of few rows are refined: two rows for each.
        let refined = integer && head && rows <= refined_rows(&plan.options);
        let form = match (integer, refined) {
            (true, true) => "two int8",
            (true, false) => "int8",
            (false, _) if rows <= direct_rows(ty) => "f32, in registers",
            (false, _) => "f32",
        };
        let mut left = if refined { 2 * rows } else { rows };
        let rotates = integer && (!head || kept) && rotation(&plan.options, level, width).is_some();
        if rotates && rows >= rotated_rows(level, kept) {
            // The last rows of a job are fewer than eight, too.
            let kept = if kept { " that is kept" } else { "" };
            found.insert(format!(", {ty} with rotated int8{kept}, many rows"));
            continue;
        }
        let unit = level.unit_kernels().and_then(|kernels| (kernels.product)(ty));
        if unit.is_some() && integer && left >= UNIT_ROWS {
            found.insert(format!(", {ty} with {form}, many rows on a matrix unit"));
            continue;
        }
        for run in RUNS {
            if left >= run {
                found.insert(format!(", {ty} with {form}, {run} rows at once"));
                left %= run;
            }
        }
    }
    found.into_iter().collect()
}

/// Variants that any step of device `id`'s part of `plan` uses.
pub(crate) fn of_plan(plan: &Plan, id: DeviceId, choice: KernelChoice) -> Vec<KernelVariant> {
    // All that depends on the number of rows does so up to eight at once, or where a matrix unit or the
    // rotated form begins.
    let counts = (1..=UNIT_ROWS).chain([ROTATED_ROWS]);
    let mut found = BTreeSet::new();
    for rows in counts.filter(|rows| *rows <= plan.options.max_rows).map(|rows| rows as u32) {
        let (mut prompt, mut lanes) = (Step::default(), Step::default());
        (0..rows).for_each(|row| {
            let wanted = (row as usize) < plan.options.max_logit_rows;
            prompt.push(0, 0, row, wanted);
            lanes.push(0, row, 0, wanted);
        });
        let several = rows as usize <= plan.options.sequences;
        for step in [Some(prompt), several.then_some(lanes)].into_iter().flatten() {
            let mine = (0..plan.ops.len()).filter(|&op| plan.runs_on(op, id));
            found.extend(mine.flat_map(|op| of_op(plan, op, &step, choice)));
        }
    }
    found.into_iter().collect()
}
