//! The numbers of ioctls.

use crate::errno::Errno;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Version,
    CloseHandle,
    HandleToFd,
    FdToHandle,
    DestroySyncobj,
    WaitTimeline,
    CreateContext,
    DestroyContext,
    ConfigContext,
    CreateBuffer,
    BufferInfo,
    SyncBuffer,
    Execute,
    GetInfo,
    SetState,
    GetArray,
}

/// Request, its number, the bytes of its argument.
const TABLE: [(Request, u32, usize); 16] = [
    (Request::Version, 0xC040_6400, 64),
    (Request::CloseHandle, 0x4008_6409, 8),
    (Request::HandleToFd, 0xC00C_642D, 12),
    (Request::FdToHandle, 0xC00C_642E, 12),
    (Request::DestroySyncobj, 0xC008_64C0, 8),
    (Request::WaitTimeline, 0xC030_64CA, 48),
    (Request::CreateContext, 0xC038_6440, 56),
    (Request::DestroyContext, 0xC008_6441, 8),
    (Request::ConfigContext, 0xC018_6442, 24),
    (Request::CreateBuffer, 0xC020_6443, 32),
    (Request::BufferInfo, 0xC030_6444, 48),
    (Request::SyncBuffer, 0xC018_6445, 24),
    (Request::Execute, 0xC038_6446, 56),
    (Request::GetInfo, 0xC010_6447, 16),
    (Request::SetState, 0xC010_6448, 16),
    (Request::GetArray, 0xC018_644A, 24),
];

/// A request and the size of its argument.
///
/// The kernel takes the low 32 bits. Another type than `d` is `ENOTTY`; a number of that type which
/// the driver has not is `EINVAL`. The DRM core would cut or extend an argument of another size; no
/// driver means to rely on that, so it is `EINVAL` here.
pub(crate) fn decode(number: u64) -> Result<(Request, usize, bool), Errno> {
    let number = number as u32;
    if (number >> 8) & 0xFF != u32::from(b'd') {
        return Err(Errno::ENOTTY);
    }
    let found = TABLE.iter().find(|(_, value, _)| *value == number);
    let &(request, value, size) = found.ok_or(Errno::EINVAL)?;
    Ok((request, size, value >> 31 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_stand_in_the_numbers() {
        for (_, value, size) in TABLE {
            assert_eq!((value >> 16) & 0x3FFF, size as u32);
        }
    }

    #[test]
    fn strangers_are_refused() {
        assert_eq!(decode(0x5401), Err(Errno::ENOTTY));
        assert_eq!(
            decode(0x4010_6449),
            Err(Errno::EINVAL),
            "WAIT_CMD is not in the mainline kernel"
        );
        assert_eq!(decode(0xC040_6440), Err(Errno::EINVAL), "size of CREATE_HWCTX");
        assert_eq!(decode(0xFFFF_FFFF_C038_6440), Ok((Request::CreateContext, 56, true)));
    }
}
