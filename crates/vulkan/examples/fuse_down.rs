//! Would gate + up + down in one launch win? Every workgroup would add its share to every output,
//! with atomics, because no workgroup may wait for another. Prints what those additions cost beside
//! what the launch between costs, for Gemma 3's widths.
//! usage: cargo run --release -p pianola-vulkan --example fuse_down [DEVICE NAME]

use pianola_vulkan::{Gpu, Selection, atomic_additions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let selection = std::env::args().nth(1).map_or(Selection::Best, Selection::Name);
    let gpu = Gpu::open(&selection)?;
    println!("{}", gpu.description().name);
    // Outputs of down, and workgroups of gate + up at 64 rows each.
    for (name, hidden, feed_forward) in
        [("1b", 1152, 6912), ("4b", 2560, 10_240), ("27b", 5376, 21_504)]
    {
        let groups = feed_forward / 64;
        let (atomics, empty) = atomic_additions(&gpu, groups, hidden)?;
        println!(
            "gemma3:{name}: {groups} workgroups adding to {hidden} outputs: {:.1} us; an empty launch with its barrier: {:.1} us",
            1e6 * atomics,
            1e6 * empty
        );
    }
    Ok(())
}
