//! What the stand-in does for each request, with the documented offsets and rules.

use pianola_npu::amdxdna::Errno;

use super::fake::{Memory, State};
use super::raw::Raw;

pub(super) const HEAP: usize = 64 << 20;
const WINDOW: u64 = 0x400_0000;

impl State {
    pub(super) fn violation(&mut self, text: impl Into<String>) {
        self.violations.push(text.into());
    }

    pub(super) fn rule(&mut self, holds: bool, text: &str) {
        if !holds {
            self.violation(text);
        }
    }

    fn create_buffer(&mut self, argument: Raw) -> Result<(), Errno> {
        let (flags, size, kind) =
            (argument.get::<u64>(0), argument.get::<u64>(16), argument.get::<u32>(24));
        self.rule(flags == 0, "CREATE_BO flags");
        let size = (size as usize).next_multiple_of(4096);
        self.next_handle += 1;
        let handle = self.next_handle;
        let mut heap_offset = 0;
        let address = match kind {
            1 | 4 if self.faults.shared_page_tables => u64::MAX,
            1 | 4 => 0x1_0000_0000 + u64::from(handle) * 0x1000_0000,
            2 => {
                self.rule(self.heap.is_none() && size == HEAP, "one heap of 64 MiB");
                self.heap = Some(handle);
                WINDOW
            }
            3 => {
                let Some(heap) = self.heap else { return Err(libc::ENOENT) };
                if self.buffers[&heap].mapped == 0 {
                    return Err(libc::EAGAIN);
                }
                heap_offset = self.heap_used;
                self.heap_used += size.next_multiple_of(32 << 10);
                if self.heap_used > HEAP {
                    return Err(libc::ENOMEM);
                }
                WINDOW + heap_offset as u64
            }
            _ => return Err(libc::EINVAL),
        };
        // What the device sees is anything but zeros until it is flushed.
        let device = if kind == 2 { Vec::new() } else { vec![0xCD; size] };
        let memory =
            Memory { kind, size, mapped: 0, layout: None, maps: 0, device, address, heap_offset };
        self.buffers.insert(handle, memory);
        argument.set(28, handle);
        Ok(())
    }

    fn buffer_info(&mut self, argument: Raw) -> Result<(), Errno> {
        let handle = argument.get::<u32>(16);
        let heap = self.heap.and_then(|heap| self.buffers.get(&heap)).map_or(0, |heap| heap.mapped);
        let Some(memory) = self.buffers.get(&handle) else { return Err(libc::ENOENT) };
        let user = match memory.kind {
            3 => (heap + memory.heap_offset) as u64,
            _ => u64::MAX,
        };
        argument.set(24, if memory.kind == 3 { u64::MAX } else { u64::from(handle) << 32 });
        argument.set(32, user);
        argument.set(40, memory.address);
        Ok(())
    }

    /// Where the processor sees a buffer.
    fn processor_view(&self, memory: &Memory) -> usize {
        match memory.kind {
            3 => self.buffers[&self.heap.unwrap()].mapped + memory.heap_offset,
            _ => memory.mapped,
        }
    }

    fn sync(&mut self, argument: Raw) -> Result<(), Errno> {
        let (handle, direction): (u32, u32) = (argument.get(0), argument.get(4));
        let (offset, size): (u64, u64) = (argument.get(8), argument.get(16));
        let (offset, size) = (offset as usize, size as usize);
        let Some(mut memory) = self.buffers.remove(&handle) else { return Err(libc::ENOENT) };
        if offset + size > memory.size {
            self.buffers.insert(handle, memory);
            return Err(libc::EINVAL);
        }
        let view = Raw::at((self.processor_view(&memory) + offset) as u64);
        let device = &mut memory.device[offset..offset + size];
        match direction {
            0 => view.read(device),
            _ => view.write(device),
        }
        self.buffers.insert(handle, memory);
        Ok(())
    }

    fn create_context(&mut self, argument: Raw) -> Result<(), Errno> {
        let qos: u64 = argument.get(16);
        if qos == 0 {
            return Err(libc::EFAULT);
        }
        if self.heap.is_none() {
            return Err(libc::ENOENT);
        }
        let (ext, flags): (u64, u64) = (argument.get(0), argument.get(8));
        let (opc, tiles): (u32, u32) = (argument.get(32), argument.get(36));
        self.rule(ext == 0 && flags == 0, "CREATE_HWCTX extensions");
        self.rule(opc == 2048, "operations a cycle are the xclbin's");
        self.rule(tiles == 16, "four columns of four cores");
        if self.faults.contexts + self.contexts.len() >= 6 {
            return Err(libc::EINVAL);
        }
        self.next_handle += 1;
        let (handle, syncobj) = (self.next_handle, self.next_handle + 5000);
        self.contexts.insert(handle, None);
        self.syncobjs.push(syncobj);
        argument.set(48, handle);
        argument.set(52, syncobj);
        Ok(())
    }

