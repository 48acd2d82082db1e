//! What a model is worth: perplexity, and the distance between two models.

use crate::error::EngineError;
use crate::load::Engine;
use crate::sequence::LogitRows;
use pianola_text::SpecialTokens;

/// Result of [`perplexity`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Perplexity {
    /// `exp` of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Standard error of it.
    pub error: f64,
    /// Tokens scored.
    pub scored: usize,
    /// Windows evaluated.
    pub windows: usize,
    /// Tokens in the text.
    pub tokens: usize,
}

/// Log-probability of `token` under the logits.
pub fn log_softmax_at(logits: &[f32], token: u32) -> f64 {
    f64::from(logits[token as usize]) - log_sum(logits)
}

fn log_sum(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - largest).exp())).sum();
    f64::from(largest) + sum.ln()
}

/// Windows of `context` tokens of a text, as llama.cpp cuts them: consecutive, the first token of
/// each replaced by BOS where the model wants one, a rest shorter than a window left out.
fn windows(
    engine: &Engine,
    text: &str,
    context: usize,
) -> Result<(Vec<Vec<u32>>, usize), EngineError> {
    if context < 4 || context > engine.context() {
        return Err(EngineError::Window { found: context, most: engine.context() });
    }
    let tokenizer = &engine.text()?.tokenizer;
    let tokens = tokenizer.encode_prompt(text, SpecialTokens::Plain)?;
    if tokens.len() < context {
        return Err(EngineError::ShortText { found: tokens.len(), needed: context, context });
    }
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let windows = tokens.chunks_exact(context).map(|window| {
        let mut window = window.to_vec();
        if let Some(bos) = bos {
            window[0] = bos;
        }
        window
    });
    Ok((windows.collect(), tokens.len()))
}

/// Perplexity by llama.cpp's protocol: consecutive windows, the second half of each scored.
/// `progress` is called with the windows done, their number, and the perplexity so far.
pub fn perplexity(
    engine: &mut Engine,
    text: &str,
    context: usize,
    progress: &mut dyn FnMut(usize, usize, f64),
) -> Result<Perplexity, EngineError> {
    let (windows, tokens) = windows(engine, text, context)?;
    let (mut sum, mut squares, mut scored) = (0.0, 0.0, 0);
    for (index, window) in windows.iter().enumerate() {
        engine.reset();
        // The last token has no successor to be scored by.
        let rows = &window[..context - 1];
        engine.feed(rows, usize::MAX, LogitRows::From(context / 2), &mut |row, logits| {
            let loss = -log_softmax_at(logits, window[row + 1]);
            sum += loss;
            squares += loss * loss;
            scored += 1;
        })?;
        progress(index + 1, windows.len(), (sum / scored as f64).exp());
    }
    engine.reset();
    let mean = sum / scored as f64;
    let variance = (squares / scored as f64 - mean * mean).max(0.0);
    let perplexity = mean.exp();
    let error = perplexity * (variance / (scored.max(2) - 1) as f64).sqrt();
    Ok(Perplexity { perplexity, error, scored, windows: windows.len(), tokens })
}

/// One position where two models differ.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Deviation {
    /// Window of the text.
    pub window: usize,
    /// Position in the window.
    pub position: usize,
    /// The token that was read there.
    pub token: u32,
    /// KL divergence of the second model's prediction from the first's.
    pub divergence: f64,
    /// Most likely next token of each.
    pub top: (u32, u32),
}

/// Result of [`compare`].
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// Positions compared.
    pub positions: usize,
    /// Mean KL divergence, in nats.
    pub mean_divergence: f64,
    /// Median.
    pub median_divergence: f64,
    /// Largest.
    pub largest_divergence: f64,
    /// Share of positions with the same most likely token.
    pub top_agreement: f64,
    /// Perplexity of each over the same positions.
    pub perplexities: (f64, f64),
    /// The worst positions, worst first.
    pub worst: Vec<Deviation>,
}

