//! Contexts, information, state.

use pianola_npu_model::{Config, Errno};

use crate::support::*;

#[test]
fn a_context_needs_the_heap() {
    let npu = Npu::plain();
    assert_eq!(npu.context(16), Err(Errno::ENOENT));
    let heap = npu.create(HEAP, HEAP_SIZE).unwrap();
    assert_eq!(npu.context(16), Err(Errno::EAGAIN), "not mapped");
    // A page off the alignment.
    // SAFETY: inside the reservation.
    let off = unsafe { reserve().add(4096) };
    let wrong = npu.map_at(heap, HEAP_SIZE as usize - 8192, off).unwrap();
    assert_eq!(npu.context(16), Err(Errno::EINVAL), "not at a multiple of 64 MiB");
    // SAFETY: nothing refers to it.
    unsafe { npu.model.munmap(wrong.address, wrong.size) }.unwrap();
    let [offset, ..] = npu.info(heap).unwrap();
    let map = |alignment| npu.model.mmap_aligned(npu.fd, offset, HEAP_SIZE as usize, alignment);
    assert_eq!(map(3), Err(Errno::EINVAL));
    assert_eq!(map(HEAP_SIZE as usize).unwrap().as_ptr() as u64 % HEAP_SIZE, 0);
    assert_eq!(npu.context(16), Ok((1, 1)));
}

#[test]
fn creation() {
    let npu = Npu::plain();
    npu.heap();
    let quality = [0u32; 6];
    let at = quality.as_ptr() as u64;
    let good = [0, 0, 0, 0, low(at), high(at), 0, 0, 2048, 16, 0, 0, 0, 0];
    for (index, value, errno) in [
        (0, 1, Errno::EINVAL),
        (2, 1, Errno::EINVAL),
        (9, 0, Errno::EINVAL),
        (9, 3, Errno::EINVAL),
        (9, 24, Errno::EINVAL),
    ] {
        let mut argument = good;
        argument[index] = value;
        assert_eq!(npu.call_words(CREATE_HWCTX, &argument), Err(errno), "word {index}");
    }
    let mut argument = good;
    (argument[4], argument[5]) = (0, 0);
    assert_eq!(npu.call_words(CREATE_HWCTX, &argument), Err(Errno::EFAULT), "qos_p missing");
    npu.call_words(CREATE_HWCTX, &good).unwrap();
}

#[test]
fn six_contexts() {
    let mut npu = Npu::plain();
    npu.heap();
    let contexts: Vec<(u32, u32)> = (0..6).map(|_| npu.context(16).unwrap()).collect();
    assert_eq!(npu.context(16), Err(Errno::EBUSY));
    let other = npu.model.open().unwrap();
    npu.call_words(DESTROY_HWCTX, &[contexts[2].0, 0]).unwrap();
    assert_eq!(npu.context(16), Ok((7, 7)), "numbers are not used again at once");
    npu.model.close(other).unwrap();
    // Closing the file frees all.
    npu.model.close(npu.fd).unwrap();
    npu.fd = npu.model.open().unwrap();
    npu.heap();
    npu.context(16).unwrap();
}

#[test]
fn columns_are_shared_by_contexts_of_one_width() {
    let npu = Npu::plain();
    npu.heap();
    npu.context(16).unwrap();
    npu.context(16).unwrap();
    assert_eq!(npu.context(4), Err(Errno::ENODEV), "all four columns belong to a wider partition");
}

#[test]
fn destruction() {
    let npu = Npu::plain();
    npu.heap();
    let (context, syncobj) = npu.context(16).unwrap();
    assert_eq!(npu.call_words(DESTROY_HWCTX, &[context, 1]), Err(Errno::EINVAL), "pad");
    assert_eq!(npu.call_words(DESTROY_HWCTX, &[9, 0]), Err(Errno::EINVAL));
    npu.call_words(DESTROY_HWCTX, &[context, 0]).unwrap();
    assert_eq!(npu.call_words(DESTROY_HWCTX, &[context, 0]), Err(Errno::EINVAL));
    assert_eq!(npu.call_words(SYNCOBJ_DESTROY, &[syncobj, 1]), Err(Errno::EINVAL), "pad");
    npu.call_words(SYNCOBJ_DESTROY, &[syncobj, 0]).unwrap();
    assert_eq!(npu.call_words(SYNCOBJ_DESTROY, &[syncobj, 0]), Err(Errno::EINVAL));
}

