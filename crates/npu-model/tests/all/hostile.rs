//! Whatever a process passes, the device answers.

use proptest::prelude::*;

use pianola_npu_model::{Config, Faults, parse_kernels};

use crate::support::*;

const NUMBERS: [u64; 16] = [
    CREATE_HWCTX,
    DESTROY_HWCTX,
    CONFIG_HWCTX,
    CREATE_BO,
    GET_BO_INFO,
    SYNC_BO,
    EXEC_CMD,
    GET_INFO,
    SET_STATE,
    GET_ARRAY,
    VERSION,
    GEM_CLOSE,
    HANDLE_TO_FD,
    FD_TO_HANDLE,
    SYNCOBJ_DESTROY,
    TIMELINE_WAIT,
];

/// Small numbers meet handles, types and flags; addresses below a page are never mapped.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0u32..8, 1 => Just(4096), 1 => 0u32..4096]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_requests(calls in prop::collection::vec((0..NUMBERS.len(), prop::collection::vec(word(), 16)), 1..20)) {
        let npu = Npu::new(Config { root: true, ..Config::default() });
        for (index, argument) in calls {
            let mut bytes = words(&argument);
            let number = NUMBERS[index];
            // Time limits are absolute and past, sizes below a gigabyte: nothing waits, nothing is large.
            if number == CREATE_BO {
                bytes[20..24].fill(0);
            }
            let _ = npu.call(number, &mut bytes);
        }
    }

    #[test]
    fn random_packets(bytes in prop::collection::vec(any::<u8>(), 4..200), opcode in prop::sample::select(vec![0u32, 19, 20])) {
        let ready = Ready::new(Config::default(), PRODUCT);
        let mut packet = bytes;
        // A header that the kernel takes, most of the time.
        let count = (packet.len() / 4) as u32 - 1;
        let header = 0x3000_0001 | opcode << 23 | count << 12;
        packet[..4].copy_from_slice(&header.to_le_bytes());
        ready.command.write(0, &packet);
        let state = ready.run_packet(&ready.handles());
        prop_assert!(state == 1 || state == 5, "{state}");
    }

    #[test]
    fn damaged_packets(at in 0usize..68, value in any::<u8>()) {
        let ready = Ready::new(Config::default(), PRODUCT);
        let mut packet = ready.packet();
        packet[at] = value;
        ready.command.write(0, &packet);
        let state = ready.run_packet(&ready.handles());
        prop_assert!([1, 4, 5].contains(&state), "{state}");
    }

    #[test]
    fn damaged_streams(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut ready = Ready::new(Config::default(), PRODUCT);
        let mut stream = ready.instructions.read(ready.instruction_bytes);
        for (at, value) in changes {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        ready.instructions = ready.npu.dev(&stream);
        let state = ready.run();
        prop_assert!([4, 5].contains(&state), "{state}");
    }

    #[test]
    fn random_text(text in "[a-z0-9=@%,+x_ .-]{0,60}") {
        let _ = text.parse::<Faults>();
        let _ = parse_kernels(&text);
        let _ = parse_kernels(&format!("matmul i8 i32 {text}"));
        let _ = parse_kernels(&format!("attention {text}"));
    }
}
