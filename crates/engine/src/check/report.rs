//! What a check found.

use pianola_plan::KernelVariant;
use std::collections::{BTreeMap, BTreeSet};

/// Failures that are kept; more of them say nothing new.
pub(super) const MOST_FAILURES: usize = 10;

/// A part of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckSection {
    /// What was checked, in words.
    pub name: String,
    /// Steps played.
    pub steps: usize,
    /// Comparisons: kernels with the reference, steps with exact mode, tokens with the host's.
    pub compared: usize,
    /// Values that these compared.
    pub values: usize,
    /// Largest error of a value or a row, as a share of what is allowed.
    pub worst_share: f64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckIssue {
    /// The section's name: types and numeric mode.
    pub section: String,
    /// The step: lanes or rows.
    pub step: String,
    /// Kernel of the plan, with the shapes of its weights, and what it was launched as.
    pub kernel: String,
    /// What is wrong, and where.
    pub reason: String,
}

impl std::fmt::Display for CheckIssue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CheckIssue { section, step, kernel, reason } = self;
        write!(f, "{section}: {step}: {kernel}: {reason}")
    }
}

/// Kernel variants that can be launched, and those of them that were compared.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Whose variants these are: the model's own types, or others.
    pub what: String,
    /// All that can be launched.
    pub reachable: BTreeSet<KernelVariant>,
    /// Those that were compared, and some that only smaller vocabularies have.
    pub(super) compared: BTreeSet<KernelVariant>,
}

impl Coverage {
    /// How many of them were compared.
    pub fn covered(&self) -> usize {
        self.reachable.intersection(&self.compared).count()
    }

    /// Those that were not, by kernel.
    pub fn missing(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for variant in self.reachable.difference(&self.compared) {
            missing.entry(&variant.kernel).or_default().push(&variant.choices);
        }
        missing
    }
}

/// What the check of one device came to.
#[derive(Clone, Debug)]
pub struct DeviceCheck {
    /// The device, in words.
    pub device: String,
    /// The model, in words.
    pub subject: String,
    /// Parts, in the order they ran.
    pub sections: Vec<CheckSection>,
    /// Counted kernel variants: the model's own types first.
    pub coverage: Vec<Coverage>,
    /// What could not be checked, or not as it is, in words.
    pub notes: Vec<String>,
    /// What is wrong, the first few; empty where nothing is.
    pub issues: Vec<CheckIssue>,
    /// Seconds in all.
    pub seconds: f64,
}

impl DeviceCheck {
    /// Whether nothing is wrong.
    pub fn passed(&self) -> bool {
        self.issues.is_empty()
    }

    /// Comparisons in all.
    pub fn compared(&self) -> usize {
        self.sections.iter().map(|section| section.compared).sum()
    }

    /// Largest error of a section, as a share of what is allowed.
    pub fn worst_share(&self) -> f64 {
        self.sections.iter().map(|section| section.worst_share).fold(0.0, f64::max)
    }

    pub(super) fn fail(&mut self, issue: CheckIssue) {
        if self.issues.len() < MOST_FAILURES {
            self.issues.push(issue);
        }
    }
}
