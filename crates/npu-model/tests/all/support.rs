//! System calls by hand.

use std::time::{Duration, Instant};

use pianola_npu_model::{Config, Element, Errno, Kernel, Model, artefacts, parse_kernels};

pub const CREATE_HWCTX: u64 = 0xC038_6440;
pub const DESTROY_HWCTX: u64 = 0xC008_6441;
pub const CONFIG_HWCTX: u64 = 0xC018_6442;
pub const CREATE_BO: u64 = 0xC020_6443;
pub const GET_BO_INFO: u64 = 0xC030_6444;
pub const SYNC_BO: u64 = 0xC018_6445;
pub const EXEC_CMD: u64 = 0xC038_6446;
pub const GET_INFO: u64 = 0xC010_6447;
pub const SET_STATE: u64 = 0xC010_6448;
pub const GET_ARRAY: u64 = 0xC018_644A;
pub const VERSION: u64 = 0xC040_6400;
pub const GEM_CLOSE: u64 = 0x4008_6409;
pub const HANDLE_TO_FD: u64 = 0xC00C_642D;
pub const FD_TO_HANDLE: u64 = 0xC00C_642E;
pub const SYNCOBJ_DESTROY: u64 = 0xC008_64C0;
pub const TIMELINE_WAIT: u64 = 0xC030_64CA;

pub const SHARE: u32 = 1;
pub const HEAP: u32 = 2;
pub const DEV: u32 = 3;
pub const CMD: u32 = 4;
pub const HEAP_SIZE: u64 = 64 << 20;

/// An argument of 32 bit words.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub fn low(value: u64) -> u32 {
    value as u32
}

pub fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

/// A device and one open file.
pub struct Npu {
    pub model: Model,
    pub fd: i32,
}

/// A mapped buffer.
#[derive(Clone, Copy)]
pub struct Mapped {
    pub handle: u32,
    pub address: *mut u8,
    pub size: usize,
}

// SAFETY: only plain memory, which tests write from one thread at a time.
unsafe impl Send for Mapped {}

impl Mapped {
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.size);
        // SAFETY: in the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address.add(offset), bytes.len())
        }
    }

    pub fn read(&self, length: usize) -> Vec<u8> {
        assert!(length <= self.size);
        // SAFETY: in the mapping.
        unsafe { std::slice::from_raw_parts(self.address, length) }.to_vec()
    }
}

impl Npu {
    pub fn new(config: Config) -> Npu {
        let model = Model::new(config);
        let fd = model.open().unwrap();
        Npu { model, fd }
    }

    pub fn plain() -> Npu {
        Npu::new(Config::default())
    }

    pub fn call_on(&self, fd: i32, number: u64, argument: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: pointers in arguments are of live buffers, or meant to be bad.
        unsafe { self.model.ioctl(fd, number, argument.as_mut_ptr()) }
            .map(|zero| assert_eq!(zero, 0))
    }

    pub fn call(&self, number: u64, argument: &mut [u8]) -> Result<(), Errno> {
        self.call_on(self.fd, number, argument)
    }

    pub fn call_words(&self, number: u64, argument: &[u32]) -> Result<Vec<u8>, Errno> {
        let mut bytes = words(argument);
        self.call(number, &mut bytes).map(|()| bytes)
    }

    pub fn create(&self, kind: u32, size: u64) -> Result<u32, Errno> {
        let bytes = self.call_words(CREATE_BO, &[0, 0, 0, 0, low(size), high(size), kind, 0])?;
        Ok(u32_at(&bytes, 28))
    }

    /// map_offset, vaddr, xdna_addr.
    pub fn info(&self, handle: u32) -> Result<[u64; 3], Errno> {
        let bytes = self.call_words(GET_BO_INFO, &[0, 0, 0, 0, handle, 0, 0, 0, 0, 0, 0, 0])?;
        Ok([u64_at(&bytes, 24), u64_at(&bytes, 32), u64_at(&bytes, 40)])
    }

    pub fn map_at(&self, handle: u32, size: usize, address: *mut u8) -> Result<Mapped, Errno> {
        let [offset, ..] = self.info(handle)?;
        let flags = libc::MAP_SHARED | if address.is_null() { 0 } else { libc::MAP_FIXED };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fixed address was reserved by `heap`.
        let address =
            unsafe { self.model.mmap(self.fd, address, size, protection, flags, offset) }?;
        Ok(Mapped { handle, address, size })
    }

