//! `bench`: how fast, beside how fast it could be.

mod ablate;
mod report;
mod scenario;
mod subject;

use clap::Args;
use pianola_engine::{BenchOptions, ChatScenario, DEFAULT_LANES, Engine, LoadOptions};
use serde_json::{Value, json};
use std::path::PathBuf;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::options::{
    ComputeOptions, NamedModel, SpeculationOptions, chosen, context, natural, positive,
};
use crate::profile;
use crate::shapes::ShapeOptions;
use ablate::{ablate, print_ablations};
use report::{object, print};
use scenario::chat_scenario;
use subject::{describe_check, of_file, of_shape};

/// Heading in the long help.
const SCENARIO: &str = "Scenario";

/// Measure tokens per second, beside the ceiling of this machine for the same work.
///
/// pp reads a prompt, tg generates tokens one by one. With -d the context holds that many tokens
/// before each test (`tg64 @ d512`). With -b several requests run at once: pp ends when all of them
/// generate, and pp+tg counts all tokens from first to last. A test warms up until two rounds agree;
/// then come the repetitions that count.
///
/// The ceiling follows from the plan's bytes and operations and from this machine's bandwidth and
/// arithmetic, which are measured first. With --shape the weights are random, and the devices are
/// checked first as by `pianola check --quick`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola bench -m smollm2:135m
  pianola bench -m gemma3:270m -p 0 -n 64 --threads 1 --json
  pianola bench -m smollm2:135m -p 128 -n 64 -b 1,4,8,16,32
  pianola bench -m smollm2:135m -p 0 -n 64 -d 0,512,4096
  pianola bench -m smollm2:135m -p 200 -n 50 --scenario chat --rate 2
  pianola bench --shape gemma3:27b --quant q4_0 -p 0 -n 8 --repeat 1")]
pub struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    /// Tokens of the prompt; 0: no test of prompts
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    #[arg(value_parser = natural, allow_negative_numbers = true)]
    prompt: usize,
    /// Tokens to generate; 0: no test of generation
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    #[arg(value_parser = natural, allow_negative_numbers = true)]
    generate: usize,
    /// Requests that run at once: one number or several
    ///
    /// Each request has a prompt of -p tokens and generates -n tokens.
    #[arg(short = 'b', long = "lanes", value_name = "N,…", value_delimiter = ',')]
    #[arg(value_parser = positive)]
    lanes: Vec<usize>,
    /// Tokens of context before each test: one number or several
    #[arg(
        short,
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "0",
        value_parser = natural,
        allow_negative_numbers = true,
        conflicts_with = "scenario"
    )]
    depth: Vec<usize>,
    /// With -b, use prompts of half to twice the length of -p
    #[arg(long, requires = "lanes", hide_short_help = true)]
    mixed: bool,
    /// Send requests over time; measure the time to the first token and between tokens
    #[arg(long, value_name = "NAME", value_parser = ["chat"])]
    #[arg(conflicts_with_all = ["mixed", "ablate", "profile"])]
    #[arg(hide_short_help = true, help_heading = SCENARIO)]
    scenario: Option<String>,
    /// Conversations that begin per second
    #[arg(long, value_name = "R", default_value_t = 1.0, requires = "scenario")]
    #[arg(value_parser = rate, hide_short_help = true, help_heading = SCENARIO)]
    rate: f64,
    /// Conversations in all
    #[arg(long, value_name = "N", default_value_t = 32, requires = "scenario")]
    #[arg(value_parser = positive, hide_short_help = true, help_heading = SCENARIO)]
    conversations: usize,
    /// Repetitions of each test, after warming up
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = positive)]
    repeat: usize,
    /// Check the devices first, as `pianola check --quick` does
    #[arg(long, hide_short_help = true)]
    check: bool,
    /// With --shape, do not check the devices first
    #[arg(long, requires = "shape", conflicts_with_all = ["check", "model", "named"])]
    #[arg(hide_short_help = true)]
    no_check: bool,
    /// Then measure generation without recording once (Vulkan only)
    ///
    /// First the commands are recorded anew for every token. Then a buffer is also allocated for every
    /// kernel.
    #[arg(long, hide_short_help = true)]
    ablate: bool,
    /// Then time every kernel: print a table and write a Chrome trace to this file
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    profile: Option<PathBuf>,
    /// Tokens of context [default: as many as the tests need]
    #[arg(short, long, alias = "ctx-size", value_name = "N", value_parser = context)]
    context: Option<usize>,
    /// Print a JSON array with an object per test
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    shape: ShapeOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

