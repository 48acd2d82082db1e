use super::*;
use crate::executor::tests::{ceilings, tandem_plan};

const ROWS: usize = 64;

/// A clock on which a segment takes a device's seconds for each row, give or take some noise.
struct World {
    plan: Arc<Plan>,
    seconds_per_row: [f64; 2],
    noise: u64,
}

impl World {
    /// A number between -1 and 1.
    fn random(&mut self) -> f64 {
        self.noise = self.noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.noise >> 33) as f64 / (1u64 << 30) as f64) - 1.0
    }

    /// Plays a step as chosen, and tells the balancer what its segments took.
    fn play(&mut self, balancer: &mut Balancer, choice: Choice, noise: f64) -> f64 {
        let plays = 1 + usize::from(choice.halves);
        let turns = self.plan.turns(choice.segmentation, plays);
        let mut times = Vec::new();
        for turn in &turns {
            let segment = &self.plan.segments[turn.segment];
            let each = self.seconds_per_row[segment.device.0] * segment.ops.len() as f64;
            let seconds = each * (ROWS / plays) as f64 * (1.0 + noise * self.random());
            times.push((*turn, seconds));
            balancer.record(turn.segment, (ROWS / plays, ROWS), seconds);
        }
        let seconds = |asked: Turn| times.iter().find(|(turn, _)| *turn == asked).unwrap().1;
        self.plan.finish_time(&turns, &seconds)
    }

    /// Plays some steps and returns the choices.
    fn run(&mut self, balancer: &mut Balancer, steps: usize, noise: f64) -> Vec<Choice> {
        let mut step = Step::default();
        (0..ROWS as u32).for_each(|at| step.push(0, 0, at, false));
        let usable = vec![true; self.plan.segmentations.len()];
        (0..steps)
            .map(|_| {
                let choice = balancer.choose(&step, &usable);
                self.play(balancer, choice, noise);
                choice
            })
            .collect()
    }
}

fn world() -> (World, Balancer) {
    let plan = Arc::new(tandem_plan());
    let balancer = Balancer::new(plan.clone(), ceilings(), true);
    (World { plan, seconds_per_row: [1e-3; 2], noise: 1 }, balancer)
}

fn changes(choices: &[Choice]) -> usize {
    choices.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn equal_devices_share_the_work_in_halves() {
    let (mut world, mut balancer) = world();
    let choices = world.run(&mut balancer, 50, 0.0);
    assert_eq!(choices[49], Choice { segmentation: 1, halves: true });
    // It takes about half as long as on one device.
    let both = world.play(&mut balancer, choices[49], 0.0);
    let alone = world.play(&mut balancer, Choice::PLACED, 0.0);
    assert!(both < 0.7 * alone, "{both} of {alone}");
}

#[test]
fn noise_does_not_make_it_flap() {
    let (mut world, mut balancer) = world();
    let choices = world.run(&mut balancer, 400, 0.15);
    assert!(changes(&choices[10..]) <= 4, "{} changes", changes(&choices[10..]));
}

#[test]
fn a_device_that_slows_down_is_left_and_tried_again() {
    let (mut world, mut balancer) = world();
    world.run(&mut balancer, 30, 0.02);
    world.seconds_per_row[1] *= 8.0;
    let slow = world.run(&mut balancer, 40, 0.02);
    assert_eq!(slow[39], Choice::PLACED, "left");
    let still = world.run(&mut balancer, 400, 0.02);
    let used = still.iter().filter(|choice| choice.segmentation == 1).count();
    assert!((1..40).contains(&used), "tried again {used} times");
    world.seconds_per_row[1] /= 8.0;
    let back = world.run(&mut balancer, 400, 0.02);
    assert_eq!(back[399].segmentation, 1, "and used again");
}

#[test]
fn a_segmentation_that_cannot_be_played_is_not_chosen() {
    let (mut world, mut balancer) = world();
    world.run(&mut balancer, 10, 0.0);
    let mut step = Step::default();
    (0..ROWS as u32).for_each(|at| step.push(0, 0, at, false));
    for _ in 0..20 {
        assert_eq!(balancer.choose(&step, &[true, false]).segmentation, 0);
    }
}
