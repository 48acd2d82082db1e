//! Buffers: creation, addresses, mapping, views, export.

use pianola_npu_model::{Addressing, Config, Errno};

use crate::support::*;

#[test]
fn requests_that_are_not() {
    let npu = Npu::plain();
    let mut argument = [0; 64];
    assert_eq!(npu.call(0x5401, &mut argument), Err(Errno::ENOTTY));
    assert_eq!(npu.call(0xC010_644B, &mut argument), Err(Errno::EINVAL));
    assert_eq!(npu.call(0xC028_6443, &mut argument), Err(Errno::EINVAL), "CREATE_BO of 40 bytes");
    assert_eq!(npu.call_on(9999, CREATE_BO, &mut argument), Err(Errno::EBADF));
    // SAFETY: a bad address is an error.
    let bad = unsafe { npu.model.ioctl(npu.fd, CREATE_BO, std::ptr::dangling_mut()) };
    assert_eq!(bad, Err(Errno::EFAULT));
}

#[test]
fn version() {
    let npu = Npu::plain();
    let mut name = [0u8; 64];
    let at = name.as_mut_ptr() as u64;
    let mut argument = [0u32; 16];
    (argument[4], argument[6], argument[7]) = (64, low(at), high(at));
    let bytes = npu.call_words(VERSION, &argument).unwrap();
    assert_eq!((u32_at(&bytes, 0), u32_at(&bytes, 4)), (0, 6));
    assert_eq!(&name[..u64_at(&bytes, 16) as usize], b"amdxdna_accel_driver");
}

#[test]
fn creation() {
    let npu = Npu::plain();
    let create = |words: &[u32]| npu.call_words(CREATE_BO, words).map(|bytes| u32_at(&bytes, 28));
    assert_eq!(create(&[1, 0, 0, 0, 4096, 0, SHARE, 0]), Err(Errno::EINVAL), "flags");
    assert_eq!(create(&[0, 0, 8, 0, 4096, 0, SHARE, 0]), Err(Errno::EINVAL), "vaddr");
    assert_eq!(npu.create(0, 4096), Err(Errno::EINVAL), "type");
    assert_eq!(npu.create(5, 4096), Err(Errno::EINVAL), "type");
    assert_eq!(npu.create(SHARE, 0), Err(Errno::EINVAL), "size");
    assert_eq!(npu.create(SHARE, u64::MAX), Err(Errno::EINVAL));
    assert_eq!(npu.create(SHARE, 1 << 50), Err(Errno::ENOMEM));
    assert_eq!(npu.create(CMD, 33 << 10), Err(Errno::EINVAL), "a command of more than 32 KiB");
    assert_eq!(npu.create(SHARE, 1).unwrap(), 1);
    assert_eq!(npu.create(CMD, 4096).unwrap(), 2);
}

#[test]
fn the_heap_comes_first() {
    let npu = Npu::plain();
    assert_eq!(npu.create(DEV, 4096), Err(Errno::EAGAIN), "no heap");
    assert_eq!(npu.create(HEAP, 1 << 20), Err(Errno::EINVAL), "not 64 MiB");
    assert_eq!(npu.create(HEAP, 2 * HEAP_SIZE), Err(Errno::ENOSPC), "more than 64 MiB");
    let heap = npu.create(HEAP, HEAP_SIZE).unwrap();
    assert_eq!(npu.create(HEAP, HEAP_SIZE), Err(Errno::ENOSPC), "a second heap");
    assert_eq!(npu.create(DEV, 4096), Err(Errno::EAGAIN), "not mapped");
    npu.map_at(heap, HEAP_SIZE as usize, reserve()).unwrap();
    let first = npu.create(DEV, 4096).unwrap();
    let second = npu.create(DEV, 100).unwrap();
    let [offset, vaddr, address] = npu.info(second).unwrap();
    assert_eq!(
        (offset, address),
        (u64::MAX, 0x400_0000 + 32 * 1024),
        "32 KiB apart, in the window"
    );
    assert_eq!(vaddr % HEAP_SIZE, 32 * 1024, "a DEV buffer is a part of the heap's mapping");
    assert_eq!(npu.create(DEV, HEAP_SIZE + 1), Err(Errno::EINVAL));
    assert_eq!(npu.create(DEV, HEAP_SIZE), Err(Errno::ENOSPC));
    npu.call_words(GEM_CLOSE, &[first, 0]).unwrap();
    let again = npu.create(DEV, 4096).unwrap();
    assert_eq!(npu.info(again).unwrap()[2], 0x400_0000);
}

#[test]
fn info_and_close() {
    let npu = Npu::plain();
    assert_eq!(npu.info(1), Err(Errno::ENOENT));
    let handle = npu.create(SHARE, 4096).unwrap();
    for index in [0, 2, 5] {
        let mut argument = [0, 0, 0, 0, handle, 0, 0, 0, 0, 0, 0, 0];
        argument[index] = 1;
        assert_eq!(npu.call_words(GET_BO_INFO, &argument), Err(Errno::EINVAL), "word {index}");
    }
    assert_eq!(npu.info(handle).unwrap()[1..], [u64::MAX, u64::MAX], "not mapped yet");
    assert_eq!(npu.call_words(GEM_CLOSE, &[7, 0]), Err(Errno::EINVAL));
    npu.call_words(GEM_CLOSE, &[handle, 0]).unwrap();
    assert_eq!(npu.info(handle), Err(Errno::ENOENT));
}

