use super::*;
use std::convert::Infallible;

/// Ten layers of 100 bytes, a head of 50, pages of a byte a layer for 16 tokens.
fn chosen(memory: usize, request: SplitRequest) -> Option<Split> {
    let mut fits = |split: &Split| {
        let layers = split.layers[0];
        Ok::<_, Infallible>(50 + layers * (100 + split.context / 16) <= memory)
    };
    choose(request, &mut fits).unwrap()
}

const REQUEST: SplitRequest = SplitRequest {
    layers: 10,
    devices: 2,
    layers_on_first: None,
    context: None,
    model_context: 32_768,
};

fn split(first: usize, context: usize) -> Option<Split> {
    Some(Split { layers: vec![first, 10 - first], context })
}

#[test]
fn everything_is_on_the_first_device_where_it_fits() {
    assert_eq!(chosen(50 + 10 * (100 + 2048), REQUEST), split(10, 32_768));
}

#[test]
fn the_context_gives_way_before_a_layer_does() {
    assert_eq!(chosen(50 + 10 * (100 + 2048) - 1, REQUEST), split(10, 31_744));
    assert_eq!(chosen(50 + 10 * (100 + 512), REQUEST), split(10, 8192));
    assert_eq!(chosen(50 + 10 * (100 + 256), REQUEST), split(10, 4096));
    let short = SplitRequest { model_context: 2000, ..REQUEST };
    assert_eq!(chosen(50 + 10 * (100 + 125), short), split(10, 2000));
}

#[test]
fn the_fewest_layers_go_to_the_last_device() {
    let memory = 50 + 10 * (100 + 256) - 1;
    // Nine layers at 4096 tokens, and what is then left makes the context longer.
    assert_eq!(chosen(memory, REQUEST), split(9, 4096));
    assert_eq!(chosen(50 + 400, REQUEST), split(1, 4096));
    assert_eq!(chosen(50 + 500, REQUEST), split(1, 6144));
    assert_eq!(chosen(50, REQUEST), split(0, 32_768));
    assert_eq!(chosen(49, REQUEST), None);
}

#[test]
fn what_the_user_says_stays() {
    let asked = SplitRequest { context: Some(32_768), ..REQUEST };
    let memory = 50 + 10 * (100 + 256);
    assert_eq!(chosen(memory, asked), split(1, 32_768));
    let layers = SplitRequest { layers_on_first: Some(4), ..REQUEST };
    assert_eq!(chosen(memory, layers), split(4, 12_288));
    assert_eq!(chosen(1000, layers), None);
    let both = SplitRequest { layers_on_first: Some(4), context: Some(4096), ..REQUEST };
    assert_eq!(chosen(memory, both), split(4, 4096));
}

#[test]
fn several_devices_are_filled_in_turn() {
    let request = SplitRequest { devices: 3, context: Some(16), ..REQUEST };
    let chosen = |memory: [usize; 2]| {
        let mut fits = |split: &Split| {
            let holds = |device: usize| split.layers[device] <= memory[device];
            Ok::<_, Infallible>(holds(0) && holds(1))
        };
        choose(request, &mut fits).unwrap().unwrap().layers
    };
    assert_eq!(chosen([10, 10]), [10, 0, 0]);
    assert_eq!(chosen([6, 10]), [6, 4, 0]);
    assert_eq!(chosen([6, 3]), [6, 3, 1]);
    assert_eq!(chosen([0, 3]), [0, 3, 7]);
    let request = SplitRequest { layers_on_first: Some(4), ..request };
    let mut fits = |split: &Split| Ok::<_, Infallible>(split.layers[1] <= 5);
    assert_eq!(choose(request, &mut fits).unwrap().unwrap().layers, [4, 5, 1]);
}

#[test]
fn a_model_without_room_is_refused_with_its_numbers() {
    let room = Room { free: 16_000_000_000, weights: 15_000_000_000, working: 200_000_000 };
    assert_eq!(room.for_kv(), 0);
    assert_eq!(Room { weights: 13_000_000_000, ..room }.for_kv(), 800_000_000);
    let error = room.refusal("cpu".to_string(), 700_000_000, 4096).to_string();
    assert_eq!(
        error,
        "cpu has no room for the model: 15.0 GB for weights, 200.0 MB for working memory and \
         700.0 MB for keys and values of 4096 tokens; 16.0 GB are free, and an eighth of that is \
         left to other programs"
    );
}
