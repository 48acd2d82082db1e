//! What the device reaches at best, and the host's memory, which it works in.

use std::hint::black_box;
use std::time::{Duration, Instant};

use half::bf16;
use pianola_plan::Ceilings;

use super::packages::Kernels;
use super::session::{Needs, Session, Source};
use crate::package::{ElementType, Shape};
use crate::runner::{Factor, Order, RunError, TiledMatmul};

/// How long is measured.
const TIME: Duration = Duration::from_millis(300);
/// Bytes that are read: more than caches hold.
const BLOCK: usize = 256 << 20;

/// Operations per second of products of many tiles, staging included, and bytes per second that a thread
/// of the processor reads: the array's own share of the memory's bandwidth is not known here. None where
/// the device does not work.
pub(super) fn ceilings(source: &Source, kernels: &Kernels) -> Option<Ceilings> {
    let mut session = Session::open(source, kernels, &Needs::default()).ok()?;
    let operations_per_second = operations(session.products()).ok()?;
    Some(Ceilings { bytes_per_second: read_speed(), operations_per_second })
}

fn operations(matmul: &mut TiledMatmul) -> Result<f64, RunError> {
    let spec = matmul.spec().clone();
    // As many columns as fill a few chains.
    let shape = Shape { n: spec.shape.n * matmul.wave() * 4, ..spec.shape };
    let (a, b) = (shape.m * shape.k, shape.k * shape.n);
    let order = Order::ColumnMajor;
    let (a_i8, b_i8) = (vec![1i8; a], vec![1i8; b]);
    let (a_bf16, b_bf16) = (vec![bf16::ONE; a], vec![bf16::ONE; b]);
    let (mut sums, mut floats) = (vec![0; shape.m * shape.n], vec![0.0; shape.m * shape.n]);
    let mut best = Duration::MAX;
    let start = Instant::now();
    // At least once, however slow the device is.
    while best == Duration::MAX || start.elapsed() < TIME {
        let began = Instant::now();
        match spec.input {
            ElementType::I8 => {
                matmul.matmul_i8(shape, &a_i8, Factor { values: &b_i8, order }, &mut sums)?;
            }
            _ => {
                matmul.matmul_bf16(
                    shape,
                    &a_bf16,
                    Factor { values: &b_bf16, order },
                    &mut floats,
                )?;
            }
        }
        best = best.min(began.elapsed());
    }
    Ok(2.0 * shape.m as f64 * shape.k as f64 * shape.n as f64 / best.as_secs_f64())
}

fn read_speed() -> f64 {
    let block: Vec<u64> = (0..BLOCK as u64 / 8).collect();
    let read = || {
        let start = Instant::now();
        black_box(black_box(&block).iter().fold(0u64, |sum, &word| sum.wrapping_add(word)));
        start.elapsed().as_secs_f64()
    };
    let best = (0..3).map(|_| read()).fold(f64::INFINITY, f64::min);
    BLOCK as f64 / best
}

/// Bytes that the system says are available; none where it does not say.
pub(super) fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}
