//! `DRM_VERSION`, `GET_INFO`, `GET_ARRAY`, `SET_STATE`.

use crate::bytes::{put_u16, put_u32, put_u64, u32_at, u64_at};
use crate::config::{COLUMNS, CORE_ROWS, Config, MAX_CONTEXTS};
use crate::errno::Errno;
use crate::state::State;
use crate::user;

/// `DRM_VERSION`: major @0, minor @4, patch @8; length and address of name @16, date @32, description
/// @48. Writes what fits, and returns the whole lengths.
pub(crate) fn version(config: &Config, argument: &mut [u8]) -> Result<(), Errno> {
    let (major, minor, patch) = config.version;
    put_u32(argument, 0, major as u32);
    put_u32(argument, 4, minor as u32);
    put_u32(argument, 8, patch as u32);
    for (at, text) in [(16, "amdxdna_accel_driver"), (32, ""), (48, "AMD XDNA DRM implementation")]
    {
        let room = u64_at(argument, at).min(text.len() as u64) as usize;
        let address = u64_at(argument, at + 8);
        if address != 0 {
            user::write(address, &text.as_bytes()[..room])?;
        }
        put_u64(argument, at, text.len() as u64);
    }
    Ok(())
}

/// Frequencies in MHz of a power mode: of the NPU's processor and of the array.
fn clocks(power_mode: u8) -> (u32, u32) {
    match power_mode {
        1 => (400, 800),
        2 => (600, 1024),
        _ => (847, 1600),
    }
}

/// How much longer a command takes than at the highest clock.
pub(crate) fn slowness(power_mode: u8) -> f64 {
    f64::from(clocks(0).1) / f64::from(clocks(power_mode).1)
}

/// `GET_INFO`: param @0, buffer_size @4, buffer @8.
pub(crate) fn get(
    state: &mut State,
    config: &Config,
    fd: i32,
    argument: &mut [u8],
) -> Result<(), Errno> {
    state.client(fd)?;
    let answer = match u32_at(argument, 0) {
        1 => metadata(),
        2 => version_of_array(),
        3 => clock(state.power_mode),
        5 => return contexts(state, config, argument),
        8 => config.firmware.iter().flat_map(|word| word.to_le_bytes()).collect(),
        9 => vec![state.power_mode, 0, 0, 0, 0, 0, 0, 0],
        12 if config.version.1 >= RESOURCE_MINOR => resources(state),
        // Status and sensors need firmware that the model has not.
        _ => return Err(Errno::EOPNOTSUPP),
    };
    // Older kernels write the whole answer, whatever the caller's size.
    if (u32_at(argument, 4) as usize) < answer.len() {
        return Err(Errno::EINVAL);
    }
    user::write(u64_at(argument, 8), &answer)
}

fn version_of_array() -> Vec<u8> {
    let mut bytes = vec![0; 8];
    put_u32(&mut bytes, 0, 1);
    put_u32(&mut bytes, 4, 1);
    bytes
}

/// The array's shape. Counts of channels, locks and events are those of the architecture manual.
fn metadata() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    put_u32(&mut bytes, 0, 1 << 25);
    put_u16(&mut bytes, 4, COLUMNS as u16);
    put_u16(&mut bytes, 6, 6);
    bytes[8..16].copy_from_slice(&version_of_array());
    let tiles =
        [(16, CORE_ROWS as u16, 2, 2, 16, 128), (32, 1, 1, 6, 64, 164), (48, 1, 0, 2, 16, 128)];
    for (at, rows, first, channels, locks, events) in tiles {
        for (index, value) in [rows, first, channels, locks, events].into_iter().enumerate() {
            put_u16(&mut bytes, at + 2 * index, value);
        }
    }
    bytes
}

/// Twice a name of 16 bytes, a frequency, padding.
fn clock(power_mode: u8) -> Vec<u8> {
    let (processor, array) = clocks(power_mode);
    let mut bytes = vec![0; 48];
    for (at, name, frequency) in [(0, "MP-NPU Clock", processor), (24, "H Clock", array)] {
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        put_u32(&mut bytes, at + 16, frequency);
    }
    bytes
}

