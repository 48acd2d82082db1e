//! What goes wrong, and when.
//!
//! A text of rules, separated by commas: `timeout@3,nan@7,slow=20ms@2,error%5,seed=42`.
//!
//! | rule | what happens |
//! |---|---|
//! | `timeout` | the command never completes; the kernel gives it up after its limit |
//! | `error` | the command ends in the state ERROR |
//! | `abort` | the command ends in the state ABORT |
//! | `lose` | the context is lost; its commands end in ABORT, later ones stay in NEW |
//! | `suspend` | the device suspends; every open file answers ENODEV until it is opened again |
//! | `slow=TIME` | the command takes so long more (`us`, `ms`, `s`) |
//! | `nan` | an element of the output is NaN; of integers, the most negative number |
//! | `wrong` | an element of the output has its lowest exponent bit or bit 7 flipped |
//! | `nomem` | CREATE_BO is refused with ENOMEM |
//! | `busy`, `again` | CREATE_HWCTX is refused with EBUSY or EAGAIN |
//!
//! Each is followed by `@N` (the Nth command, CREATE_BO or CREATE_HWCTX, counted from one), `@N-M`,
//! `@N+` (from there on) or `%P` (each with a chance of P percent, from `seed=`). Besides: `held=N`
//! (contexts that another process holds), `power=N` (the power mode at the start) and `power=N@K` (the mode
//! from the Kth command on). In a mode of half the clock a command takes twice as long.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// What goes wrong, and when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    rules: Vec<Rule>,
    seed: u64,
    held: usize,
    /// Power modes, each with the command that it begins with; the first holds from the start.
    power: Vec<(u64, u8)>,
}

/// Why a text is not a list of faults.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{rule}: {reason}")]
pub struct FaultError {
    rule: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    target: Target,
    when: When,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Command(Effect),
    Allocation,
    Context(Refusal),
}

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Effect {
    Timeout,
    Error,
    Abort,
    Lose,
    Suspend,
    Slow(Duration),
    NotANumber,
    Wrong,
}

/// How a context is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Refusal {
    Busy,
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Between(u64, u64),
    Percent(f64),
}

impl FromStr for Faults {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Faults, FaultError> {
        let mut faults = Faults { seed: 1, ..Faults::default() };
        for rule in text.split(',').map(str::trim).filter(|rule| !rule.is_empty()) {
            let fail = |reason| FaultError { rule: rule.to_owned(), reason };
            match rule.split_once('=') {
                Some(("seed", value)) => {
                    faults.seed = value.parse().map_err(|_| fail("the seed is not a number"))?;
                }
                Some(("held", value)) => {
                    faults.held = value.parse().map_err(|_| fail("not a number of contexts"))?;
                }
                Some(("power", value)) => {
                    let (mode, from) = value.split_once('@').unwrap_or((value, "0"));
                    let from = from.parse().map_err(|_| fail("what follows @ is not a number"))?;
                    let mode = mode.parse().ok().filter(|mode| *mode <= 4);
                    faults.power.push((from, mode.ok_or_else(|| fail("power modes are 0 to 4"))?));
                }
                _ => faults.rules.push(rule_of(rule).map_err(fail)?),
            }
        }
        Ok(faults)
    }
}

fn rule_of(rule: &str) -> Result<Rule, &'static str> {
    let (what, when) = if let Some((what, number)) = rule.rsplit_once('@') {
        (what, when(number)?)
    } else if let Some((what, percent)) = rule.rsplit_once('%') {
        let percent: f64 = percent.parse().map_err(|_| "the chance is not a number")?;
        if !(0.0..=100.0).contains(&percent) {
            return Err("the chance is not a number from 0 to 100");
        }
        (what, When::Percent(percent))
    } else {
        return Err("a rule ends in @N, @N-M, @N+ or %P");
    };
    let target = match what.split_once('=').map_or((what, None), |(what, time)| (what, Some(time)))
    {
        ("slow", Some(time)) => Target::Command(Effect::Slow(duration(time)?)),
        ("slow", None) => return Err("slow needs a time, as in slow=20ms@2"),
        (_, Some(_)) => return Err("only slow takes a value"),
        ("timeout", None) => Target::Command(Effect::Timeout),
        ("error", None) => Target::Command(Effect::Error),
        ("abort", None) => Target::Command(Effect::Abort),
        ("lose", None) => Target::Command(Effect::Lose),
        ("suspend", None) => Target::Command(Effect::Suspend),
        ("nan", None) => Target::Command(Effect::NotANumber),
        ("wrong", None) => Target::Command(Effect::Wrong),
        ("nomem", None) => Target::Allocation,
        ("busy", None) => Target::Context(Refusal::Busy),
        ("again", None) => Target::Context(Refusal::Again),
        _ => return Err("there is no such fault"),
    };
    Ok(Rule { target, when })
}

