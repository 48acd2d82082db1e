//! Without a script Cargo would leave out the crates that it depends on.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
