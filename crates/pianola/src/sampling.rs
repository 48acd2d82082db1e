//! How the next token is sampled: options of the command line, and `/set` of a chat.

use clap::Args;
use pianola_engine::sampler::Sampling;

use crate::failure::Failure;

/// Heading of these options in the long help.
pub const SAMPLING: &str = "Sampling";

/// How the next token is sampled.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = SAMPLING)]
pub struct SamplingOptions {
    /// Temperature: 0 takes the likeliest token, higher values vary more
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value_t = 0.3)]
    #[arg(allow_negative_numbers = true)]
    pub temp: f32,
    /// Sample from this many of the likeliest tokens; 0 or -1: all
    #[arg(long, value_name = "K", default_value = "40", allow_negative_numbers = true)]
    #[arg(value_parser = top_k, hide_short_help = true)]
    pub top_k: usize,
    /// Sample from the likeliest tokens whose probabilities reach this sum; 1: all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub top_p: f32,
    /// Drop tokens below this share of the likeliest token's probability; 0: none
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub min_p: f32,
    /// Make recent tokens less likely; 1: off
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub repeat_penalty: f32,
    /// Subtract this from the logit of every recent token
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub presence_penalty: f32,
    /// Subtract this from the logit of a token once per recent use
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    #[arg(hide_short_help = true)]
    pub frequency_penalty: f32,
    /// Number of recent tokens that the three penalties look at
    #[arg(long, alias = "repeat-last-n", value_name = "N", default_value_t = 64)]
    #[arg(hide_short_help = true)]
    pub penalty_window: usize,
    /// Add X to the logit of token ID; -inf bans it. May be repeated
    #[arg(long, value_name = "ID=X", value_parser = bias, allow_hyphen_values = true)]
    #[arg(hide_short_help = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers [default: -1, a random one]
    ///
    /// The same seed gives the same text. With other requests running, or with guesses, that holds
    /// with --reproducible only. -v and --json show the seed that was used.
    #[arg(long, value_name = "S", value_parser = seed, allow_negative_numbers = true)]
    seed: Option<Seed>,
}

/// A seed as users write it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seed {
    Random,
    Fixed(u64),
}

impl SamplingOptions {
    /// The sampler's options, checked.
    pub fn sampling(&self) -> Result<Sampling, Failure> {
        let sampling = Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.penalty_window,
            logit_bias: self.logit_bias.clone(),
            ..Sampling::default()
        };
        sampling.validate()?;
        Ok(sampling)
    }

    /// The seed, unless it is to be a random one.
    pub fn seed(&self) -> Option<u64> {
        match self.seed {
            Some(Seed::Fixed(seed)) => Some(seed),
            Some(Seed::Random) | None => None,
        }
    }

    /// Changes an option by its name, as in `top_p`, `top-p`, `temp` or Ollama's `temperature`.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        let mut changed = self.clone();
        let number = || value.parse::<f32>().map_err(|_| wrong(name, value, "a number"));
        match name.replace('-', "_").as_str() {
            "temp" | "temperature" => changed.temp = number()?,
            "top_k" => changed.top_k = top_k(value).map_err(|why| wrong(name, value, &why))?,
            "top_p" => changed.top_p = number()?,
            "min_p" => changed.min_p = number()?,
            "repeat_penalty" => changed.repeat_penalty = number()?,
            "presence_penalty" => changed.presence_penalty = number()?,
            "frequency_penalty" => changed.frequency_penalty = number()?,
            "penalty_window" | "repeat_last_n" => {
                changed.penalty_window =
                    value.parse().map_err(|_| wrong(name, value, "a whole number from 0 on"))?;
            }
            "seed" => {
                changed.seed = Some(seed(value).map_err(|why| wrong(name, value, &why))?);
            }
            _ => return Err(Failure::usage(format!("there is no {name} to set; {NAMES}"))),
        }
        changed.sampling()?;
        *self = changed;
        Ok(())
    }

    /// All that [`SamplingOptions::set`] sets, in a line.
    pub fn describe(&self) -> String {
        let seed = self.seed().map_or("random".to_string(), |seed| seed.to_string());
        format!(
            "temp {}, top_k {}, top_p {}, min_p {}, repeat_penalty {}, presence_penalty {}, \
             frequency_penalty {}, penalty_window {}, seed {seed}",
            self.temp,
            self.top_k,
            self.top_p,
            self.min_p,
            self.repeat_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.penalty_window,
        )
    }
}

const NAMES: &str = "known are temp, top_k, top_p, min_p, repeat_penalty, presence_penalty, \
                     frequency_penalty, penalty_window, seed, max_tokens and context";

fn wrong(name: &str, value: &str, what: &str) -> Failure {
    match what.starts_with("it must") {
        true => Failure::usage(format!("{name} cannot be '{value}': {what}")),
        false => Failure::usage(format!("{name} must be {what}, not '{value}'")),
    }
}

fn top_k(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(0),
        _ => text.parse().map_err(|_| "it must be a whole number; 0 or -1: all".to_string()),
    }
}

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed::Random),
        _ => text
            .parse()
            .map(Seed::Fixed)
            .map_err(|_| "it must be a whole number from 0 on, or -1 for a random one".to_string()),
    }
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, amount)| {
        Some((id.trim().parse().ok()?, amount.trim().parse::<f32>().ok()?))
    });
    match parsed {
        Some((_, amount)) if amount.is_nan() => Err("the amount is not a number".to_string()),
        Some(pair) => Ok(pair),
        None => {
            Err("it must be a token's id, '=' and a number, as in 42=-5 or 42=-inf".to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Parsed {
        #[command(flatten)]
        sampling: SamplingOptions,
    }

    fn parse(words: &[&str]) -> SamplingOptions {
        let words = std::iter::once("x").chain(words.iter().copied());
        <Parsed as clap::Parser>::try_parse_from(words).unwrap().sampling
    }

    #[test]
    fn biases_are_read() {
        assert_eq!(bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(bias("7=-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["", "7", "7=", "=1", "-7=1", "7=nan", "x=1"] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn habits_of_other_programs_mean_the_same() {
        let options = parse(&["--seed", "-1", "--top-k", "-1"]);
        assert_eq!((options.seed(), options.top_k), (None, 0));
        assert_eq!(parse(&["--seed", "7"]).seed(), Some(7));
        assert!(seed("-2").is_err() && top_k("-2").is_err());
    }

    #[test]
    fn options_are_set_or_left_as_they_were() {
        let mut options = parse(&[]);
        options.set("temperature", "0.7").unwrap();
        options.set("top-p", "0.5").unwrap();
        options.set("seed", "3").unwrap();
        assert_eq!((options.temp, options.top_p, options.seed()), (0.7, 0.5, Some(3)));
        for (name, value) in [("temp", "hot"), ("temp", "-1"), ("top_p", "2"), ("heat", "1")] {
            assert!(options.set(name, value).is_err(), "{name} {value}");
        }
        assert_eq!((options.temp, options.top_p), (0.7, 0.5));
    }
}