/// Compares two engines on a text, window by window, at every position of the second halves.
pub fn compare(
    first: &mut Engine,
    second: &mut Engine,
    text: &str,
    context: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Comparison, EngineError> {
    let vocabularies = (first.config().vocabulary, second.config().vocabulary);
    if vocabularies.0 != vocabularies.1 {
        let reason = format!("vocabularies of {} and {} tokens", vocabularies.0, vocabularies.1);
        return Err(EngineError::Incomparable(reason));
    }
    let (windows, _) = windows(first, text, context)?;
    let (others, _) = self::windows(second, text, context)?;
    if windows != others {
        return Err(EngineError::Incomparable(
            "they split the text into different tokens".to_string(),
        ));
    }
    let mut deviations: Vec<Deviation> = Vec::new();
    let mut losses = (0.0, 0.0);
    let mut expected: Vec<Vec<f32>> = Vec::new();
    for (index, window) in windows.iter().enumerate() {
        let rows = &window[..context - 1];
        let half = context / 2;
        first.reset();
        second.reset();
        expected.clear();
        first.feed(rows, usize::MAX, LogitRows::From(half), &mut |row, logits| {
            losses.0 -= log_softmax_at(logits, window[row + 1]);
            expected.push(logits.to_vec());
        })?;
        second.feed(rows, usize::MAX, LogitRows::From(half), &mut |row, logits| {
            losses.1 -= log_softmax_at(logits, window[row + 1]);
            let (divergence, top) = divergence(&expected[row - half], logits);
            deviations.push(Deviation {
                window: index,
                position: row,
                token: window[row],
                divergence,
                top,
            });
        })?;
        progress(index + 1, windows.len());
    }
    first.reset();
    second.reset();
    let positions = deviations.len();
    let count = positions as f64;
    let same = deviations.iter().filter(|deviation| deviation.top.0 == deviation.top.1).count();
    let mean = deviations.iter().map(|deviation| deviation.divergence).sum::<f64>() / count;
    deviations.sort_by(|a, b| b.divergence.total_cmp(&a.divergence));
    Ok(Comparison {
        positions,
        mean_divergence: mean,
        median_divergence: deviations[positions / 2].divergence,
        largest_divergence: deviations[0].divergence,
        top_agreement: same as f64 / count,
        perplexities: ((losses.0 / count).exp(), (losses.1 / count).exp()),
        worst: deviations.into_iter().take(10).collect(),
    })
}

/// KL divergence of `other` from `expected`, and the most likely token of each.
fn divergence(expected: &[f32], other: &[f32]) -> (f64, (u32, u32)) {
    let (sum_expected, sum_other) = (log_sum(expected), log_sum(other));
    let mut divergence = 0.0;
    for (&p, &q) in expected.iter().zip(other) {
        let log_p = f64::from(p) - sum_expected;
        // What has no probability adds nothing.
        if log_p > -60.0 {
            divergence += log_p.exp() * (log_p - (f64::from(q) - sum_other));
        }
    }
    (divergence.max(0.0), (argmax(expected), argmax(other)))
}

fn argmax(logits: &[f32]) -> u32 {
    let best = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    (0..logits.len()).fold(0, best) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_equals_is_zero_and_of_others_known() {
        let p = [0.0f32, 1.0f32.exp().ln()];
        assert!(divergence(&p, &p).0.abs() < 1e-12);
        // Two outcomes, 1/2 each, against 1/4 and 3/4: ln(4/3) / 2 in nats.
        let (found, top) = divergence(&[0.0, 0.0], &[0.0, 3.0f32.ln()]);
        assert!((found - 0.5 * (4.0f64 / 3.0).ln()).abs() < 1e-6);
        assert_eq!(top, (0, 1));
    }

    #[test]
    fn log_softmax_sums_to_one() {
        let logits = [3.0, -1.0, 100.0, 99.0];
        let total: f64 = (0..4).map(|token| log_softmax_at(&logits, token).exp()).sum();
        assert!((total - 1.0).abs() < 1e-6);
    }
}
