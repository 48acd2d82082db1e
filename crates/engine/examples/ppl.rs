//! ppl MODEL FILE
use pianola_engine::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&args[2]).unwrap();
    for numeric in [pianola_plan::Numeric::Fast, pianola_plan::Numeric::Exact] {
        let options = LoadOptions {
            numeric: Some(numeric),
            max_logit_rows: 256,
            context: Some(512),
            ..LoadOptions::default()
        };
        let mut engine = Engine::load(args[1].as_ref(), options, &mut |_, _| ()).unwrap();
        let start = std::time::Instant::now();
        println!(
            "{numeric} {:?} {:?}",
            perplexity(&mut engine, &text, 512, &mut |_, _, _| ()).unwrap(),
            start.elapsed()
        );
    }
    let load = |numeric| {
        Engine::load(
            args[1].as_ref(),
            LoadOptions {
                numeric: Some(numeric),
                max_logit_rows: 256,
                context: Some(512),
                ..LoadOptions::default()
            },
            &mut |_, _| (),
        )
        .unwrap()
    };
    let mut a = load(pianola_plan::Numeric::Exact);
    let mut b = load(pianola_plan::Numeric::Fast);
    println!("{:?}", compare(&mut a, &mut b, &text, 512, &mut |_, _| ()).unwrap());
}
