//! Rows of an array, shared among threads where that pays.

/// Operations for which a thread is worth its start.
const WORTH_A_THREAD: usize = 1 << 20;

/// Calls `each` for every row of `width` values with its index. `work` is the number of operations of
/// all rows. Each row is computed by one thread, so that results do not depend on their number.
pub(super) fn each_row<T: Send>(
    values: &mut [T],
    width: usize,
    work: usize,
    each: impl Fn(usize, &mut [T]) + Sync,
) {
    if values.is_empty() || width == 0 {
        return;
    }
    let rows = values.len() / width;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(work / WORTH_A_THREAD).clamp(1, rows);
    let part = rows.div_ceil(threads);
    let run = |first: usize, values: &mut [T]| {
        for (row, values) in values.chunks_exact_mut(width).enumerate() {
            each(first + row, values);
        }
    };
    let mut parts = values.chunks_mut(part * width).enumerate();
    let own = parts.next();
    std::thread::scope(|scope| {
        for (index, values) in parts {
            let run = &run;
            scope.spawn(move || run(index * part, values));
        }
        if let Some((_, values)) = own {
            run(0, values);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_met_once() {
        for (rows, work) in [(0, 0), (1, 1 << 30), (7, 1), (1001, 1 << 30)] {
            let mut values = vec![0; rows * 3];
            each_row(&mut values, 3, work, |row, values| {
                values.iter_mut().for_each(|value| *value += row + 1);
            });
            assert!(values.iter().enumerate().all(|(at, &value)| value == at / 3 + 1));
        }
    }
}