    pub fn share(&self, size: usize) -> Mapped {
        let handle = self.create(SHARE, size as u64).unwrap();
        self.map_at(handle, size, std::ptr::null_mut()).unwrap()
    }

    pub fn command(&self) -> Mapped {
        let handle = self.create(CMD, 4096).unwrap();
        self.map_at(handle, 4096, std::ptr::null_mut()).unwrap()
    }

    /// A heap, mapped at a multiple of its size.
    pub fn heap(&self) -> Mapped {
        let handle = self.create(HEAP, HEAP_SIZE).unwrap();
        self.map_at(handle, HEAP_SIZE as usize, reserve()).unwrap()
    }

    /// A DEV buffer with content, flushed.
    pub fn dev(&self, content: &[u8]) -> Mapped {
        let handle = self.create(DEV, content.len() as u64).unwrap();
        let [_, address, _] = self.info(handle).unwrap();
        let mapped = Mapped { handle, address: address as *mut u8, size: content.len() };
        mapped.write(0, content);
        self.sync(handle, 0, 0, content.len() as u64).unwrap();
        mapped
    }

    pub fn sync(&self, handle: u32, direction: u32, offset: u64, size: u64) -> Result<(), Errno> {
        let argument = [handle, direction, low(offset), high(offset), low(size), high(size)];
        self.call_words(SYNC_BO, &argument).map(drop)
    }

    /// Context and syncobj.
    pub fn context(&self, tiles: u32) -> Result<(u32, u32), Errno> {
        let quality = [0u32, 0, 0, 0, 0, 0x180];
        let at = quality.as_ptr() as u64;
        let bytes = self.call_words(
            CREATE_HWCTX,
            &[0, 0, 0, 0, low(at), high(at), 0, 0, 2048, tiles, 0, 0, 0, 0],
        )?;
        Ok((u32_at(&bytes, 48), u32_at(&bytes, 52)))
    }

    pub fn configure(&self, context: u32, units: &[u32]) -> Result<(), Errno> {
        let mut config = vec![units.len() as u32, 0];
        units.iter().for_each(|unit| config.extend([*unit, 0]));
        self.configure_raw(context, &words(&config))
    }

    pub fn configure_raw(&self, context: u32, config: &[u8]) -> Result<(), Errno> {
        let at = config.as_ptr() as u64;
        let argument = [context, 0, low(at), high(at), config.len() as u32, 0];
        self.call_words(CONFIG_HWCTX, &argument).map(drop)
    }

    pub fn exec(&self, context: u32, command: u32, arguments: &[u32]) -> Result<u64, Errno> {
        let at = arguments.as_ptr() as u64;
        let count = arguments.len() as u32;
        let argument = [0, 0, 0, 0, context, 0, command, 0, low(at), high(at), 1, count, 0, 0];
        self.call_words(EXEC_CMD, &argument).map(|bytes| u64_at(&bytes, 48))
    }

    pub fn wait(&self, syncobj: u32, point: u64, limit: Duration) -> Result<(), Errno> {
        self.wait_flags(syncobj, point, limit, 0)
    }

    pub fn wait_flags(
        &self,
        syncobj: u32,
        point: u64,
        limit: Duration,
        flags: u32,
    ) -> Result<(), Errno> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is live.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        let until =
            (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64 + limit.as_nanos() as u64;
        let (handles, points) = (&raw const syncobj as u64, &raw const point as u64);
        let argument = [
            low(handles),
            high(handles),
            low(points),
            high(points),
            low(until),
            high(until),
            1,
            flags,
            0,
            0,
            0,
            0,
        ];
        self.call_words(TIMELINE_WAIT, &argument).map(drop)
    }
}

impl Drop for Npu {
    fn drop(&mut self) {
        let _ = self.model.close(self.fd);
    }
}

/// An address that is a multiple of the heap's size, with room for it.
pub fn reserve() -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let size = 2 * HEAP_SIZE as usize;
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    ((at as u64).next_multiple_of(HEAP_SIZE)) as *mut u8
}

/// A product that is small enough for a debug build.
pub const PRODUCT: &str = "matmul i8 i32 128x64x64 tile=16x32x16 columns=4";
pub const PATIENCE: Duration = Duration::from_secs(100);

/// A device that is set up for one kernel.
pub struct Ready {
    pub npu: Npu,
    pub kernel: Kernel,
    pub context: u32,
    pub syncobj: u32,
    pub instructions: Mapped,
    pub instruction_bytes: usize,
    pub command: Mapped,
    /// The kernel's arguments, the last is the output.
    pub tensors: Vec<Mapped>,
}

