//! Whether two cuts of a product computed the same.

use crate::memory::Region;
use crate::pipeline::Shader;
use crate::program::Dispatch;
use crate::recording::VulkanRecording;
use crate::tuning::RowsKey;
use crate::upload::Uploader;
use pianola_plan::{DeviceError, Probe, Recording, RowSet, Step, TensorId};

/// Places of what a product of one row writes among its bindings: outputs and the residual stream,
/// then codes and metas that it hands to the next product.
fn places(shader: Shader) -> ([usize; 2], Option<[usize; 2]>) {
    match shader {
        Shader::ProjectSingle => ([11, 14], None),
        _ => ([11, 16], Some([17, 18])),
    }
}

/// What a product of one row left.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Outputs {
    /// Outputs, then the residual stream.
    values: Vec<f32>,
    /// Codes for the next product.
    codes: Vec<i8>,
    /// Steps of its blocks, and the sums of each half's codes.
    metas: Vec<(f32, [i16; 2])>,
}

/// Numbers that look random, from -1 to 1.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Plays the beginning of a play of one row, up to a product, as often as it is asked to.
pub(super) struct Player {
    step: Step,
    /// What other devices would have computed.
    received: Vec<TensorId>,
}

impl Player {
    /// Takes the recording's first sequence for itself.
    pub fn new(recording: &mut VulkanRecording) -> Player {
        let mut step = Step::default();
        step.push(0, 0, 0, true);
        for group in 0..recording.plan.graph.kv_groups.len() {
            if !recording.is_mapped(group, 0, 0) {
                recording.map_page(group, 0, 0, 0);
            }
        }
        let mine = recording.plan.segments.iter().filter(|s| s.device == recording.device);
        let received = mine.flat_map(|segment| segment.receives.iter().map(|one| one.tensor));
        Player { received: received.collect(), step }
    }

    /// What the last launch of `program` leaves.
    pub fn play(
        &self,
        recording: &mut VulkanRecording,
        program: &[Dispatch],
    ) -> Result<Outputs, DeviceError> {
        let last = program.last().expect("a product to play");
        let head = recording.plan.is_head(last.op);
        let rows = recording.plan.max_rows(if head { RowSet::Logits } else { RowSet::All });
        let row = |at: usize| {
            let region = last.bindings[at];
            region.slice(0, region.size / rows as u64 / 4 * 4)
        };
        let (values, handed) = places(last.variant.shader);
        let handed = handed.into_iter().flatten().map(|at| last.bindings[at]);
        let regions: Vec<Region> = values.into_iter().map(row).chain(handed).collect();
        // Everything before is computed anew; what this launch leaves out must show.
        poison(recording, &regions)?;
        for &tensor in &self.received {
            let width = recording.plan.graph.tensor(tensor).width;
            recording.write_tensor(tensor, &noise(width))?;
        }
        recording.begin(&self.step)?;
        recording.play_program(program)?;
        let mut bytes = Vec::new();
        for &region in &regions {
            bytes.push(recording.read(region)?);
        }
        Ok(Outputs::from_bytes(&bytes))
    }
}

fn poison(recording: &mut VulkanRecording, regions: &[Region]) -> Result<(), DeviceError> {
    let mut uploader = Uploader::new(recording.gpu())?;
    for &region in regions {
        uploader.copy(&recording.memory, region, &vec![0xff; region.size as usize])?;
    }
    uploader.finish()
}

impl Outputs {
    fn from_bytes(bytes: &[Vec<u8>]) -> Outputs {
        let word = |word: &[u8]| [word[0], word[1], word[2], word[3]];
        let floats = |bytes: &[u8]| {
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes(word(four))).collect::<Vec<f32>>()
        };
        let meta = |eight: &[u8]| {
            let half = |at: usize| i16::from_le_bytes([eight[at], eight[at + 1]]);
            (f32::from_le_bytes(word(eight)), [half(4), half(6)])
        };
        Outputs {
            values: bytes[..2].iter().flat_map(|bytes| floats(bytes)).collect(),
            codes: bytes.get(2).into_iter().flatten().map(|&byte| byte as i8).collect(),
            metas: bytes
                .get(3)
                .map_or(Vec::new(), |bytes| bytes.chunks_exact(8).map(meta).collect()),
        }
    }

    /// Where another cut's outputs are not the same within the rounding of their sums, in words.
    ///
    /// A sum of n terms is rounded n times, so that it is likely to be off by about ε √n of the outputs'
    /// root mean square. 4 ε n is allowed: 4 √n times that, far less than a block of 32 weights adds.
    pub fn difference(&self, other: &Outputs, key: &RowsKey) -> Option<String> {
        let terms = if key.ty.is_quantized() { key.blocks } else { 32 * key.blocks };
        let finite = || self.values.iter().filter(|value| value.is_finite());
        let squares: f64 = finite().map(|&value| f64::from(value).powi(2)).sum();
        let size = (squares / finite().count().max(1) as f64).sqrt();
        let bound = 4.0 * f64::from(f32::EPSILON) * f64::from(terms) * size;
        let near = |a: f32, b: f32| {
            a.to_bits() == b.to_bits() || (f64::from(a) - f64::from(b)).abs() <= bound
        };
        let values = self.values.iter().zip(&other.values);
        if let Some(at) = values.clone().position(|(&a, &b)| !near(a, b)) {
            let (a, b) = (self.values[at], other.values[at]);
            return Some(format!("output {at} is {b} instead of {a}"));
        }
        // A code that lies between two may become either.
        let step = |a: f32, b: f32| near(a, b) || (a - b).abs() <= 1e-3 * a.abs();
        let metas = self.metas.iter().zip(&other.metas);
        if let Some(at) = metas.clone().position(|(a, b)| !step(a.0, b.0)) {
            let (a, b) = (self.metas[at].0, other.metas[at].0);
            return Some(format!("the step of block {at} is {b} instead of {a}"));
        }
        let sums = |a: &[i16; 2], b: &[i16; 2]| a.iter().zip(b).all(|(a, b)| a.abs_diff(*b) <= 16);
        let mut codes = self.codes.iter().zip(&other.codes);
        if let Some(at) = codes.position(|(a, b)| a.abs_diff(*b) > 1) {
            return Some(format!("code {at} is {} instead of {}", other.codes[at], self.codes[at]));
        }
        let at = metas.clone().position(|(a, b)| !sums(&a.1, &b.1))?;
        Some(format!("the sums of block {at} differ"))
    }

    /// Whether there is anything to compare with.
    pub fn has_numbers(&self) -> bool {
        self.values.iter().any(|value| value.is_finite() && *value != 0.0)
    }
}
