//! A product on the emulated NPU by a program that knows nothing of the model: this one, run again
//! with the shim preloaded, calls the C library by raw numbers and offsets.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pianola_npu_model::{artefacts, parse_kernels};

const SHAPE: (usize, usize, usize) = (128, 64, 64);
const LINE: &str = "matmul i8 i32 128x64x64 tile=16x32x16 columns=4";
const FOLDER: &str = "NPU_SHIM_TEST_FOLDER";

fn main() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        std::process::exit(child(Path::new(&folder)));
    }
    let folder = std::env::temp_dir().join(format!("pianola-npu-shim-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    parent(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    println!("product on the emulated NPU through the shim: ok");
}

fn parent(folder: &Path) {
    let kernel = parse_kernels(LINE).unwrap().remove(0).kernel;
    let made = artefacts::make(&kernel);
    let (m, k, n) = SHAPE;
    let (a, b) = (noise(m * k, 1), noise(k * n, 2));
    let files: [(&str, &[u8]); 6] = [
        ("a.xclbin", &made.xclbin),
        ("insts.bin", &made.instructions),
        ("pdi", &made.pdi),
        ("a", &a),
        ("b", &b),
        ("accel0", b""),
    ];
    for (name, content) in files {
        std::fs::write(folder.join(name), content).unwrap();
    }
    std::fs::write(folder.join("kernels"), format!("{LINE} xclbin=a.xclbin insts=insts.bin\n"))
        .unwrap();

    for addresses in ["user", "implied", "dma"] {
        let output = run(folder, &[("PIANOLA_NPU_MODEL_ADDRESSES", addresses)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::read(folder.join("c")).unwrap(), product(&a, &b), "{addresses}");
    }
    let log = [("PIANOLA_NPU_MODEL_FAULTS", "error@1"), ("PIANOLA_NPU_MODEL_LOG", "stderr")];
    let output = run(folder, &log);
    assert_eq!(output.status.code(), Some(5), "the state ERROR");
    assert!(String::from_utf8_lossy(&output.stderr).contains("npu (emulated): command 0"));
    let output = run(folder, &[("PIANOLA_NPU_MODEL_FAULTS", "error@x")]);
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&output.stderr).contains("PIANOLA_NPU_MODEL_FAULTS: error@x"));
}

/// This program with the shim in front of the C library.
fn run(folder: &Path, variables: &[(&str, &str)]) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .env("LD_PRELOAD", shim())
        .env(FOLDER, folder)
        .env("PIANOLA_NPU_MODEL_NODE", folder.join("accel0"))
        .env("PIANOLA_NPU_MODEL_KERNELS", folder.join("kernels"))
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// The library beside this program.
fn shim() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let found = program.ancestors().skip(1).take(2).map(|it| it.join("libpianola_npu_shim.so"));
    found.into_iter().find(|path| path.exists()).expect("the shim was not built")
}

fn product(a: &[u8], b: &[u8]) -> Vec<u8> {
    let (m, k, n) = SHAPE;
    let mut c = Vec::new();
    for row in 0..m {
        for column in 0..n {
            let sum: i32 = (0..k)
                .map(|i| i32::from(a[row * k + i] as i8) * i32::from(b[i * n + column] as i8))
                .sum();
            c.extend(sum.to_le_bytes());
        }
    }
    c
}

fn noise(length: usize, mut seed: u32) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// The device node, by the C library only.
struct Node(i32);

impl Node {
    fn call(&self, number: u64, argument: &mut [u32]) {
        // SAFETY: the argument has the request's size, its pointers are of live memory.
        let result = unsafe { libc::ioctl(self.0, number, argument.as_mut_ptr()) };
        assert_eq!(result, 0, "{number:#x}: {}", std::io::Error::last_os_error());
    }

    fn create(&self, kind: u32, size: usize) -> u32 {
        let mut argument = [0, 0, 0, 0, size as u32, 0, kind, 0];
        self.call(0xC020_6443, &mut argument);
        argument[7]
    }

    /// Offset to map, user address, device address.
    fn info(&self, handle: u32) -> [u64; 3] {
        let mut argument = [0, 0, 0, 0, handle, 0, 0, 0, 0, 0, 0, 0];
        self.call(0xC030_6444, &mut argument);
        [6, 8, 10].map(|at| u64::from(argument[at]) | u64::from(argument[at + 1]) << 32)
    }