impl Arguments {
    fn bench(&self) -> BenchOptions {
        BenchOptions {
            prompt: self.prompt,
            generate: self.generate,
            repeat: self.repeat,
            warm_up: BenchOptions::WARM_UP,
            lanes: self.lanes.clone(),
            mixed: self.mixed,
            depths: self.depth.clone(),
        }
    }

    fn scenario(&self) -> Option<ChatScenario> {
        self.scenario.as_ref().map(|_| ChatScenario {
            conversations: self.conversations,
            rate: self.rate,
            prompt: self.prompt.max(1),
            generate: self.generate.max(1),
            seed: 1,
        })
    }

    /// Tokens of context that the tests need.
    fn needed_context(&self) -> usize {
        self.scenario().as_ref().map_or(self.bench().context(), ChatScenario::context)
    }

    fn load_options(&self, console: Console) -> Result<LoadOptions, Failure> {
        let mut options = self.compute.load(console)?;
        options.context = match self.context {
            None => Some(self.needed_context()),
            given => chosen(given),
        };
        options.lanes = match (self.lanes.iter().max(), &self.scenario) {
            (Some(&lanes), _) => lanes,
            (None, Some(_)) => DEFAULT_LANES,
            (None, None) => 1,
        };
        Ok(options)
    }
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    if arguments.prompt.max(arguments.generate) == 0 {
        return Err(Failure::usage("there is nothing to measure; -p or -n must be above 0"));
    }
    let (bench, scenario) = (arguments.bench(), arguments.scenario());
    if scenario.is_some() && arguments.lanes.len() > 1 {
        return Err(Failure::usage("--scenario runs with one number of lanes; give -b one number"));
    }
    if arguments.compute.npu.emulate_npu {
        return Err(Failure::usage(
            "an emulated NPU has no speed to measure; leave out --emulate-npu",
        ));
    }
    let options = arguments.load_options(console)?;
    if arguments.ablate {
        ablate::check(&options, &bench)?;
    }
    let mut subject = match arguments.shape.shape {
        Some(shape) => of_shape(shape, arguments, options, console)?,
        None => of_file(arguments, options, console)?,
    };
    for check in subject.checks.iter().flatten() {
        console.notice(&describe_check(check));
    }
    let engine = &mut subject.engine;
    if let Some(scenario) = scenario {
        return chat_scenario(&mut subject, &scenario, arguments.json);
    }
    let mut line = console.status_line("{wide_msg}");
    line.show("warming up");
    let (rows, ceilings) =
        pianola_engine::bench(engine, &bench, &mut Engine::measure, &mut |test, speed| {
            console.detail(&format!("{test}: {speed:.2} tokens/s"));
            line.show(&format!("{test}, {speed:.1} tokens/s in the last round"));
        })?;
    drop(line);
    let ablations = match arguments.ablate {
        true => ablate(engine, &bench, &ceilings)?,
        false => Vec::new(),
    };
    if let Some(path) = &arguments.profile {
        const TOKENS: usize = 16;
        profile::start(engine, arguments.compute.overlap != "off", path)?;
        // Warm from what came before.
        let generate = bench.generate.min(TOKENS);
        let timed = BenchOptions { repeat: 1, warm_up: 1, generate, ..bench };
        pianola_engine::bench(engine, &timed, &mut |_| Some(ceilings.clone()), &mut |_, _| ())?;
        profile::finish(engine, path, console)?;
    }
    if arguments.json {
        let measured = rows.iter().map(|row| object(&subject, row, &ceilings));
        let ablated = ablations.iter().map(|(name, row)| {
            let mut value = object(&subject, row, &ceilings);
            value["ablation"] = json!(name);
            value
        });
        return console::print_json(&Value::Array(measured.chain(ablated).collect()));
    }
    print(&subject, &rows)?;
    if !ablations.is_empty() {
        print_ablations(&ablations)?;
    }
    for (device, ceilings) in subject.engine.plan().devices.iter().zip(&ceilings) {
        console.notice(&format!(
            "ceilings of {} measured here: {:.1} GB/s read, {:.0} GOP/s",
            device.name,
            ceilings.bytes_per_second / 1e9,
            ceilings.operations_per_second / 1e9,
        ));
    }
    Ok(())
}

/// A number above 0.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("it must be a number above 0".to_string()),
    }
}