#[test]
fn compute_units() {
    let npu = Npu::plain();
    npu.heap();
    let pdi = npu.dev(&[1, 2, 3, 4]);
    let share = npu.share(4096);
    let (context, _) = npu.context(16).unwrap();
    let fails = |config: &[u32], errno: Errno, why: &str| {
        assert_eq!(npu.configure_raw(context, &words(config)), Err(errno), "{why}");
    };
    fails(&[0, 0], Errno::EINVAL, "no unit");
    fails(&[], Errno::EINVAL, "nothing");
    fails(&[1 | 1 << 16, 0, pdi.handle, 0], Errno::EINVAL, "pad");
    fails(&[1, 0, pdi.handle, 1 << 8], Errno::EINVAL, "pad of a unit");
    fails(&[2, 0, pdi.handle, 0], Errno::EINVAL, "shorter than its count");
    fails(&[1, 0, 99, 0], Errno::EINVAL, "no such handle");
    fails(&[1, 0, share.handle, 0], Errno::EINVAL, "not a DEV buffer");
    fails(&[0; 1025], Errno::E2BIG, "more than a page");
    assert_eq!(npu.configure(context, &[pdi.handle; 33]), Err(Errno::EINVAL), "33 units");
    assert_eq!(npu.configure(9, &[pdi.handle]), Err(Errno::EINVAL), "no such context");
    for (argument, errno) in [
        ([context, 0, 8, 0, 16, 0], Errno::EFAULT),
        ([context, 0, 8, 0, 16, 1], Errno::EINVAL),
        ([context, 1, 0, 0, 0, 0], Errno::EOPNOTSUPP),
        ([context, 7, 0, 0, 0, 0], Errno::EINVAL),
    ] {
        assert_eq!(npu.call_words(CONFIG_HWCTX, &argument), Err(errno));
    }
    npu.configure(context, &[pdi.handle; 32]).unwrap();
    assert_eq!(npu.configure(context, &[pdi.handle]), Err(Errno::EINVAL), "only once");
}

#[test]
fn information() {
    let npu = Npu::plain();
    npu.heap();
    let (metadata, _) = get(&npu, 1, 64).unwrap();
    let half = |at: usize| u16::from_le_bytes([metadata[at], metadata[at + 1]]);
    assert_eq!((half(4), half(6), half(16), half(18), half(32), half(48)), (5, 6, 4, 2, 1, 1));
    assert_eq!(get(&npu, 1, 63).map(drop), Err(Errno::EINVAL), "too small for the answer");
    assert_eq!(get(&npu, 2, 8).unwrap().0[..4], [1, 0, 0, 0]);
    let (clock, _) = get(&npu, 3, 48).unwrap();
    assert_eq!((&clock[..12], u32_at(&clock, 16)), (&b"MP-NPU Clock"[..], 847));
    assert_eq!((&clock[24..31], u32_at(&clock, 40)), (&b"H Clock"[..], 1600));
    assert_eq!(u32_at(&get(&npu, 8, 16).unwrap().0, 0), 1);
    assert_eq!(get(&npu, 9, 8).unwrap().0, [0; 8]);
    assert_eq!(get(&npu, 99, 8).map(drop), Err(Errno::EOPNOTSUPP));
    assert_eq!(npu.call_words(GET_INFO, &[1, 64, 0, 0]), Err(Errno::EFAULT));
    let (id, _) = npu.context(16).unwrap();
    let (contexts, size) = get(&npu, 5, 256).unwrap();
    assert_eq!(size, 192, "what is left of the buffer");
    assert_eq!([0, 4, 8].map(|at| u32_at(&contexts, at)), [id, 1, 4]);
    let resources: Vec<u64> =
        get(&npu, 12, 40).unwrap().0.chunks(8).map(|value| u64_at(value, 0)).collect();
    assert_eq!(resources, [1600, 13, 6, 13, 1]);
    let mut entries = [0u8; 304];
    let at = entries.as_mut_ptr() as u64;
    let bytes = npu.call_words(GET_ARRAY, &[0, 152, 2, 0, low(at), high(at)]).unwrap();
    assert_eq!((u32_at(&bytes, 8), u32_at(&entries, 0), u64_at(&entries, 64)), (1, id, 0x180));
    assert_eq!(npu.call_words(GET_ARRAY, &[0, 152, 0, 0, 0, 0]), Err(Errno::EINVAL));
}

#[test]
fn information_of_the_first_kernels() {
    let npu = Npu::new(Config { version: (0, 0, 0), ..Config::default() });
    npu.heap();
    npu.context(16).unwrap();
    assert_eq!(get(&npu, 5, 256).unwrap().1, 64, "what was needed");
    let mut argument = words(&[5, 63, 0, 0]);
    assert_eq!(npu.call(GET_INFO, &mut argument), Err(Errno::EINVAL), "no room for all");
    assert_eq!(u32_at(&argument, 4), 64);
    assert_eq!(get(&npu, 12, 40).map(drop), Err(Errno::EOPNOTSUPP));
    assert_eq!(npu.call_words(GET_ARRAY, &[0, 152, 1, 0, 0, 0]), Err(Errno::EINVAL));
}

#[test]
fn the_power_mode_is_roots() {
    let set = |npu: &Npu, mode: [u8; 8]| {
        let at = mode.as_ptr() as u64;
        npu.call_words(SET_STATE, &[0, 8, low(at), high(at)]).map(drop)
    };
    assert_eq!(set(&Npu::plain(), [3, 0, 0, 0, 0, 0, 0, 0]), Err(Errno::EACCES));
    let npu = Npu::new(Config { root: true, ..Config::default() });
    assert_eq!(set(&npu, [5, 0, 0, 0, 0, 0, 0, 0]), Err(Errno::EINVAL));
    assert_eq!(set(&npu, [1, 0, 0, 1, 0, 0, 0, 0]), Err(Errno::EINVAL), "pad");
    set(&npu, [1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(get(&npu, 9, 8).unwrap().0[0], 1);
    assert_eq!(u32_at(&get(&npu, 3, 48).unwrap().0, 40), 800);
}
