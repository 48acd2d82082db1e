//! Products of any shape, cut into products of a package's shape: of the cheapest one where several packages
//! share the context.
//!
//! Tiles are computed in *waves*: as many commands as staging memory and a chain allow, submitted
//! as one chain. There are two banks of buffers, so that the processor stages the next wave while
//! the device computes. Parts of the inner dimension are added up on the processor.

use std::collections::VecDeque;

use half::bf16;

use super::RunError;
use super::choice::{Work, cheapest};
use super::element::{Element, poison};
use super::matrix::{Factor, Matrix, Order};
use super::pool::TilePool;
use super::program::Program;
use crate::amdxdna::{Buffer, BufferKind, Command, MAX_CHAIN, Packet, Submission};
use crate::package::{Activation, ElementType, MatmulSpec, Shape};

/// Bounds of a [`TiledMatmul`].
#[derive(Clone, Copy, Debug)]
pub struct TiledOptions {
    /// Bytes of all staging buffers together. They are pinned, so that they should stay small
    /// beside the machine's memory.
    pub staging_bytes: usize,
    /// Commands in a chain, at most [`MAX_CHAIN`].
    pub chain: usize,
}

impl Default for TiledOptions {
    fn default() -> TiledOptions {
        TiledOptions { staging_bytes: 64 << 20, chain: MAX_CHAIN }
    }
}

/// Banks of buffers: one computes, one is staged. Each has at most one chain in flight.
const BANKS: usize = 2;

/// A matmul package, or several of one xclbin, that serve every shape.
#[derive(Debug)]
pub struct TiledMatmul {
    // Dropped first: with the context gone, no command touches the buffers any more.
    program: Program,
    /// Name and shape of each stream of the program.
    streams: Vec<(String, MatmulSpec)>,
    banks: Vec<Bank>,
    work: Work,
}

/// Buffers of one wave.
#[derive(Debug)]
struct Bank {
    a: TilePool,
    b: TilePool,
    slots: Vec<Slot>,
    chain: Command,
    /// What an output holds before its command runs.
    fill: Vec<u8>,
}

/// A command and its output.
#[derive(Debug)]
struct Slot {
    c: Buffer,
    command: Command,
}

/// A tile's place among tiles.
#[derive(Clone, Copy, Debug)]
struct Tile {
    m: usize,
    k: usize,
    n: usize,
}

/// A wave that the device computes.
struct Wave {
    bank: usize,
    tiles: Vec<Tile>,
    submission: Submission,
}

impl TiledMatmul {
    pub(super) fn new(
        program: Program,
        streams: Vec<(String, MatmulSpec)>,
        options: TiledOptions,
    ) -> Result<TiledMatmul, RunError> {
        // Every buffer serves the largest.
        let bytes = streams.iter().map(|(_, spec)| tile_bytes(spec)).fold([0; 3], |most, bytes| {
            [0, 1, 2].map(|argument| most[argument].max(bytes[argument]))
        });
        let output = streams[0].1.output;
        let needed = BANKS * bytes.iter().map(|bytes| bytes.next_multiple_of(4096)).sum::<usize>();
        let commands = (options.staging_bytes / needed).min(options.chain.clamp(1, MAX_CHAIN));
        if commands == 0 {
            let budget = options.staging_bytes;
            return Err(RunError::Staging { budget, needed });
        }
        let mut banks = Vec::new();
        for _ in 0..BANKS {
            banks.push(Bank::new(&program, bytes, output, commands)?);
        }
        Ok(TiledMatmul { program, streams, banks, work: Work::default() })
    }

    /// What one command of the first package computes.
    pub fn spec(&self) -> &MatmulSpec {
        &self.streams[0].1
    }

    /// What the device was asked to do so far.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Commands in a wave.
    pub fn wave(&self) -> usize {
        self.banks[0].slots.len()
    }

    /// Whether the context is gone; the package must be loaded again.
    pub fn is_lost(&self) -> bool {
        self.program.context.is_lost()
    }

    /// `out = a b` for any shape: a is M x K and out M x N, both row-major.
    pub fn matmul_i8(
        &mut self,
        shape: Shape,
        a: &[i8],
        b: Factor<'_, i8>,
        out: &mut [i32],
    ) -> Result<(), RunError> {
        if shape.k >= 1 << 17 {
            return Err(RunError::TooLong(shape.k));
        }
        self.multiply(shape, a, b, out)
    }

    /// The same for bf16. Parts of the inner dimension are added up in f32; a package that rounds
    /// to bf16 rounds every part.
    pub fn matmul_bf16(
        &mut self,
        shape: Shape,
        a: &[bf16],
        b: Factor<'_, bf16>,
        out: &mut [f32],
    ) -> Result<(), RunError> {
        self.multiply(shape, a, b, out)
    }