/// Highest clock, highest TOPS, most contexts, present TOPS, present contexts.
fn resources(state: &State) -> Vec<u8> {
    let tops = |clock: u32| u64::from(clock) * 2048 * 4 / 1_000_000;
    let (_, clock) = clocks(state.power_mode);
    let values = [1600, tops(1600), MAX_CONTEXTS as u64, tops(clock), state.context_count() as u64];
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The minor versions that brought `GET_ARRAY` and the resource information.
const ARRAY_MINOR: i32 = 1;
const RESOURCE_MINOR: i32 = 4;

/// An entry of 64 bytes for each context of every file. First kernels want room for all and return
/// what that is; later ones write what fits and return the bytes that are left.
fn contexts(state: &mut State, config: &Config, argument: &mut [u8]) -> Result<(), Errno> {
    const ENTRY: usize = 64;
    let room = u32_at(argument, 4) as usize;
    let mut bytes: Vec<u8> = Vec::new();
    let entries = entries(state);
    for entry in entries.iter().take(room / ENTRY) {
        bytes.extend(&entry[..ENTRY]);
    }
    user::write(u64_at(argument, 8), &bytes)?;
    let needed = ENTRY * entries.len();
    if config.version.1 >= ARRAY_MINOR {
        put_u32(argument, 4, (room - bytes.len()) as u32);
        return Ok(());
    }
    put_u32(argument, 4, needed as u32);
    if needed > room { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Contexts as `GET_ARRAY` describes them; the first 64 bytes are those of `GET_INFO`.
fn entries(state: &State) -> Vec<[u8; 152]> {
    let mut entries = Vec::new();
    for client in state.clients.values() {
        for (id, context) in &client.contexts {
            let mut entry = [0; 152];
            put_u32(&mut entry, 0, *id);
            put_u32(&mut entry, 4, context.start_column);
            put_u32(&mut entry, 8, context.columns);
            put_u64(&mut entry, 16, u64::from(std::process::id()));
            put_u64(&mut entry, 24, context.timeline.submitted());
            put_u64(&mut entry, 32, context.timeline.ended());
            put_u64(&mut entry, 56, context.errors);
            let [gops, fps, bandwidth, latency, frame, priority] = context.quality;
            put_u64(&mut entry, 64, u64::from(priority));
            put_u32(&mut entry, 88, 1);
            for (index, value) in [gops, fps, bandwidth, latency, frame].into_iter().enumerate() {
                put_u32(&mut entry, 96 + 4 * index, value);
            }
            entries.push(entry);
        }
    }
    entries.extend((0..state.plan.held()).map(held));
    entries
}

/// A context of another process, which shares the columns with ours.
fn held(index: usize) -> [u8; 152] {
    const PROCESS: u64 = 1;
    let mut entry = [0; 152];
    put_u32(&mut entry, 0, index as u32 + 1);
    put_u32(&mut entry, 4, 1);
    put_u32(&mut entry, 8, COLUMNS - 1);
    put_u64(&mut entry, 16, PROCESS);
    entry
}

/// `GET_ARRAY`: param @0, element_size @4, num_element @8, pad @12, buffer @16.
pub(crate) fn array(
    state: &mut State,
    config: &Config,
    fd: i32,
    argument: &mut [u8],
) -> Result<(), Errno> {
    if config.version.1 < ARRAY_MINOR {
        return Err(Errno::EINVAL);
    }
    let (size, count) = (u32_at(argument, 4), u32_at(argument, 8));
    if u32_at(argument, 12) != 0 || count == 0 || size == 0 || size > 4096 || count > 1024 {
        return Err(Errno::EINVAL);
    }
    state.client(fd)?;
    if u32_at(argument, 0) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let element = (size as usize).min(152);
    let entries = entries(state);
    let taken = entries.len().min(count as usize);
    let bytes: Vec<u8> =
        entries[..taken].iter().flat_map(|entry| entry[..element].to_vec()).collect();
    user::write(u64_at(argument, 16), &bytes)?;
    put_u32(argument, 4, element as u32);
    put_u32(argument, 8, taken as u32);
    Ok(())
}

/// `SET_STATE`: param @0, buffer_size @4, buffer @8. Only the power mode, only for root.
pub(crate) fn set(
    state: &mut State,
    config: &Config,
    fd: i32,
    argument: &[u8],
) -> Result<(), Errno> {
    if !config.root {
        return Err(Errno::EACCES);
    }
    state.client(fd)?;
    if u32_at(argument, 0) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let mode = user::read(u64_at(argument, 8), 8)?;
    if mode[0] > 4 || mode[1..].iter().any(|byte| *byte != 0) {
        return Err(Errno::EINVAL);
    }
    state.power_mode = mode[0];
    Ok(())
}
