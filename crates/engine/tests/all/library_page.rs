//! The page about the library shows the example, which compiles with the tests.

#[test]
fn the_tutorial_shows_the_example() {
    let page = include_str!("../../../../docs/tutorials/library.md");
    let example = include_str!("../../examples/library.rs");
    let shown = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(shown, Some(example), "copy crates/engine/examples/library.rs into the page");
}
