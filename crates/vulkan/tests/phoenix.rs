use pianola_formats::TensorType;
use pianola_model::{RandomWeights, Shape, shape};
use pianola_plan::{BUCKETS, DeviceKind, Numeric, Plan, PlanOptions};
use pianola_vulkan::{Gpu, Selection, compile_plan};

fn plan(shape: Shape, type_of: impl Fn(&str) -> TensorType) -> Plan {
    let config = shape.config();
    let weights = RandomWeights::new(&config, 7, |name, _, columns| {
        let ty = type_of(name);
        if columns % ty.block_len() == 0 { ty } else { TensorType::Q8_0 }
    });
    let graph = pianola_model::graph(&config, &weights, None).unwrap();
    let options = PlanOptions {
        device: DeviceKind::Vulkan,
        numeric: Numeric::Fast,
        max_rows: BUCKETS[BUCKETS.len() - 1],
        max_logit_rows: 256,
        context: config.context,
        sequences: 1,
    };
    Plan::new(graph, options).unwrap()
}

#[test]
fn probe() {
    let gpu = Gpu::open(&Selection::Name("RADV PHOENIX".into())).unwrap();
    println!("{:?}", gpu.description());
    let t = std::time::Instant::now();
    let p = plan(*shape("gemma3:1b").unwrap(), |_| TensorType::Q8_0);
    println!("plan {:?}", t.elapsed());
    let list = compile_plan(&gpu, &p).unwrap();
    println!("{} compiled {:?}", list.len(), t.elapsed());
    println!("{:?}", list[0].statistics);
    for k in &list {
        println!("{} {:?} b{:?} h{:?} vgpr {:?} sgpr {:?} spill {:?} {:?} lds {:?} scratch {:?} occ {:?} dot4 {} wmma {}", k.kernel, k.constants, k.bodies, k.heads, k.statistic("VGPRs").unwrap(), k.statistic("SGPRs").unwrap(), k.statistic("Spilled VGPRs").unwrap(), k.statistic("Spilled SGPRs").unwrap(), k.statistic("LDS size").unwrap(), k.statistic("Scratch size").unwrap(), k.statistic("Subgroups per SIMD").unwrap(), k.assembly.matches("v_dot4_i32").count(), k.assembly.matches("v_wmma_").count());
    }
}
#[test]
fn teardown() {
    let gpu = Gpu::open(&Selection::Name("RADV PHOENIX".into())).unwrap();
    eprintln!("opened");
    drop(gpu);
    eprintln!("dropped");
}
