//! The device's thread: takes commands, one after another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::command::{self, Outcome};
use crate::config::CHAIN_BYTES;
use crate::context::Status;
use crate::execute::Job;
use crate::fault::Effect;
use crate::info;
use crate::packet::CommandState;
use crate::state::{Hung, Shared};

/// Runs until the model is dropped.
pub(crate) fn run(shared: &Arc<Shared>) {
    loop {
        let job = {
            let mut state = shared.lock();
            loop {
                if state.stopping {
                    return;
                }
                give_up_hung(shared, &mut state);
                if let Some(job) = state.next_job() {
                    state.running = Some((job.fd, job.context));
                    break job;
                }
                let next = state.hung.iter().map(|hung| hung.until).min();
                let limit = next.map_or(Duration::from_secs(60), |until| {
                    until.saturating_duration_since(Instant::now())
                });
                state = shared.sleep(state, limit.max(Duration::from_micros(100)));
            }
        };
        take(shared, job);
        shared.lock().running = None;
        shared.wake();
    }
}

/// The kernel resets a context whose command hangs: that command times out, the others abort.
fn give_up_hung(shared: &Shared, state: &mut crate::state::State) {
    let now = Instant::now();
    while let Some(index) = state.hung.iter().position(|hung| hung.until <= now) {
        let job = state.hung.remove(index).job;
        let (fd, context) = (job.fd, job.context);
        job.end(CommandState::Timeout);
        state.abort_context(fd, context);
        shared.wake();
    }
}

fn take(shared: &Arc<Shared>, job: Job) {
    let config = &shared.config;
    let slow: Duration = job
        .effects
        .iter()
        .map(|effect| if let Effect::Slow(time) = effect { *time } else { Duration::ZERO })
        .sum();
    std::thread::sleep(config.dispatch_time + slow);
    let has = |effect| job.effects.contains(&effect);
    let (fd, context) = (job.fd, job.context);
    if has(Effect::Timeout) {
        let until = Instant::now() + config.hang_limit;
        shared.lock().hung.push(Hung { job, until });
    } else if has(Effect::Suspend) {
        shared.lock().suspend();
        job.end(CommandState::Abort);
    } else if has(Effect::Lose) {
        shared.lock().lose_context(fd, context);
        job.end(CommandState::Abort);
    } else if has(Effect::Abort) {
        job.end(CommandState::Abort);
    } else if has(Effect::Error) {
        fail(shared, job, 0, "a planned fault".to_owned());
    } else {
        compute(shared, job);
    }
}

fn compute(shared: &Arc<Shared>, job: Job) {
    let (status, slowness) = {
        let mut state = shared.lock();
        let slowness = info::slowness(state.power_mode);
        let client = state.client(job.fd).ok();
        let context = client.and_then(|client| client.contexts.get(&job.context));
        (context.map(|context| context.status), slowness)
    };
    match status {
        Some(Status::Ready) => {}
        Some(_) => {
            shared.lock().complain("EXEC_CMD on a context that was lost".to_owned());
            return job.drop_silently();
        }
        None => return job.end(CommandState::Abort),
    }
    let began = Instant::now();
    let outcome = command::run(shared, &job);
    let took = shared.config.dispatch_time + began.elapsed();
    std::thread::sleep(took.mul_f64(slowness - 1.0));
    match outcome {
        Outcome::Completed => job.end(CommandState::Completed),
        Outcome::Failed { index, reason } => fail(shared, job, index, reason),
        Outcome::Refused(error) => {
            shared.lock().complain(format!("the kernel refused a packet: {error}"));
            job.drop_silently();
        }
    }
}

/// The firmware reports an error; in a chain, with the index of the command.
fn fail(shared: &Shared, job: Job, index: u32, reason: String) {
    let mut state = shared.lock();
    if let Some(context) =
        state.client(job.fd).ok().and_then(|client| client.contexts.get_mut(&job.context))
    {
        context.errors += 1;
    }
    state.complain(format!("command {index} of its packet failed: {reason}"));
    drop(state);
    let packet = job.command.memory.read_host(0, job.command.size.min(CHAIN_BYTES));
    if command::is_chain(&packet) {
        // error_index, the third word of a chain's payload.
        job.command.memory.write_host(12, &index.to_le_bytes());
    }
    job.end(CommandState::Error);
}
