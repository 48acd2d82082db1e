//! What is measured, and what a test is called.

/// What to measure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BenchOptions {
    /// Tokens of a prompt; 0 leaves its test out.
    pub prompt: usize,
    /// Tokens to generate; 0 leaves that test out.
    pub generate: usize,
    /// Repetitions that count.
    pub repeat: usize,
    /// Most rounds before them; fewer if two in succession agree.
    pub warm_up: usize,
    /// Numbers of requests at once: each a prompt, then its generation. Empty: a prompt, and a
    /// generation, each for itself.
    pub lanes: Vec<usize>,
    /// Prompts of a half to twice the length instead of all alike.
    pub mixed: bool,
    /// Tokens of context that are there before a test begins; the tests are run for each.
    pub depths: Vec<usize>,
}

impl BenchOptions {
    /// Rounds of warming up after which a machine is not steady.
    pub const WARM_UP: usize = 10;

    /// Tokens of context that the tests need.
    pub fn context(&self) -> usize {
        let deepest = self.depths.iter().copied().max().unwrap_or(0);
        match self.lanes.iter().max() {
            None => (deepest + self.prompt).max(start_of_generation(deepest) + self.generate),
            Some(&lanes) => {
                let longest = (0..lanes).map(|lane| self.prompt_of(lane, deepest)).max();
                longest.unwrap_or(0) + self.generate
            }
        }
    }

    /// Tokens before a lane's generation: those that are there already, and its prompt.
    pub(super) fn prompt_of(&self, lane: usize, depth: usize) -> usize {
        /// In fourths of the length asked for: 4 on average.
        const MIXED: [usize; 5] = [2, 8, 3, 4, 3];
        let prompt = match self.mixed {
            true => (self.prompt * MIXED[lane % MIXED.len()] / 4).max(1),
            false => self.prompt,
        };
        start_of_generation(depth + prompt)
    }
}

/// Tokens before the first that is generated: no model begins with nothing.
pub(super) fn start_of_generation(tokens: usize) -> usize {
    tokens.max(1)
}

/// What a test processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TestKind {
    /// A prompt, or several at once.
    Prompt,
    /// Tokens generated one by one, of one sequence or of several at once.
    Generate,
    /// Several prompts and what follows them, from the first to the last token: some generate while others' prompts are
    /// still to come, which counts nowhere else.
    Both {
        /// Tokens that each sequence generates.
        generate: usize,
    },
}

/// A test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Test {
    /// What it processes.
    pub kind: TestKind,
    /// Tokens of each sequence, or of its prompt; of prompts that differ in length, on average.
    pub tokens: usize,
    /// Requests at once; none for a lone sequence, whose tests do not follow one another.
    pub lanes: Option<usize>,
    /// Tokens of context that are there before. A generation of lanes begins behind their prompts
    /// besides.
    pub depth: usize,
}

impl Test {
    /// Requests at once.
    pub fn lanes(self) -> usize {
        self.lanes.unwrap_or(1)
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            TestKind::Prompt => write!(f, "pp{}", self.tokens)?,
            TestKind::Generate => write!(f, "tg{}", self.tokens)?,
            TestKind::Both { generate } => write!(f, "pp{}+tg{generate}", self.tokens)?,
        }
        if let Some(lanes) = self.lanes {
            write!(f, " x {lanes}")?;
        }
        if self.depth > 0 {
            write!(f, " @ d{}", self.depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        let test = Test { kind: TestKind::Generate, tokens: 64, lanes: None, depth: 512 };
        assert_eq!(test.to_string(), "tg64 @ d512");
        assert_eq!(Test { depth: 0, lanes: Some(8), ..test }.to_string(), "tg64 x 8");
        let prompts = Test { kind: TestKind::Prompt, lanes: Some(8), ..test };
        assert_eq!(prompts.to_string(), "pp64 x 8 @ d512");
        let both = Test { kind: TestKind::Both { generate: 32 }, depth: 0, ..prompts };
        assert_eq!(both.to_string(), "pp64+tg32 x 8");
    }

    #[test]
    fn the_context_holds_the_deepest_test() {
        let mut options = BenchOptions {
            prompt: 100,
            generate: 20,
            repeat: 1,
            warm_up: 1,
            lanes: Vec::new(),
            mixed: false,
            depths: vec![0],
        };
        assert_eq!(options.context(), 100);
        options.depths = vec![0, 512];
        assert_eq!(options.context(), 612);
        options.prompt = 0;
        assert_eq!(options.context(), 532);
        options.depths = vec![0];
        assert_eq!(options.context(), 21);
        let lanes = BenchOptions { prompt: 100, lanes: vec![2], depths: vec![64], ..options };
        assert_eq!(lanes.context(), 64 + 100 + 20);
    }
}
