//! One command: packet, instructions, kernel, result.

use std::sync::Arc;

use crate::buffer::{Buffer, Kind};
use crate::config::COLUMNS;
use crate::execute::Job;
use crate::fault::Effect;
use crate::kernel::{Element, Kernel};
use crate::packet::{self, Packet, PacketError, Start};
use crate::state::Shared;
use crate::stream::{self, Stream};

/// How a command ended.
pub(crate) enum Outcome {
    Completed,
    /// The device faulted.
    Failed {
        index: u32,
        reason: String,
    },
    /// The kernel did not pass it on.
    Refused(PacketError),
}

/// This NPU's number in a stream's header.
const GENERATION: u32 = 3;

/// Runs a packet.
pub(crate) fn run(shared: &Arc<Shared>, job: &Job) -> Outcome {
    let starts = match starts(shared, job) {
        Ok(starts) => starts,
        Err(error) => return Outcome::Refused(error),
    };
    for (index, start) in starts.iter().enumerate() {
        if let Err(reason) = run_start(shared, job, start) {
            return Outcome::Failed { index: index as u32, reason };
        }
    }
    Outcome::Completed
}

/// Whether a packet is a chain.
pub(crate) fn is_chain(packet: &[u8]) -> bool {
    matches!(packet::decode(packet), Ok(Packet::Chain(_)))
}

fn starts(shared: &Shared, job: &Job) -> Result<Vec<Start>, PacketError> {
    let bytes = |buffer: &Buffer| buffer.memory.read_host(0, buffer.size);
    let handles = match packet::decode(&bytes(&job.command))? {
        Packet::Start(start) => return Ok(vec![start]),
        Packet::Chain(handles) => handles,
    };
    let mut state = shared.lock();
    let client = state.client(job.fd).map_err(|_| PacketError::ContextLost)?;
    let mut starts = Vec::new();
    for handle in handles {
        let command = client.command(handle as u32).ok_or(PacketError::ChainHandle(handle))?;
        let bytes = bytes(command);
        match packet::decode(&bytes)? {
            Packet::Start(start) => starts.push((packet::opcode(&bytes), start)),
            Packet::Chain(_) => return Err(PacketError::Mixed),
        }
    }
    packet::check_chain(&starts)?;
    Ok(starts.into_iter().map(|(_, start)| start).collect())
}

/// The place of a tensor.
struct Operand {
    buffer: Arc<Buffer>,
    offset: usize,
}

fn run_start(shared: &Shared, job: &Job, start: &Start) -> Result<(), String> {
    if let Some(defect) = &start.defect {
        return Err(defect.clone());
    }
    let instructions = instructions(shared, job, start)?;
    let stream = stream::decode(&instructions).map_err(|error| error.to_string())?;
    let kernel = kernel(shared, job, start, &instructions, &stream)?;
    let operands = operands(shared, job, start, &stream, &kernel)?;
    let sizes = kernel.argument_bytes();
    let (output, inputs) = operands.split_last().ok_or("a kernel without arguments")?;
    let inputs: Vec<Vec<u8>> = inputs
        .iter()
        .zip(&sizes)
        .map(|(input, size)| input.buffer.memory.read_device(input.offset, *size))
        .collect();
    let mut result = kernel.run(&inputs);
    spoil(&mut result, kernel.output(), &job.effects);
    let lost = output.buffer.memory.store(output.offset, &result);
    if lost > 0 {
        shared.lock().complain(format!(
            "{lost} cache lines of an output were dirty on the host and will overwrite the result: \
             flush outputs before the command"
        ));
    }
    Ok(())
}

/// The buffer that `address` lies in, of those that the kernel keeps in place.
fn locate(shared: &Shared, job: &Job, address: u64, what: &str) -> Result<Operand, String> {
    let addressing = shared.config.addressing;
    let found = job.arguments.iter().find_map(|buffer| {
        let offset = buffer.find(address, addressing)?;
        Some(Operand { buffer: buffer.clone(), offset: buffer.offset + offset })
    });
    found.ok_or_else(|| {
        format!("{what} at {address:#x} lies in no buffer whose handle EXEC_CMD was given")
    })
}

impl Operand {
    /// Bytes from here to the end of the buffer.
    fn room(&self) -> u64 {
        (self.buffer.offset + self.buffer.size - self.offset) as u64
    }
}