impl Ready {
    pub fn new(config: Config, line: &str) -> Ready {
        let npu = Npu::new(config);
        let kernel = parse_kernels(line).unwrap().remove(0).kernel;
        let made = artefacts::make(&kernel);
        npu.model.register(&made.pdi, None, kernel.clone()).unwrap();
        npu.heap();
        let pdi = npu.dev(&made.pdi);
        let instructions = npu.dev(&made.instructions);
        let (context, syncobj) = npu.context(16).unwrap();
        npu.configure(context, &[pdi.handle]).unwrap();
        let tensors: Vec<Mapped> =
            kernel.argument_bytes().into_iter().map(|size| npu.share(size)).collect();
        for (index, tensor) in tensors.iter().enumerate() {
            if index + 1 < tensors.len() {
                let mut content = noise(tensor.size, index as u32 + 1);
                if kernel.output() != Element::I32 {
                    // Of bf16: below two, so that no sum is infinite or NaN.
                    content.iter_mut().skip(1).step_by(2).for_each(|byte| *byte &= 0xBF);
                }
                tensor.write(0, &content);
            }
            npu.sync(tensor.handle, 0, 0, tensor.size as u64).unwrap();
        }
        let command = npu.command();
        let instruction_bytes = made.instructions.len();
        Ready { npu, kernel, context, syncobj, instructions, instruction_bytes, command, tensors }
    }

    /// The address by which the device knows a buffer.
    pub fn device_address(&self, tensor: &Mapped) -> u64 {
        match self.npu.info(tensor.handle).unwrap() {
            [_, vaddr, u64::MAX] => vaddr,
            [.., address] => address,
        }
    }

    /// START_CU.
    pub fn packet(&self) -> Vec<u8> {
        let instructions = self.device_address(&self.instructions);
        let count = (self.instruction_bytes / 4) as u32;
        let mut packet = vec![0, 1, 3, 0, low(instructions), high(instructions), count];
        for tensor in &self.tensors {
            let address = self.device_address(tensor);
            packet.extend([low(address), high(address)]);
        }
        packet.resize(17, 0);
        packet[0] = 0x3000_0001 | (packet.len() as u32 - 1) << 12;
        words(&packet)
    }

    pub fn handles(&self) -> Vec<u32> {
        let tensors = self.tensors.iter().map(|tensor| tensor.handle);
        std::iter::once(self.instructions.handle).chain(tensors).collect()
    }

    pub fn submit(&self) -> Result<u64, Errno> {
        self.command.write(0, &self.packet());
        self.npu.exec(self.context, self.command.handle, &self.handles())
    }

    /// Submits what is in the command buffer, and returns the state it ends in.
    pub fn run_packet(&self, handles: &[u32]) -> u32 {
        let seq = self.npu.exec(self.context, self.command.handle, handles).unwrap();
        self.npu.wait(self.syncobj, seq, PATIENCE).unwrap();
        self.state()
    }

    pub fn run(&self) -> u32 {
        self.command.write(0, &self.packet());
        self.run_packet(&self.handles())
    }

    pub fn state(&self) -> u32 {
        u32_at(&self.command.read(4), 0) & 0xF
    }

    pub fn output(&self) -> &Mapped {
        self.tensors.last().unwrap()
    }

    /// The output after an invalidation.
    pub fn result(&self) -> Vec<u8> {
        let output = self.output();
        self.npu.sync(output.handle, 1, 0, output.size as u64).unwrap();
        output.read(output.size)
    }

    pub fn expected(&self) -> Vec<u8> {
        let inputs: Vec<Vec<u8>> =
            self.tensors[..self.tensors.len() - 1].iter().map(|it| it.read(it.size)).collect();
        self.kernel.run(&inputs)
    }

    pub fn complaints(&self) -> String {
        self.npu.model.complaints().join("\n")
    }
}

/// Bytes that look random.
pub fn noise(length: usize, mut seed: u32) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Milliseconds that something takes.
pub fn time<T>(run: impl FnOnce() -> T) -> (T, u128) {
    let start = Instant::now();
    let result = run();
    (result, start.elapsed().as_millis())
}

pub fn get(npu: &Npu, param: u32, size: usize) -> Result<(Vec<u8>, u32), Errno> {
    let mut buffer = vec![0u8; size];
    let at = buffer.as_mut_ptr() as u64;
    let bytes = npu.call_words(GET_INFO, &[param, size as u32, low(at), high(at)])?;
    Ok((buffer, u32_at(&bytes, 4)))
}
