/// Blocks of `block` values, a power of two, times the orthonormal Hadamard matrix of that size.
pub(crate) fn hadamard(values: &mut [f64], block: usize) {
    let length = (block as f64).sqrt();
    for values in values.chunks_exact_mut(block) {
        let mut distance = 1;
        while distance < block {
            for first in (0..block).filter(|at| at & distance == 0) {
                let (a, b) = (values[first], values[first + distance]);
                (values[first], values[first + distance]) = (a + b, a - b);
            }
            distance *= 2;
        }
        values.iter_mut().for_each(|value| *value /= length);
    }
}

/// The same of f32.
pub(crate) fn rotated(values: &[f32], block: usize) -> Vec<f32> {
    let mut rotated: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
    hadamard(&mut rotated, block);
    rotated.iter().map(|&value| value as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_products_and_undoes_itself() {
        let row = |seed: usize| -> Vec<f64> {
            (0..128).map(|at| ((at * seed + 3) % 31) as f64 - 15.2).collect()
        };
        let product =
            |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() };
        let (a, b) = (row(7), row(11));
        let (mut rotated_a, mut rotated_b) = (a.clone(), b.clone());
        hadamard(&mut rotated_a, 64);
        hadamard(&mut rotated_b, 64);
        assert!((product(&a, &b) - product(&rotated_a, &rotated_b)).abs() < 1e-9);
        hadamard(&mut rotated_a, 64);
        assert!(a.iter().zip(&rotated_a).all(|(a, b)| (a - b).abs() < 1e-12));
    }

    #[test]
    fn one_large_value_becomes_many() {
        let mut values = vec![0.0; 64];
        values[17] = 8.0;
        hadamard(&mut values, 64);
        assert!(values.iter().all(|value| value.abs() == 1.0));
    }
}