/// What the device sees of the instructions.
fn instructions(shared: &Shared, job: &Job, start: &Start) -> Result<Vec<u8>, String> {
    let place = locate(shared, job, start.instructions, "the instruction stream")?;
    if place.buffer.kind != Kind::Dev {
        return Err("the instruction stream is not in a DEV buffer".to_owned());
    }
    if start.instruction_bytes > place.room() {
        return Err(format!(
            "{} bytes of instructions end behind their buffer",
            start.instruction_bytes
        ));
    }
    Ok(place.buffer.memory.read_device(place.offset, start.instruction_bytes as usize))
}

fn kernel(
    shared: &Shared,
    job: &Job,
    start: &Start,
    instructions: &[u8],
    stream: &Stream,
) -> Result<Kernel, String> {
    if stream.generation != GENERATION {
        return Err(format!(
            "the stream is for generation {}; this NPU is {GENERATION}",
            stream.generation
        ));
    }
    let mut state = shared.lock();
    let state = &mut *state;
    let client = state.clients.get(&job.fd).ok_or("the file was closed")?;
    let context = client.contexts.get(&job.context).ok_or("the context is gone")?;
    if stream.columns > COLUMNS || stream.last_column >= context.columns {
        return Err(format!(
            "the stream is for {} columns and writes to column {}; the context has {}",
            stream.columns, stream.last_column, context.columns
        ));
    }
    let unit = context.units.get(start.unit as usize);
    let pdi = unit.ok_or_else(|| format!("compute unit {} was not configured", start.unit))?;
    let kernel = state.kernels.find(pdi, instructions).ok_or_else(|| {
        if state.kernels.knows(pdi) {
            "the instructions are not those of a shape that this PDI is described for".to_owned()
        } else {
            "no description is registered for what the device sees of the PDI (was it flushed?)"
                .to_owned()
        }
    })?;
    if kernel.columns() as u32 > context.columns {
        return Err(format!(
            "the program takes {} columns; the context has {}",
            kernel.columns(),
            context.columns
        ));
    }
    Ok(kernel.clone())
}

/// The tensors of a kernel, as the stream's descriptors reach them.
fn operands(
    shared: &Shared,
    job: &Job,
    start: &Start,
    stream: &Stream,
    kernel: &Kernel,
) -> Result<Vec<Operand>, String> {
    for patch in &stream.patches {
        let base = *start.buffers.get(patch.argument).unwrap_or(&0);
        let what = format!("argument {}", patch.argument);
        let address = base.checked_add(patch.offset).filter(|_| base != 0);
        let address =
            address.ok_or_else(|| format!("the stream patches {what}, which the packet lacks"))?;
        let place = locate(shared, job, address, &what)?;
        if place.buffer.kind != Kind::Share {
            return Err(format!("{what} is not a SHARE buffer"));
        }
        if patch.descriptor.bytes() > place.room() {
            return Err(format!(
                "a descriptor reaches {} bytes from {address:#x} in {what}; the buffer ends after {}",
                patch.descriptor.bytes(),
                place.room()
            ));
        }
    }
    let mut operands = Vec::new();
    for (index, size) in kernel.argument_bytes().into_iter().enumerate() {
        if !stream.uses(index) {
            return Err(format!("the stream never touches argument {index}"));
        }
        let place = locate(shared, job, start.buffers[index], &format!("argument {index}"))?;
        if size as u64 > place.room() {
            return Err(format!(
                "argument {index} has {} bytes; the kernel takes {size}",
                place.room()
            ));
        }
        operands.push(place);
    }
    Ok(operands)
}

/// Plants wrong elements, in the middle of the output.
fn spoil(result: &mut [u8], element: Element, effects: &[Effect]) {
    let size = element.bytes();
    let at = result.len() / size / 2 * size;
    let Some(middle) = result.get_mut(at..at + size) else { return };
    if effects.contains(&Effect::NotANumber) {
        match element {
            Element::Bf16 => middle.copy_from_slice(&0x7FC0u16.to_le_bytes()),
            Element::F32 => middle.copy_from_slice(&f32::NAN.to_le_bytes()),
            Element::I8 => middle.copy_from_slice(&i8::MIN.to_le_bytes()),
            Element::I16 => middle.copy_from_slice(&i16::MIN.to_le_bytes()),
            Element::I32 => middle.copy_from_slice(&i32::MIN.to_le_bytes()),
        }
    }
    if effects.contains(&Effect::Wrong) {
        // Of bf16 and f32 the lowest bit of the exponent, of integers bit 7.
        let byte = if element == Element::F32 { 2 } else { 0 };
        middle[byte] ^= 0x80;
    }
}
