//! Plays that sample tokens on the device, for several sequences at once and several times behind
//! one another, against the same played alone and against the host's sampler.

use crate::support::case::{Case, plan, usual};
use crate::support::gpu;
use pianola_engine::sampler::{Sampler, Sampling, uniform};
use pianola_formats::{Tensor, TensorInfo, TensorSource, TensorType};
use pianola_plan::{
    DeviceError, DeviceId, DeviceSampler, Numeric, PAGE_TOKENS, Placement, Plan, PlanOptions,
    Recording, SampleRow, Step,
};
use pianola_vulkan::{VulkanDevice, VulkanRecording};
use std::sync::Arc;

/// Sequences of a recording, each with pages for [`CONTEXT`] positions.
const SEQUENCES: usize = 8;
const CONTEXT: usize = 128;

/// Untied, so that an embedding is no part of the head.
fn small() -> Case {
    Case { family: "llama", vocabulary: 300, numeric: Numeric::Exact, ..usual(TensorType::F32) }
}

/// A recording of a small model, with weights that `change` had its way with.
fn record(change: &dyn Fn(&mut Tensor<'_>)) -> VulkanRecording {
    let (graph, weights) = plan(&small(), VulkanDevice::spec_named("vulkan"));
    let options = PlanOptions { context: CONTEXT, sequences: SEQUENCES, ..graph.options };
    let placement = Placement::single(&graph.graph, VulkanDevice::spec_named("vulkan"));
    let plan = Plan::new(graph.graph, options, placement).unwrap();
    let tensors = weights.tensor_infos().into_iter().map(|info| {
        let mut tensor = weights.tensor(&info.name).unwrap();
        change(&mut tensor);
        tensor
    });
    let source = Changed(tensors.collect());
    let options = gpu::options(&gpu::open());
    let mut recording =
        VulkanRecording::new(Arc::new(plan), DeviceId(0), &source, options, &mut |_, _| ())
            .unwrap();
    for group in 0..recording.plan().graph.kv_groups.len() {
        for page in 0..SEQUENCES * CONTEXT / PAGE_TOKENS {
            recording.map_page(group, page % SEQUENCES, page / SEQUENCES, page as u32);
        }
    }
    recording
}

struct Changed<'a>(Vec<Tensor<'a>>);

impl TensorSource for Changed<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.0.iter().find(|tensor| tensor.name == name).cloned()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.tensor_infos().into_iter().find(|info| info.name == name)
    }

    fn tensor_infos(&self) -> Vec<TensorInfo> {
        let info = |tensor: &Tensor<'_>| TensorInfo {
            name: tensor.name.clone(),
            ty: tensor.ty,
            shape: tensor.shape.clone(),
            bytes: tensor.bytes.len() as u64,
        };
        self.0.iter().map(info).collect()
    }
}

/// A sequence that tokens are sampled for.
#[derive(Clone)]
struct Lane {
    sequence: u32,
    tokens: Vec<u32>,
    prompt: usize,
    sampling: Sampling,
    stops: Vec<u32>,
}

impl Lane {
    /// One of lanes that differ in everything; prompts end before, at and behind the end of a page.
    fn new(index: usize) -> Lane {
        let prompt = 7 + 14 * index;
        let tokens = (0..prompt).map(|n| ((n * n * 3 + 41 * index) % 300) as u32).collect();
        let random =
            Sampling { top_k: 20, temperature: 2.0, seed: index as u64, ..Sampling::default() };
        let sampling = match index % 4 {
            0 => Sampling::greedy(),
            1 => random,
            2 => Sampling { top_p: 0.9, repetition_penalty: 1.4, penalty_window: 256, ..random },
            _ => Sampling { top_k: 0, top_p: 0.95, presence_penalty: 0.4, ..random },
        };
        Lane { sequence: index as u32, tokens, prompt, sampling, stops: Vec::new() }
    }

