//! Times of single kernels, as a device measured them.

/// One launch of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelTime {
    /// Kernel of the plan; none for work the plan does not know, such as sampling.
    pub op: Option<usize>,
    /// The device's own name for what was launched.
    pub kernel: String,
    /// Which play, counted from the first that was timed.
    pub play: usize,
    /// Rows of the play.
    pub rows: usize,
    /// Rows with logits.
    pub logits: usize,
    /// Tokens that its last row saw.
    pub context: usize,
    /// Seconds from the first timed play on.
    pub start: f64,
    /// Seconds until the kernel was done, waits for the one before included.
    pub seconds: f64,
}
