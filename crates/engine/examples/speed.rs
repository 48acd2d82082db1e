//! Quick look at speed: `speed MODEL PROMPT GENERATE REPEAT`.
use pianola_engine::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let options = LoadOptions::default();
    let start = std::time::Instant::now();
    let mut engine = Engine::load(args[1].as_ref(), options, &mut |_, _| ()).unwrap();
    eprintln!("load {:?} {:?}", start.elapsed(), engine.timing());
    let ceilings = pianola_cpu::measure(options.cpu, pianola_plan::Numeric::Fast).unwrap();
    eprintln!("{ceilings:?}");
    let options = BenchOptions {
        prompt: args[2].parse().unwrap(),
        generate: args[3].parse().unwrap(),
        repeat: args[4].parse().unwrap(),
    };
    for row in bench(&mut engine, options, ceilings, &mut |_, _| ()).unwrap() {
        println!(
            "{} {:.1} ± {:.1}  ceiling {:.1} fraction {:.2} busy {:.2} host {:.1}us",
            row.test,
            row.tokens_per_second,
            row.deviation,
            row.ceiling,
            row.fraction(),
            row.busy,
            row.host_microseconds
        );
    }
}