    fn multiply<E: Element>(
        &mut self,
        shape: Shape,
        a: &[E],
        b: Factor<'_, E>,
        out: &mut [E::Sum],
    ) -> Result<(), RunError> {
        self.check::<E>(shape)?;
        let a = Matrix::new("a", a, (shape.m, shape.k), Order::RowMajor)?;
        let b = Matrix::new("b", b.values, (shape.k, shape.n), b.order)?;
        RunError::length("out", shape.m * shape.n, out.len())?;
        out.fill(E::Sum::default());
        for bank in &mut self.banks {
            bank.a.clear();
            bank.b.clear();
        }
        let stream = cheapest(self.streams.iter().map(|(_, spec)| spec), shape);
        let work = Work::of(shape, self.streams[stream].1.shape);
        self.work.commands += work.commands;
        self.work.multiplications += work.multiplications;
        let mut in_flight = VecDeque::new();
        let result = self.waves((shape, stream), (&a, &b), out, &mut in_flight);
        // After an error, what is still under way ends before its buffers are used again; a
        // context that does not end it is lost, and the next call says so.
        for wave in in_flight {
            let command = self.banks[wave.bank].command(wave.tiles.len());
            let _ = self.program.wait(wave.submission, command);
        }
        match result? || !a.is_finite() || !b.is_finite() {
            true => Ok(()),
            false => Err(RunError::NoResult { package: self.streams[stream].0.clone() }),
        }
    }

    fn check<E: Element>(&self, shape: Shape) -> Result<(), RunError> {
        let (name, spec) = &self.streams[0];
        if E::TYPE != spec.input {
            let wanted = match E::TYPE {
                ElementType::I8 => "a product of i8",
                _ => "a product of bf16",
            };
            let found = format!("a product of {:?}", spec.input);
            return Err(RunError::WrongOperation { package: name.clone(), wanted, found });
        }
        let Shape { m, k, n } = shape;
        let sizes = [m.checked_mul(k), k.checked_mul(n), m.checked_mul(n)];
        if sizes.contains(&None) {
            return Err(RunError::Impossible(m, k, n));
        }
        if spec.activation != Activation::None && k > spec.shape.k {
            return Err(RunError::SplitActivation { k: spec.shape.k, asked: k });
        }
        Ok(())
    }

    /// Stages and submits waves, and collects them in order. Returns whether all elements are results.
    fn waves<E: Element>(
        &mut self,
        (shape, stream): (Shape, usize),
        (a, b): (&Matrix<'_, E>, &Matrix<'_, E>),
        out: &mut [E::Sum],
        in_flight: &mut VecDeque<Wave>,
    ) -> Result<bool, RunError> {
        let mut sound = true;
        let spec = &self.streams[stream].1;
        let mut tiles = tiles(shape, spec.shape);
        let most = self.wave();
        let mut scratch = Vec::new();
        let mut next_bank = 0;
        loop {
            let wave: Vec<Tile> = match in_flight.len() < BANKS {
                true => tiles.by_ref().take(most).collect(),
                false => Vec::new(),
            };
            if !wave.is_empty() {
                let bank = &mut self.banks[next_bank];
                let submission =
                    bank.submit((&self.program, stream), spec, &wave, (a, b), &mut scratch)?;
                in_flight.push_back(Wave { bank: next_bank, tiles: wave, submission });
                next_bank = (next_bank + 1) % BANKS;
                continue;
            }
            let Some(wave) = in_flight.pop_front() else { return Ok(sound) };
            let bank = &self.banks[wave.bank];
            self.program.wait(wave.submission, bank.command(wave.tiles.len()))?;
            sound &= bank.collect::<E>(spec, &wave.tiles, shape, out)?;
        }
    }
}

/// Bytes of a tile of A, B and C.
fn tile_bytes(spec: &MatmulSpec) -> [usize; 3] {
    let Shape { m, k, n } = spec.shape;
    let (input, output) = (spec.input.bytes(), spec.output.bytes());
    [m * k * input, k * n * input, m * n * output]
}

/// The tiles of a product. A tile of B, usually a weight, serves all rows before the next one is
/// staged; the tiles of A, which are few, stay staged.
fn tiles(shape: Shape, tile: Shape) -> impl Iterator<Item = Tile> {
    let [ms, ks, ns] =
        [shape.m.div_ceil(tile.m), shape.k.div_ceil(tile.k), shape.n.div_ceil(tile.n)];
    (0..ns).flat_map(move |n| (0..ks).flat_map(move |k| (0..ms).map(move |m| Tile { m, k, n })))
}

