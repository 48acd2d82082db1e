//! Calls to Linux that the standard library does not make, on x86-64.

use std::arch::asm;

/// Lets this process use AMX's registers, which are so large that the kernel saves them only for those
/// that asked. True if it does.
pub(crate) fn request_amx() -> bool {
    const SYS_ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    // SAFETY: the call takes two numbers and touches no memory of this process.
    unsafe { call(SYS_ARCH_PRCTL, [ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA, 0, 0, 0, 0]) == 0 }
}

/// Spreads the pages of a mapping that is not yet touched over memory nodes, in turn. False where the
/// kernel refuses: pages then lie where they are first touched.
pub(crate) fn interleave(mapping: &mut [u8], nodes: &[usize]) -> bool {
    const SYS_MBIND: usize = 237;
    const MPOL_INTERLEAVE: usize = 3;
    let mut mask = [0usize; 16];
    for &node in nodes {
        let Some(word) = mask.get_mut(node / 64) else { return false };
        *word |= 1 << (node % 64);
    }
    let (start, bytes) = (mapping.as_mut_ptr() as usize, mapping.len());
    let bits = 8 * size_of_val(&mask);
    // SAFETY: the call changes where pages of the mapping lie, not what they hold, and reads the mask.
    unsafe {
        call(SYS_MBIND, [start, bytes, MPOL_INTERLEAVE, mask.as_ptr() as usize, bits, 0]) == 0
    }
}

/// # Safety
/// That of the system call.
unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: by this function's promise; the kernel changes rax, rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_not_there_are_refused() {
        let mut mapping = memmap2::MmapMut::map_anon(1 << 16).unwrap();
        assert!(!interleave(&mut mapping, &[]));
        assert!(!interleave(&mut mapping, &[5000]));
    }
}