    fn answer(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    fn stopped(&self) -> bool {
        self.answer().last().is_some_and(|token| self.stops.contains(token))
    }

    fn uniforms(&self, plays: usize) -> Vec<f32> {
        let position = |play: usize| (self.tokens.len() + play) as u64;
        (0..plays).map(|play| uniform(self.sampling.seed, position(play)) as f32).collect()
    }

    fn row<'a>(&'a self, uniforms: &'a [f32]) -> SampleRow<'a> {
        let Lane { sampling, stops, tokens, .. } = self;
        SampleRow { stop_tokens: stops, history: tokens, ..SampleRow::new(sampling, uniforms) }
    }
}

/// Plays what comes before the last token of each prompt.
fn play_prompts(recording: &mut VulkanRecording, lanes: &[Lane]) {
    for lane in lanes {
        for (chunk, tokens) in lane.tokens[..lane.prompt - 1].chunks(64).enumerate() {
            let mut step = Step::default();
            for (index, &token) in tokens.iter().enumerate() {
                step.push(token, lane.sequence, (64 * chunk + index) as u32, false);
            }
            recording.play(&step).unwrap();
        }
    }
}

/// Lets all lanes go on together for `count` tokens or to their ends, `plays` tokens in a call.
fn go_on(recording: &mut VulkanRecording, lanes: &mut [Lane], count: usize, plays: usize) {
    let mut left = count;
    while left > 0 {
        let now = plays.min(left);
        let mut going: Vec<&mut Lane> = lanes.iter_mut().filter(|lane| !lane.stopped()).collect();
        if going.is_empty() {
            return;
        }
        let mut step = Step::default();
        for lane in &going {
            let last = lane.tokens.len() - 1;
            step.push(lane.tokens[last], lane.sequence, last as u32, true);
        }
        let uniforms: Vec<Vec<f32>> = going.iter().map(|lane| lane.uniforms(now)).collect();
        let lanes = going.iter().zip(&uniforms);
        let samples: Vec<Option<SampleRow<'_>>> =
            lanes.map(|(lane, uniforms)| Some(lane.row(uniforms))).collect();
        recording.play_sampling(&step, &samples).unwrap();
        for (index, lane) in going.iter_mut().enumerate() {
            lane.tokens.extend_from_slice(recording.sampled(0, index).unwrap());
        }
        left -= now;
    }
}

#[test]
fn lanes_together_are_lanes_alone_however_many_plays_a_call_has() {
    const COUNT: usize = 12;
    let mut recording = record(&|_| ());
    let mut lanes: Vec<Lane> = (0..7).map(Lane::new).collect();
    play_prompts(&mut recording, &lanes);
    // Pages hold what was played, and a position is played anew each time.
    let mut run = |lanes: &[Lane], together: usize, plays: usize| -> Vec<Vec<u32>> {
        let mut lanes = lanes.to_vec();
        lanes.chunks_mut(together).for_each(|some| go_on(&mut recording, some, COUNT, plays));
        lanes.iter().map(|lane| lane.answer().to_vec()).collect()
    };
    let mut expected = run(&lanes, 1, 1);
    assert!(expected.iter().all(|answer| answer.len() == COUNT));
    for stops in [false, true] {
        if stops {
            // Some end early: at once, in the middle of a call, at its end.
            for (lane, at) in [(1, 0), (2, 6), (0, 4), (5, 2)] {
                let stop = expected[lane][at];
                lanes[lane].stops = vec![299, stop];
                let first = expected[lane].iter().position(|&token| token == stop).unwrap();
                expected[lane].truncate(first + 1);
            }
        }
        for (together, plays) in [(1, 5), (2, 1), (7, 1), (7, 5), (7, 12)] {
            let found = run(&lanes, together, plays);
            assert_eq!(found, expected, "{together} lanes, {plays} plays, stops: {stops}");
        }
    }
}

/// A prompt whose body takes several submissions, sampling behind it.
#[test]
fn bodies_that_are_cut_sample_the_same() {
    let sampled = |rate: Option<f64>| {
        let mut recording = record(&|_| ());
        if let Some(rate) = rate {
            recording.assume_rate(rate);
        }
        let mut lanes: Vec<Lane> = (0..3).map(Lane::new).collect();
        play_prompts(&mut recording, &lanes);
        let before = recording.statistics().submits;
        go_on(&mut recording, &mut lanes, 8, 4);
        let submits = recording.statistics().submits - before;
        (lanes.iter().map(|lane| lane.answer().to_vec()).collect::<Vec<_>>(), submits)
    };
    let (whole, submits) = sampled(None);
    assert_eq!(submits, 2);
    let (cut, submits) = sampled(Some(1.0));
    assert!(submits > 8, "{submits} submissions");
    assert_eq!(cut, whole);
}

/// As a speculated continuation is verified: several rows of a sequence, each with a history of its
/// own, beside a row of another and the chunk of a third one's prompt that wants nothing yet.
#[test]
fn rows_of_one_sequence_sample_as_the_host_does() {
    let mut recording = record(&|_| ());
    let lanes: Vec<Lane> = (0..6).map(Lane::new).collect();
    play_prompts(&mut recording, &lanes);
    let wanted = [(3, 0), (3, 1), (3, 2), (3, 3), (5, 0), (2, 0), (2, 1)];
    let mut step = Step::default();
    let mut tokens = lanes.iter().map(|lane| lane.tokens.clone()).collect::<Vec<_>>();
    for (lane, more) in [(3, 3), (5, 0), (2, 1)] {
        tokens[lane].extend((0..more).map(|n| n * 50 + 3));
        let fed = tokens[lane].iter().enumerate().skip(lanes[lane].prompt - 1);
        fed.for_each(|(position, &token)| step.push(token, lane as u32, position as u32, true));
    }
    for position in 0..20 {
        step.push(position * 9, 7, position, false);
    }
    assert_eq!(step.logits.len(), wanted.len());

    let history = |(lane, row): (usize, usize)| &tokens[lane][..lanes[lane].prompt + row];
    let sampling = |lane: usize| Sampling {
        frequency_penalty: 0.8,
        penalty_window: 200,
        ..lanes[lane].sampling.clone()
    };
    recording.play(&step).unwrap();
    let mut expected = Vec::new();
    for (index, &row) in wanted.iter().enumerate() {
        let mut host = Sampler::new(sampling(row.0), 300).unwrap();
        history(row).iter().for_each(|&token| host.accept(token));
        expected.push(host.sample(recording.logits(0, index), history(row).len() as u64));
    }
    let samplings: Vec<Sampling> = wanted.iter().map(|&(lane, _)| sampling(lane)).collect();
    let uniforms: Vec<[f32; 1]> = wanted
        .iter()
        .zip(&samplings)
        .map(|(&row, sampling)| [uniform(sampling.seed, history(row).len() as u64) as f32])
        .collect();
    let samples: Vec<Option<SampleRow<'_>>> = (0..wanted.len())
        .map(|index| SampleRow {
            history: history(wanted[index]),
            ..SampleRow::new(&samplings[index], &uniforms[index])
        })
        .map(Some)
        .collect();
    recording.play_sampling(&step, &samples).unwrap();
    let found: Vec<u32> =
        (0..wanted.len()).map(|index| recording.sampled(0, index).unwrap()[0]).collect();
    assert_eq!(found, expected);
    assert_eq!(recording.sampled(0, wanted.len()), None);
}

#[test]
fn a_lane_that_is_not_a_number_is_told_from_the_others() {
    const BROKEN: u32 = 77;
    let embedding = |tensor: &mut Tensor<'_>| {
        if tensor.name == "token_embd.weight" {
            let columns = tensor.shape[1];
            let start = 4 * columns * BROKEN as usize;
            let row = &mut tensor.bytes.to_mut()[start..start + 4 * columns];
            row.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&f32::NAN.to_le_bytes()));
        }
    };
    let play = |recording: &mut VulkanRecording| {
        let mut step = Step::default();
        for (sequence, token) in [5, BROKEN, 6, 9].into_iter().enumerate() {
            step.push(token, sequence as u32, 0, true);
        }
        let sampling = Sampling::greedy();
        let row = SampleRow::new(&sampling, &[0.0; 3]);
        recording.play_sampling(&step, &[Some(row); 4]).unwrap();
        (0..4).map(|lane| recording.sampled(0, lane).map(<[u32]>::to_vec)).collect::<Vec<_>>()
    };
    let sound = play(&mut record(&|_| ()));
    assert!(sound.iter().all(|lane| lane.as_ref().is_some_and(|tokens| tokens.len() == 3)));
    assert!(!sound.iter().flatten().flatten().any(|&token| token == BROKEN));
    let found = play(&mut record(&embedding));
    assert_eq!(found[1], None);
    for lane in [0, 2, 3] {
        assert_eq!(found[lane], sound[lane], "lane {lane}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut recording = record(&|_| ());
    let greedy = Sampling::greedy();
    let row = |uniforms| Some(SampleRow::new(&greedy, uniforms));
    let step = |rows: &[(u32, u32, bool)]| {
        let mut step = Step::default();
        rows.iter().for_each(|&(sequence, position, logits)| {
            step.push(1, sequence, position, logits);
        });
        step
    };
    let (one, two, many) = (row(&[0.0]), row(&[0.0; 2]), row(&[0.0; 65]));
    let alone = step(&[(0, 0, true)]);
    let both = step(&[(0, 0, true), (1, 0, true)]);
    recording.play_sampling(&both, &[two, two]).unwrap();
    assert!(recording.sampled(0, 1).is_some());
    let bad: [(&Step, &[Option<SampleRow<'_>>]); 9] = [
        (&both, &[one]),
        (&alone, &[one, one]),
        (&step(&[(0, 0, false)]), &[]),
        (&alone, &[row(&[])]),
        (&alone, &[many]),
        (&both, &[one, two]),
        // Several plays, and a row that is no lane's only one.
        (&step(&[(0, 0, true), (0, 1, true)]), &[two, two]),
        (&step(&[(0, 0, true), (1, 0, false)]), &[two]),
        (&step(&[(0, CONTEXT as u32 - 1, true)]), &[two]),
    ];
    for (index, (step, samples)) in bad.into_iter().enumerate() {
        let error = recording.play_sampling(step, samples).unwrap_err();
        assert!(matches!(error, DeviceError::BadStep(_)), "{index}: {error}");
        assert_eq!(recording.sampled(0, 0), None, "{index}");
    }
    // The second of two plays needs another page.
    recording.unmap_page(0, 3, 1);
    let edge = step(&[(3, 63, true)]);
    recording.play_sampling(&edge, &[one]).unwrap();
    let error = recording.play_sampling(&edge, &[two]).unwrap_err();
    assert!(error.to_string().contains("no page 1"), "{error}");

    let wide = Sampling { logit_bias: vec![(0, 1.0); 1 << 20], ..Sampling::greedy() };
    let wide = SampleRow::new(&wide, &[0.0]);
    assert!(recording.sampling_unsupported(&one.unwrap()).is_none());
    let reason = recording.sampling_unsupported(&wide).unwrap();
    let error = recording.play_sampling(&alone, &[Some(wide)]).unwrap_err();
    assert_eq!(error.to_string(), reason);
    assert!(recording.start_profile());
    assert!(recording.sampling_unsupported(&one.unwrap()).is_some());
    assert!(recording.play_sampling(&alone, &[one]).is_err());
}