    fn configure(&mut self, argument: Raw) -> Result<(), Errno> {
        let (handle, kind): (u32, u32) = (argument.get(0), argument.get(4));
        let (value, size): (u64, u32) = (argument.get(8), argument.get(16));
        let config = Raw::at(value);
        let (count, unit): (u16, u32) = (config.get(0), config.get(8));
        self.rule(kind == 0 && count == 1 && size == 16, "one unit in sixteen bytes");
        let flushed = self.buffers.get(&unit).is_some_and(|memory| {
            memory.kind == 3 && memory.device.starts_with(&(0..200).collect::<Vec<u8>>())
        });
        self.rule(flushed, "the unit's PDI is in a flushed DEV buffer");
        match self.contexts.get_mut(&handle) {
            Some(pdi @ None) => *pdi = Some(unit),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    fn execute(&mut self, argument: Raw) -> Result<(), Errno> {
        let (context, kind): (u32, u32) = (argument.get(16), argument.get(20));
        let (command, list): (u64, u64) = (argument.get(24), argument.get(32));
        let (count, arguments): (u32, u32) = (argument.get(40), argument.get(44));
        self.rule(kind == 0 && count == 1, "one command buffer");
        if !matches!(self.contexts.get(&context), Some(Some(_))) {
            return Err(libc::EINVAL);
        }
        let list = Raw::at(list);
        let handles: Vec<u32> = (0..arguments as usize).map(|index| list.get(index * 4)).collect();
        let mut unique = handles.clone();
        unique.sort_unstable();
        unique.dedup();
        if unique.len() != handles.len() {
            return Err(libc::EALREADY);
        }
        self.queue.push_back((self.sequence, command as u32, handles));
        let in_flight = self.queue.len();
        self.rule(in_flight <= 4, "at most four commands in flight");
        argument.set(48, self.sequence);
        self.sequence += 1;
        Ok(())
    }

    fn wait(&mut self, argument: Raw) -> Result<(), Errno> {
        let (handles, points): (u64, u64) = (argument.get(0), argument.get(8));
        let (deadline, count): (i64, u32) = (argument.get(16), argument.get(24));
        let (syncobj, point): (u32, u64) = (Raw::at(handles).get(0), Raw::at(points).get(0));
        self.rule(count == 1 && deadline > 0, "one point and an absolute time");
        self.rule(self.syncobjs.contains(&syncobj), "the context's timeline");
        if self.faults.hang {
            return Err(libc::ETIME);
        }
        while self.queue.front().is_some_and(|(sequence, ..)| *sequence <= point) {
            let (_, command, handles) = self.queue.pop_front().unwrap();
            self.run(command, &handles);
        }
        Ok(())
    }

    /// The words of a command, which the kernel reads through the processor's view.
    fn words(&mut self, handle: u32) -> Vec<u32> {
        let Some(memory) = self.buffers.get(&handle) else { return Vec::new() };
        let is_command = memory.kind == 4 && memory.mapped != 0;
        let view = Raw::at(memory.mapped as u64);
        if !is_command {
            self.violation("a command is no mapped CMD buffer");
            return Vec::new();
        }
        let header: u32 = view.get(0);
        let count = header as usize >> 12 & 0x7FF;
        (0..=count).map(|index| view.get(index * 4)).collect()
    }

    fn run(&mut self, handle: u32, handles: &[u32]) {
        let words = self.words(handle);
        if words.is_empty() {
            return;
        }
        self.rule(words[0] & 0xF == 1 && words[0] >> 28 == 3, "a new command of type 3");
        match words[0] >> 23 & 0x1F {
            0 => self.run_one(&words, handles),
            19 => {
                let count = words[1] as usize;
                self.rule(words.len() == 7 + 2 * count && count <= 36, "a chain's length");
                for index in 0..count {
                    let inner = self.words(words[7 + 2 * index]);
                    if !inner.is_empty() {
                        self.run_one(&inner, handles);
                    }
                }
            }
            opcode => self.violation(format!("opcode {opcode}")),
        }
        let state = self.faults.state.unwrap_or(4);
        let view = Raw::at(self.buffers[&handle].mapped as u64);
        view.set(0, words[0] & !0xF | state);
    }

    fn run_one(&mut self, words: &[u32], handles: &[u32]) {
        let long = |index: usize| u64::from(words[index]) | u64::from(words[index + 1]) << 32;
        self.rule(words.len() == 17 && words[1] == 1 && long(2) == 3, "a START_CU packet");
        let instructions = self.at_address(long(4));
        let length = words[6] as usize * 4;
        let stream = instructions.and_then(|handle| {
            self.rule(handles.contains(&handle), "instructions are among the arguments");
            let memory = &self.buffers[&handle];
            (memory.kind == 3).then(|| memory.device[..length].to_vec())
        });
        let sound = stream.is_some_and(|stream| {
            stream[..4] == 0x0603_0100_u32.to_le_bytes()
                && stream[12..16] == (length as u32).to_le_bytes()
        });
        self.rule(sound, "flushed instructions in a DEV buffer, with their length in words");
        let mut found = Vec::new();
        for address in (7..17).step_by(2).map(long).take_while(|&address| address != 0) {
            match self.at_address(address) {
                Some(handle) => found.push(handle),
                None => self.violation("a data buffer's address"),
            }
        }
        let named = found.iter().all(|handle| handles.contains(handle));
        self.rule(named, "data buffers are among the arguments");
        let mut data: Vec<Vec<u8>> =
            found.iter().map(|handle| self.buffers[handle].device.clone()).collect();
        if let Some(kernel) = &self.kernel {
            kernel(&mut data);
        }
        for (handle, data) in found.iter().zip(data) {
            self.buffers.get_mut(handle).unwrap().device = data;
        }
        self.commands += 1;
    }

    fn at_address(&self, address: u64) -> Option<u32> {
        let is_at = |memory: &Memory| match memory.address {
            u64::MAX => memory.mapped as u64 == address,
            start => start == address,
        };
        let mut buffers = self.buffers.iter();
        buffers.find(|(_, memory)| memory.kind != 2 && is_at(memory)).map(|(&handle, _)| handle)
    }

    fn info(&mut self, argument: Raw) -> Result<(), Errno> {
        let (parameter, size): (u32, u32) = (argument.get(0), argument.get(4));
        let buffer = Raw::at(argument.get(8));
        match parameter {
            1 if size == 64 => {
                buffer.set(0, 0x20_0000_u32);
                buffer.set(4, [5_u16, 6]);
                buffer.set(8, [1_u32, 1]);
                buffer.set(16, [4_u16, 2]);
                buffer.set(32, [1_u16, 1]);
                buffer.set(48, [1_u16, 0]);
            }
            2 if size == 8 => buffer.set(0, [1_u32, 1]),
            5 => {
                let count = self.faults.contexts + self.contexts.len();
                for index in 0..count {
                    buffer.set(index * 64, [index as u32, 1, 4, 0]);
                    buffer.set(index * 64 + 16, 4321_i64);
                }
                // Newer drivers return the room that is left.
                argument.set(4, size - count as u32 * 64);
            }
            8 if size == 16 => buffer.set(0, [1_u32, 5, 2, 388]),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    fn version(&mut self, argument: Raw) {
        let name = self.faults.name.unwrap_or("amdxdna_accel_driver").as_bytes();
        argument.set(0, [0_i32, 6, 0]);
        let room: u64 = argument.get(16);
        let target = Raw::at(argument.get(24));
        target.write(&name[..name.len().min(room as usize)]);
        argument.set(16, name.len() as u64);
    }

    pub(super) fn request(&mut self, number: u64, argument: Raw) -> Result<(), Errno> {
        let handle = argument.get::<u32>(0);
        match number {
            0xC040_6400 => self.version(argument),
            0xC010_6447 => return self.info(argument),
            0xC020_6443 => return self.create_buffer(argument),
            0xC030_6444 => return self.buffer_info(argument),
            0xC018_6445 => return self.sync(argument),
            0xC038_6440 => return self.create_context(argument),
            0xC018_6442 => return self.configure(argument),
            0xC038_6446 => return self.execute(argument),
            0xC030_64CA => return self.wait(argument),
            0xC008_6441 => {
                let known = self.contexts.remove(&handle).is_some();
                self.rule(known, "a context is destroyed once");
                self.queue.clear();
            }
            0xC008_64C0 => self.syncobjs.retain(|&syncobj| syncobj != handle),
            0x4008_6409 => match self.buffers.remove(&handle) {
                Some(memory) => {
                    self.rule(memory.mapped == 0, "a buffer is unmapped before it is closed");
                    let heap_in_use = memory.kind == 2
                        && (self.buffers.values().any(|memory| memory.kind == 3)
                            || !self.contexts.is_empty());
                    self.rule(!heap_in_use, "the heap goes after what is in it");
                    let in_use = self.contexts.values().any(|&pdi| pdi == Some(handle));
                    self.rule(!in_use, "PDIs stay until the context is gone");
                }
                None => return Err(libc::EINVAL),
            },
            0xC00C_642D => argument.set(8, 9000_i32 + handle as i32),
            // What this process exported has a handle already, which is the answer.
            0xC00C_642E => {
                let handle = (argument.get::<i32>(8) - 9000) as u32;
                if !self.buffers.contains_key(&handle) {
                    return Err(libc::EBADF);
                }
                argument.set(0, handle);
            }
            _ => return Err(libc::ENOTTY),
        }
        Ok(())
    }

    /// The node may be closed now.
    pub(super) fn rule_open(&mut self) {
        let empty = self.buffers.is_empty() && self.contexts.is_empty();
        self.rule(self.open && empty, "the node is closed last");
    }
}