fn when(text: &str) -> Result<When, &'static str> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| "what follows @ is not a number");
    if let Some(first) = text.strip_suffix('+') {
        return Ok(When::Between(number(first)?, u64::MAX));
    }
    match text.split_once('-') {
        Some((first, last)) => Ok(When::Between(number(first)?, number(last)?)),
        None => number(text).map(|only| When::Between(only, only)),
    }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let count: u32 = digits.parse().map_err(|_| "the time is not a number with us, ms or s")?;
    match &text[digits.len()..] {
        "us" => Ok(Duration::from_micros(u64::from(count))),
        "ms" => Ok(Duration::from_millis(u64::from(count))),
        "s" => Ok(Duration::from_secs(u64::from(count))),
        _ => Err("the time is not a number with us, ms or s"),
    }
}

/// Faults under way: what was counted so far.
pub(crate) struct FaultPlan {
    faults: Faults,
    random: u64,
    commands: u64,
    allocations: u64,
    contexts: u64,
}

impl FaultPlan {
    pub(crate) fn new(faults: Faults) -> FaultPlan {
        let random = faults.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        FaultPlan { faults, random, commands: 0, allocations: 0, contexts: 0 }
    }

    /// Contexts that another process holds.
    pub(crate) fn held(&self) -> usize {
        self.faults.held
    }

    /// The power mode that somebody sets before the last command that was counted, or at the start.
    pub(crate) fn power(&self) -> Option<u8> {
        let here = |(from, _): &&(u64, u8)| *from == self.commands;
        self.faults.power.iter().rfind(here).map(|(_, mode)| *mode)
    }

    /// The next command's.
    pub(crate) fn command(&mut self) -> Vec<Effect> {
        self.commands += 1;
        let hits = self.hits(self.commands);
        let effect =
            |target| if let Target::Command(effect) = target { Some(effect) } else { None };
        hits.into_iter().filter_map(effect).collect()
    }

    /// Whether the next allocation is refused.
    pub(crate) fn allocation(&mut self) -> bool {
        self.allocations += 1;
        self.hits(self.allocations).contains(&Target::Allocation)
    }

    /// Whether the next context is refused.
    pub(crate) fn context(&mut self) -> Option<Refusal> {
        self.contexts += 1;
        let hits = self.hits(self.contexts);
        hits.into_iter().find_map(|hit| if let Target::Context(it) = hit { Some(it) } else { None })
    }

    fn hits(&mut self, number: u64) -> Vec<Target> {
        let rules = self.faults.rules.clone();
        let mut hit = |when| match when {
            When::Between(first, last) => (first..=last).contains(&number),
            When::Percent(percent) => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                ((self.random >> 11) as f64) < percent / 100.0 * (1u64 << 53) as f64
            }
        };
        rules.into_iter().filter(|rule| hit(rule.when)).map(|rule| rule.target).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_hit_their_numbers() {
        let faults = "timeout@3, nan@7,slow=20ms@2-3,nomem@2,busy@1,held=2,power=4";
        let mut plan = FaultPlan::new(faults.parse().unwrap());
        let slow = Effect::Slow(Duration::from_millis(20));
        let hits: Vec<Vec<Effect>> = (0..8).map(|_| plan.command()).collect();
        assert_eq!(hits[0], []);
        assert_eq!(hits[1], [slow]);
        assert_eq!(hits[2], [Effect::Timeout, slow]);
        assert_eq!(hits[6], [Effect::NotANumber]);
        assert_eq!((plan.allocation(), plan.allocation()), (false, true));
        assert_eq!((plan.context(), plan.context()), (Some(Refusal::Busy), None));
        assert_eq!(plan.held(), 2);
    }

    #[test]
    fn power_modes_change_before_a_command() {
        let mut plan = FaultPlan::new("power=4,power=1@2".parse().unwrap());
        let mut modes = vec![plan.power()];
        for _ in 0..3 {
            plan.command();
            modes.push(plan.power());
        }
        assert_eq!(modes, [Some(4), None, Some(1), None]);
    }

    #[test]
    fn chances_come_from_the_seed() {
        let hits = |text: &str| {
            let mut plan = FaultPlan::new(text.parse().unwrap());
            (0..1000).filter(|_| !plan.command().is_empty()).count()
        };
        assert!((150..250).contains(&hits("error%20,seed=7")));
        assert_eq!(hits("error%20,seed=7"), hits("seed=7,error%20"));
        assert_eq!((hits("error%0"), hits("error%100"), hits("error@4+")), (0, 1000, 997));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "timeout",
            "timeout@x",
            "what@1",
            "slow@1",
            "slow=3@1",
            "nan=1@1",
            "power=9",
            "power=1@x",
            "error%101",
        ] {
            assert!(text.parse::<Faults>().is_err(), "{text}");
        }
        assert_eq!(
            "slow=3@1".parse::<Faults>().unwrap_err().to_string(),
            "slow=3@1: the time is not a number with us, ms or s"
        );
    }
}