    fn map(&self, handle: u32, size: usize, at: u64) -> *mut u8 {
        let flags = libc::MAP_SHARED | if at == 0 { 0 } else { libc::MAP_FIXED };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = self.info(handle)[0] as libc::off_t;
        // SAFETY: a fixed address is in a reservation of this program.
        let mapped = unsafe { libc::mmap(at as *mut _, size, protection, flags, self.0, offset) };
        assert_ne!(mapped, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        mapped.cast()
    }

    fn sync(&self, handle: u32, direction: u32, size: usize) {
        self.call(0xC018_6445, &mut [handle, direction, 0, 0, size as u32, 0]);
    }

    /// A SHARE buffer with content, flushed: handle, user address, device address.
    fn share(&self, content: &[u8]) -> (u32, *mut u8, u64) {
        let handle = self.create(1, content.len());
        let at = self.map(handle, content.len(), 0);
        fill(at, content);
        self.sync(handle, 0, content.len());
        let [_, user, device] = self.info(handle);
        (handle, at, if device == u64::MAX { user } else { device })
    }

    /// A DEV buffer with content, flushed: handle, device address.
    fn dev(&self, content: &[u8]) -> (u32, u64) {
        let handle = self.create(3, content.len());
        let [_, user, device] = self.info(handle);
        fill(user as *mut u8, content);
        self.sync(handle, 0, content.len());
        (handle, device)
    }
}

fn fill(at: *mut u8, content: &[u8]) {
    // SAFETY: a mapping of at least that size.
    unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), at, content.len()) };
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Returns the command's state, or zero if it completed.
fn child(folder: &Path) -> i32 {
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let path = CString::new(folder.join("accel0").to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    let node = Node(unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) });
    assert!(node.0 >= 0);
    const HEAP: usize = 64 << 20;
    let heap = node.create(2, HEAP);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping.
    let room = unsafe { libc::mmap(std::ptr::null_mut(), 2 * HEAP, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(room, libc::MAP_FAILED);
    node.map(heap, HEAP, (room as u64).next_multiple_of(HEAP as u64));
    let (pdi, _) = node.dev(&read("pdi"));
    let instructions = read("insts.bin");
    let (stream, stream_address) = node.dev(&instructions);

    let quality = [0u32; 6];
    let [low, high] = halves(quality.as_ptr() as u64);
    let mut context = [0, 0, 0, 0, low, high, 0, 0, 0, 16, 0, 0, 0, 0];
    node.call(0xC038_6440, &mut context);
    let (context, syncobj) = (context[12], context[13]);
    let units = [1u32, 0, pdi, 0];
    let [low, high] = halves(units.as_ptr() as u64);
    node.call(0xC018_6442, &mut [context, 0, low, high, 16, 0]);

    let (m, _, n) = SHAPE;
    let a = node.share(&read("a"));
    let b = node.share(&read("b"));
    let c = node.share(&vec![0; 4 * m * n]);
    let command = node.create(4, 4096);
    let packet_at = node.map(command, 4096, 0);
    let mut packet = vec![0x3001_0001, 1, 3, 0];
    packet.extend(halves(stream_address));
    packet.push((instructions.len() / 4) as u32);
    [a.2, b.2, c.2, 0, 0].iter().for_each(|address| packet.extend(halves(*address)));
    let packet: Vec<u8> = packet.iter().flat_map(|word| word.to_le_bytes()).collect();
    fill(packet_at, &packet);

    let handles = [stream, a.0, b.0, c.0];
    let [low, high] = halves(handles.as_ptr() as u64);
    let mut submit = [0, 0, 0, 0, context, 0, command, 0, low, high, 1, 4, 0, 0];
    node.call(0xC038_6446, &mut submit);
    let point = u64::from(submit[12]) | u64::from(submit[13]) << 32;
    let ([h0, h1], [p0, p1]) = (halves(&raw const syncobj as u64), halves(&raw const point as u64));
    let [t0, t1] = halves(i64::MAX as u64);
    node.call(0xC030_64CA, &mut [h0, h1, p0, p1, t0, t1, 1, 0, 0, 0, 0, 0]);
    // SAFETY: the packet's mapping.
    let state = unsafe { packet_at.cast::<u32>().read_volatile() } & 0xF;
    node.sync(c.0, 1, 4 * m * n);
    // SAFETY: the output's mapping.
    let result = unsafe { std::slice::from_raw_parts(c.1, 4 * m * n) }.to_vec();
    std::fs::write(folder.join("c"), result).unwrap();
    // SAFETY: mapped above, not used any more.
    assert_eq!(unsafe { libc::munmap(c.1.cast(), 4 * m * n) }, 0);
    assert_eq!(node.info(c.0)[1], u64::MAX, "the model saw the mapping go");
    // SAFETY: opened above.
    assert_eq!(unsafe { libc::close(node.0) }, 0);
    if state == 4 { 0 } else { state as i32 }
}
