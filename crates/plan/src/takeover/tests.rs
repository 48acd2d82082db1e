use super::*;
use crate::builder::GraphBuilder;
use crate::error::DeviceError;
use crate::placement::{DeviceSpec, Placement};
use crate::weight::{WeightShape, WeightSpec};
use crate::{HeapShare, KernelVariant, Numeric, PlanOptions, Recording};
use pianola_formats::{TensorSource, TensorType};
use std::sync::Arc;

const COLUMNS: usize = 256;

/// A device that nothing is recorded on.
struct Helper {
    /// Bytes that it has.
    memory: u64,
    emulated: bool,
    exact: bool,
    always: bool,
}

impl Device for Helper {
    fn spec(&self) -> DeviceSpec {
        spec("helper")
    }
    fn description(&self) -> String {
        "helper".to_string()
    }
    fn memory(&self) -> Option<u64> {
        Some(self.memory)
    }
    fn allocations(&self, plan: &Plan, id: DeviceId) -> Result<Vec<Allocation>, DeviceError> {
        let (kind, what) = (AllocationKind::Weights, "weights".to_string());
        Ok(vec![Allocation { kind, what, bytes: plan.weight_bytes_on(id), layer: None }])
    }
    fn heaps(&self, allocations: &[Allocation]) -> Option<Vec<HeapShare>> {
        let taken: u64 = allocations.iter().map(|item| item.bytes).sum();
        (taken <= self.memory).then(Vec::new)
    }
    fn record(
        &self,
        _: &Arc<Plan>,
        _: DeviceId,
        _: &dyn TensorSource,
        _: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Recording>, DeviceError> {
        Err(DeviceError::Unsupported("it only plans".to_string()))
    }
    fn variants(&self, _: &Plan, _: DeviceId) -> Result<Vec<KernelVariant>, DeviceError> {
        Ok(Vec::new())
    }
    fn measure(&self, _: Numeric) -> Option<Ceilings> {
        None
    }
    fn takeover(&self) -> Option<Takeover> {
        let Helper { exact, always, .. } = *self;
        Some(Takeover { least_rows: 8, seconds_each: 0.0, exact, shares_memory: true, always })
    }
    fn is_emulated(&self) -> bool {
        self.emulated
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn spec(name: &str) -> DeviceSpec {
    DeviceSpec {
        name: name.to_string(),
        layout: "rows",
        fuses: true,
        rounds_rows: false,
        asynchronous: true,
        lacks: Vec::new(),
    }
}

/// Four layers of one product each: feed-forward, since nothing attends.
fn plan(options: impl Fn(&mut PlanOptions)) -> Plan {
    let mut builder = GraphBuilder::new("toy", 512, COLUMNS);
    let weight = |builder: &mut GraphBuilder, name: String| {
        let shape = WeightShape::Matrix { rows: COLUMNS, columns: COLUMNS };
        builder.weight(WeightSpec::whole(name, shape, TensorType::F32))
    };
    let table = weight(&mut builder, "table".to_string());
    let mut x = builder.embed(table, 1.0);
    for layer in 0..4 {
        builder.set_layer(Some(layer));
        let matrix = weight(&mut builder, format!("matrix.{layer}"));
        x = builder.matmul("product", x, matrix, None);
    }
    let graph = builder.finish(x);
    let mut asked = PlanOptions {
        numeric: Numeric::Fast,
        kv_type: None,
        max_rows: 512,
        max_logit_rows: 1,
        context: 512,
        sequences: 1,
        kv_bytes: None,
        fusion: true,
        reproducible: false,
    };
    options(&mut asked);
    let placement = Placement::single(&graph, spec("main"));
    Plan::new(graph, asked, placement).unwrap()
}

const MAIN: Ceilings = Ceilings { bytes_per_second: 1e11, operations_per_second: 1e11 };
const HELPER: Helper = Helper { memory: u64::MAX, emulated: false, exact: false, always: false };

fn terms(speed: Option<Ceilings>, shared: &[Allocation]) -> TakeoverTerms<'_> {
    TakeoverTerms { ceilings: &[MAIN], speed, shared, overlap: true }
}

/// The segmentations and remarks of a plan that a helper was offered.
fn offered(mut plan: Plan, helper: &Helper, speed: Option<Ceilings>) -> (usize, String) {
    plan.offer(helper, terms(speed, &[]));
    (plan.segmentations.len() - 1, plan.remarks.join("\n"))
}

#[test]
fn what_pays_is_offered() {
    let fast = Ceilings { operations_per_second: 1e12, ..MAIN };
    let (count, remarks) = offered(plan(|_| ()), &HELPER, Some(fast));
    // Feed-forward, and all products, which here are the same.
    assert_eq!(count, 2, "{remarks}");
    assert!(remarks.contains("a second time, 1.0 MB, converted at load"), "{remarks}");
    assert!(remarks.contains("fewer than 8 rows are not offered"), "{remarks}");
    assert!(remarks.contains("reads the same memory"), "{remarks}");
    assert!(remarks.contains("attention is not offered to helper: keys and values"), "{remarks}");
}

/// A helper that is as fast as the other device pays only where both work at once.
#[test]
fn devices_that_take_turns_gain_nothing() {
    let count = |overlap: bool| {
        let mut plan = plan(|_| ());
        plan.offer(&HELPER, TakeoverTerms { overlap, ..terms(Some(MAIN), &[]) });
        plan.segmentations.len() - 1
    };
    assert_eq!(count(false), 0);
    let unknown = TakeoverTerms { ceilings: &[Ceilings::UNKNOWN], ..terms(Some(MAIN), &[]) };
    let mut plan = plan(|_| ());
    plan.offer(&HELPER, unknown);
    let remarks = plan.remarks.join("\n");
    assert!(plan.segmentations.len() == 1 && remarks.contains("is not known"), "{remarks}");
}

#[test]
fn what_does_not_pay_is_declined_in_words() {
    let slow = Ceilings { operations_per_second: 1e9, ..MAIN };
    let (count, remarks) = offered(plan(|_| ()), &HELPER, Some(slow));
    assert!(count == 0 && remarks.contains("ffn are not offered to helper"), "{remarks}");
    assert!(remarks.contains("would take") && remarks.contains("instead of"), "{remarks}");
    // Unless somebody wants to try it.
    let always = Helper { always: true, ..HELPER };
    for speed in [Some(slow), None] {
        let (count, remarks) = offered(plan(|_| ()), &always, speed);
        assert!(count == 2 && remarks.contains("always use helper, as asked"), "{remarks}");
    }
}

#[test]
fn a_second_copy_has_to_fit_beside_the_first() {
    let fast = Ceilings { operations_per_second: 1e12, ..MAIN };
    let copy = 4 * 4 * (COLUMNS * COLUMNS) as u64;
    let small = Helper { memory: copy - 1, ..HELPER };
    let (count, remarks) = offered(plan(|_| ()), &small, Some(fast));
    assert!(count == 0 && remarks.contains("no memory for a second copy"), "{remarks}");
    let enough = Helper { memory: copy, ..HELPER };
    assert_eq!(offered(plan(|_| ()), &enough, Some(fast)).0, 2);
    let mut shared = plan(|_| ());
    let (kind, what) = (AllocationKind::Weights, "the others".to_string());
    let others = [Allocation { kind, what, bytes: 1, layer: None }];
    shared.offer(&enough, terms(Some(fast), &others));
    assert_eq!(shared.segmentations.len(), 1, "{:?}", shared.remarks);
}

#[test]
fn what_was_promised_is_kept() {
    let fast = Some(Ceilings { operations_per_second: 1e12, ..MAIN });
    let exact = || plan(|options| options.numeric = Numeric::Exact);
    let (count, remarks) = offered(exact(), &HELPER, fast);
    assert!(count == 0 && remarks.contains("not exact"), "{remarks}");
    assert_eq!(offered(exact(), &Helper { exact: true, ..HELPER }, fast).0, 2);
    let reproducible = plan(|options| options.reproducible = true);
    let (count, remarks) = offered(reproducible, &HELPER, fast);
    assert!(count == 0 && remarks.contains("the rows beside it"), "{remarks}");
    let (count, remarks) = offered(plan(|_| ()), &HELPER, None);
    assert!(count == 0 && remarks.contains("could not be measured"), "{remarks}");
    let emulated = Helper { emulated: true, ..HELPER };
    let (count, remarks) = offered(plan(|_| ()), &emulated, None);
    assert!(count == 2 && remarks.contains("emulated and has no speed"), "{remarks}");
}

#[test]
fn parts_are_found_and_placed() {
    let plan = plan(|_| ());
    let parts = plan.graph.parts();
    assert_eq!(parts[0], ModelPart::Embedding);
    assert!(parts[1..5].iter().all(|&part| part == ModelPart::Ffn), "{parts:?}");
    let mut placement = Placement::single(&plan.graph, spec("main"));
    placement.place_parts(&plan.graph, &[(ModelPart::Ffn, spec("helper"))]);
    let name = |placement: &Placement, node: usize| {
        placement.devices[placement.nodes[node].0].name.clone()
    };
    assert_eq!(name(&placement, 0), "main");
    (1..5).for_each(|node| assert_eq!(name(&placement, node), "helper"));
    // A device that is left without a node is forgotten.
    let all = ModelPart::ALL.map(|part| (part, spec("helper")));
    placement.place_parts(&plan.graph, &all);
    assert_eq!(placement.devices, [spec("helper")]);
    assert_eq!("ffn".parse(), Ok(ModelPart::Ffn));
}
