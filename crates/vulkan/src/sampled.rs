//! Several tokens in one submission: each play chooses its token and writes the next play's row.

use crate::device::VulkanRecording;
use crate::memory::{Memory, Purpose, Region};
use crate::sample::{
    GpuSampling, MOST_PLAYS, Outcome, SCRATCH_BYTES, SampleRegions, SamplingState, sample_program,
};
use crate::step::write_step;
use ash::vk;
use pianola_plan::{DeviceError, PAGE_TOKENS, Row, Step};
use std::time::Instant;

/// What sampling on the device needs, made at its first use.
pub(crate) struct Sampler {
    state_start: *mut u8,
    outcome_start: *const u8,
    /// Chooses a token; copies the outcome to the host.
    choose: vk::CommandBuffer,
    collect: vk::CommandBuffer,
    step: Step,
    /// Command buffers of one submission, kept so that none is allocated again.
    list: Vec<vk::CommandBufferSubmitInfo<'static>>,
    outcome: Outcome,
}

impl VulkanRecording {
    /// Most tokens of one submission.
    pub const MOST_TOKENS: usize = MOST_PLAYS;

    /// Whether tokens can be chosen on the device now: not while kernels are timed one by one, or
    /// plays are part of an experiment.
    pub fn samples(&self) -> bool {
        self.profiler.is_none() && self.ablation.is_none()
    }

    /// Plays `row`, chooses the token that follows, plays that, and so on, in one submission: as
    /// many tokens as there are `uniforms`, or fewer if one of them is a stop token. The pages of
    /// all their positions must be mapped. `history` is what penalties look at, the last token
    /// being the row's.
    pub fn play_sampled(
        &mut self,
        row: Row,
        sampling: &GpuSampling,
        history: &[u32],
        uniforms: &[f32],
    ) -> Result<&[u32], DeviceError> {
        self.check_sampled(row, sampling, uniforms.len())?;
        let start = Instant::now();
        self.idle()?;
        self.prepare(0, 1, 1)?;
        let mut sampler = match self.sampler.take() {
            Some(sampler) => sampler,
            None => self.make_sampler()?,
        };
        sampler.step.clear();
        sampler.step.push(row.token, row.sequence, row.position, true);
        let checked = self.check(&sampler.step);
        if checked.is_ok() {
            let state = SamplingState::new(sampling, history, uniforms);
            // SAFETY: both are mapped, and nothing plays.
            unsafe {
                write_step(self.takes[0].start, &sampler.step);
                let bytes = bytemuck::bytes_of(&state);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), sampler.state_start, bytes.len());
            }
        }
        let played = checked.and_then(|()| self.submit_sampled(&mut sampler, uniforms.len()));
        let submitted = start.elapsed().as_secs_f64();
        let finished = played.and_then(|()| self.finish(0));
        if finished.is_ok() {
            // SAFETY: mapped and written by the copy that was waited for; any bits are an outcome.
            sampler.outcome = unsafe { sampler.outcome_start.cast::<Outcome>().read_unaligned() };
        }
        let whole = start.elapsed().as_secs_f64();
        self.statistics.plays += uniforms.len() as u64;
        self.statistics.seconds += whole;
        self.statistics.busy_seconds += whole - submitted;
        let kept = self.sampler.insert(sampler);
        finished?;
        match kept.outcome.broken {
            0 => Ok(kept.outcome.chosen()),
            _ => Err(DeviceError::NotANumber),
        }
    }

    /// Whether so many plays from `row` on stay within the context and its pages.
    fn check_sampled(
        &self,
        row: Row,
        sampling: &GpuSampling,
        plays: usize,
    ) -> Result<(), DeviceError> {
        if let Some(reason) = sampling.unsupported() {
            return Err(DeviceError::Unsupported(reason.to_string()));
        }
        let last = row.position as usize + plays.saturating_sub(1);
        if !(1..=MOST_PLAYS).contains(&plays) || last >= self.plan.options.context {
            return Err(DeviceError::BadStep(format!("{plays} tokens from {}", row.position)));
        }
        let unmapped = self.plan.graph.kv_groups.iter().enumerate().find_map(|(index, group)| {
            let mut seen = group.first_visible(last) / PAGE_TOKENS..=last / PAGE_TOKENS;
            seen.find(|&page| !self.is_mapped(index, row.sequence as usize, page))
        });
        match unmapped {
            None => Ok(()),
            Some(page) => Err(DeviceError::BadStep(format!("the sequence has no page {page}"))),
        }
    }

    fn submit_sampled(&mut self, sampler: &mut Sampler, plays: usize) -> Result<(), DeviceError> {
        let (body, head, dispatches) = self.single_commands();
        sampler.list.clear();
        let info = |commands| vk::CommandBufferSubmitInfo::default().command_buffer(commands);
        for _ in 0..plays {
            sampler.list.extend([info(body), info(head), info(sampler.choose)]);
        }
        sampler.list.push(info(sampler.collect));
        let submit = [vk::SubmitInfo2::default().command_buffer_infos(&sampler.list)];
        self.signal(0, &submit)?;
        self.statistics.dispatches += (dispatches + 2) * plays as u64;
        Ok(())
    }

    fn make_sampler(&mut self) -> Result<Sampler, DeviceError> {
        let memory: &mut Memory = &mut self.memory;
        let state = memory.allocate(Purpose::Step, SamplingState::BYTES, "sampling")?;
        let scratch = memory.allocate(Purpose::Step, SCRATCH_BYTES, "sampling")?;
        let size = size_of::<Outcome>() as u64;
        let outcome = memory.allocate(Purpose::Readback, size, "sampling")?;
        let mapped = |region: Region| memory.mapped(region).expect("visible to the host");
        let (state_start, outcome_start) = (mapped(state), mapped(outcome));
        let regions = SampleRegions {
            logits: self.logits_of(1).0,
            state: state.slice(0, SamplingState::BYTES),
            scratch,
            step: self.takes[0].step,
        };
        let op = self.plan.ops.len() - 1;
        let program = sample_program(regions, self.plan.graph.vocabulary as u32, op);
        let choose = self.record(0, &program)?;
        let collect = self.recorder.allocate()?;
        let from = SamplingState::outcome(state);
        self.recorder.write(collect, |recorder| recorder.copy(collect, from, outcome))?;
        Ok(Sampler {
            state_start,
            outcome_start,
            choose,
            collect,
            step: Step::default(),
            list: Vec::with_capacity(3 * MOST_PLAYS + 1),
            outcome: bytemuck::Zeroable::zeroed(),
        })
    }
}