impl Bank {
    fn new(
        program: &Program,
        bytes: [usize; 3],
        output: ElementType,
        commands: usize,
    ) -> Result<Bank, RunError> {
        let device = &program.device;
        let share = |bytes| Buffer::new(device, BufferKind::Share, bytes);
        let pool = |bytes| (0..commands).map(|_| share(bytes)).collect::<Result<Vec<_>, _>>();
        let (a, b) = (TilePool::new(pool(bytes[0])?), TilePool::new(pool(bytes[1])?));
        let mut slots = Vec::new();
        for _ in 0..commands {
            let c = share(bytes[2])?;
            slots.push(Slot { c, command: Command::new(device)? });
        }
        let fill = poison(output);
        let fill = fill.repeat(bytes[2].div_ceil(fill.len()));
        Ok(Bank { a, b, slots, chain: Command::new(device)?, fill })
    }

    /// The command that a wave was submitted by.
    fn command(&self, tiles: usize) -> &Command {
        if tiles == 1 { &self.slots[0].command } else { &self.chain }
    }

    /// Stages a wave's factors and submits its commands.
    fn submit<E: Element>(
        &mut self,
        (program, stream): (&Program, usize),
        spec: &MatmulSpec,
        wave: &[Tile],
        (a, b): (&Matrix<'_, E>, &Matrix<'_, E>),
        scratch: &mut Vec<E>,
    ) -> Result<Submission, RunError> {
        let shape = spec.shape;
        let mut places = Vec::with_capacity(wave.len());
        for tile in wave {
            let (a_index, is_new) = self.a.place((tile.m, tile.k));
            if is_new {
                a.lay_out_a((tile.m * shape.m, tile.k * shape.k), shape, scratch);
                stage(self.a.buffer_mut(a_index), E::bytes(scratch))?;
            }
            let (b_index, is_new) = self.b.place((tile.k, tile.n));
            if is_new {
                let origin = (tile.k * shape.k, tile.n * shape.n);
                b.lay_out_b(origin, shape, spec.b_layout, scratch);
                stage(self.b.buffer_mut(b_index), E::bytes(scratch))?;
            }
            places.push((a_index, b_index));
        }
        for (slot, &(a_index, b_index)) in self.slots.iter_mut().zip(&places) {
            // What an earlier wave left would pass for a result that this one does not write.
            stage(&mut slot.c, &self.fill[..tile_bytes(spec)[2]])?;
            let arguments = [self.a.buffer(a_index), self.b.buffer(b_index), &slot.c];
            slot.command.set(&program.packet(stream, &arguments));
        }
        if wave.len() > 1 {
            let handles = self.slots[..wave.len()].iter().map(|slot| slot.command.handle());
            self.chain.set(&Packet::chain(&handles.collect::<Vec<u32>>()));
        }
        let mut buffers = Vec::with_capacity(3 * wave.len());
        for (slot, &(a_index, b_index)) in self.slots.iter().zip(&places) {
            buffers.extend([self.a.buffer(a_index), self.b.buffer(b_index), &slot.c]);
        }
        program.submit(stream, self.command(wave.len()), &buffers)
    }

    /// Adds a wave's outputs to the sums, without the padding. Returns whether all elements, the padding's
    /// included, are results.
    fn collect<E: Element>(
        &self,
        spec: &MatmulSpec,
        wave: &[Tile],
        shape: Shape,
        out: &mut [E::Sum],
    ) -> Result<bool, RunError> {
        let mut sound = true;
        let tile_shape = spec.shape;
        let element = spec.output.bytes();
        let mut bytes = vec![0; tile_bytes(spec)[2]];
        for (tile, slot) in wave.iter().zip(&self.slots) {
            slot.c.invalidate(bytes.len())?;
            slot.c.read(0, &mut bytes);
            sound &= E::are_results(&bytes, spec.output);
            let (row, column) = (tile.m * tile_shape.m, tile.n * tile_shape.n);
            let rows = tile_shape.m.min(shape.m - row);
            let columns = tile_shape.n.min(shape.n - column);
            for (index, line) in bytes.chunks_exact(tile_shape.n * element).take(rows).enumerate() {
                let start = (row + index) * shape.n + column;
                let sums = &mut out[start..start + columns];
                E::add(&line[..columns * element], spec.output, sums);
            }
        }
        Ok(sound)
    }
}

/// Writes a tile and moves it to memory.
fn stage(buffer: &mut Buffer, bytes: &[u8]) -> Result<(), RunError> {
    buffer.write(0, bytes);
    Ok(buffer.flush(bytes.len())?)
}