#[test]
fn addresses_of_share_buffers() {
    for addressing in [Addressing::UserImplied, Addressing::User, Addressing::Dma] {
        let npu = Npu::new(Config { addressing, ..Config::default() });
        let buffer = npu.share(8192);
        let [_, vaddr, address] = npu.info(buffer.handle).unwrap();
        assert_eq!(vaddr, buffer.address as u64);
        match addressing {
            Addressing::UserImplied => assert_eq!(address, u64::MAX),
            Addressing::User => assert_eq!(address, vaddr),
            Addressing::Dma => assert!(address != vaddr && address != u64::MAX),
        }
    }
}

#[test]
fn mapping() {
    let npu = Npu::plain();
    let buffer = npu.share(8192);
    let [offset, ..] = npu.info(buffer.handle).unwrap();
    let map = |fd, length, flags, offset| {
        // SAFETY: no fixed address.
        unsafe { npu.model.mmap(fd, std::ptr::null_mut(), length, libc::PROT_READ, flags, offset) }
    };
    assert_eq!(map(npu.fd, 8192, libc::MAP_SHARED, offset + 4096), Err(Errno::EINVAL));
    assert_eq!(map(npu.fd, 12288, libc::MAP_SHARED, offset), Err(Errno::EINVAL), "too long");
    assert_eq!(map(npu.fd, 8192, libc::MAP_PRIVATE, offset), Err(Errno::EINVAL));
    assert_eq!(map(77, 8192, libc::MAP_SHARED, offset), Err(Errno::EBADF));
    let other = npu.model.open().unwrap();
    assert_eq!(map(other, 8192, libc::MAP_SHARED, offset), Err(Errno::EINVAL), "of another file");
    let second = map(npu.fd, 8192, libc::MAP_SHARED, offset).unwrap();
    buffer.write(0, b"same pages");
    // SAFETY: just mapped.
    assert_eq!(unsafe { std::slice::from_raw_parts(second, 10) }, b"same pages");
    // SAFETY: nothing refers to the mapping.
    unsafe { npu.model.munmap(buffer.address, 8192) }.unwrap();
    assert_eq!(npu.info(buffer.handle).unwrap()[1], second as u64);
}

#[test]
fn sync_rules() {
    let npu = Npu::plain();
    let buffer = npu.share(4096);
    assert_eq!(npu.sync(99, 0, 0, 64), Err(Errno::ENOENT));
    assert_eq!(npu.sync(buffer.handle, 2, 0, 64), Err(Errno::EINVAL), "direction");
    assert_eq!(npu.sync(buffer.handle, 0, 4096, 64), Err(Errno::EINVAL), "offset at the end");
    assert_eq!(npu.sync(buffer.handle, 0, 1, u64::MAX), Err(Errno::EINVAL), "overflow");
    npu.sync(buffer.handle, 0, 64, 1 << 40).unwrap();
}

#[test]
fn export_and_import() {
    let npu = Npu::plain();
    npu.heap();
    let dev = npu.dev(&[1]);
    let share = npu.share(8192);
    share.write(100, b"shared");
    let export =
        |handle, flags| npu.call_words(HANDLE_TO_FD, &[handle, flags, 0]).map(|b| u32_at(&b, 8));
    assert_eq!(export(dev.handle, 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(export(99, 0), Err(Errno::ENOENT));
    assert_eq!(export(share.handle, 1), Err(Errno::EINVAL), "unknown flags");
    let file = export(share.handle, (libc::O_CLOEXEC | libc::O_RDWR) as u32).unwrap();
    let import = |fd, file: u32| {
        let mut bytes = words(&[0, 0, file]);
        npu.call_on(fd, FD_TO_HANDLE, &mut bytes).map(|()| u32_at(&bytes, 0))
    };
    assert_eq!(import(npu.fd, file), Ok(share.handle), "the same handle in the same file");
    let other = npu.model.open().unwrap();
    assert_eq!(import(other, file), Ok(1));
    assert_eq!(import(other, 9999), Err(Errno::EBADF));
    assert_eq!(import(other, npu.fd as u32), Err(Errno::EINVAL), "not a buffer");
    // The buffer outlives its handle.
    npu.call_words(GEM_CLOSE, &[share.handle, 0]).unwrap();
    let mut info = words(&[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    npu.call_on(other, GET_BO_INFO, &mut info).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no fixed address; the mapping is read at once.
    let text = unsafe {
        let at = npu.model.mmap(
            other,
            std::ptr::null_mut(),
            8192,
            protection,
            libc::MAP_SHARED,
            u64_at(&info, 24),
        );
        std::slice::from_raw_parts(at.unwrap().add(100), 6)
    };
    assert_eq!(text, b"shared");
}

#[test]
fn foreign_memory_only_where_it_is_allowed() {
    // SAFETY: a new descriptor.
    let file = unsafe { libc::memfd_create(c"other device".as_ptr(), 0) };
    // SAFETY: of that descriptor.
    assert_eq!(unsafe { libc::ftruncate(file, 8192) }, 0);
    for (foreign_import, expected) in [(false, Err(Errno::EINVAL)), (true, Ok(1))] {
        let npu = Npu::new(Config { foreign_import, ..Config::default() });
        let imported = npu.call_words(FD_TO_HANDLE, &[0, 0, file as u32]).map(|b| u32_at(&b, 0));
        assert_eq!(imported, expected);
    }
}
