//! Which program is which.

use crate::kernel::Kernel;

/// A program that the model knows.
pub(crate) struct Entry {
    pdi: Vec<u8>,
    /// The instruction stream that belongs to the shape; `None` where the shape is in the PDI.
    stream: Option<Vec<u8>>,
    kernel: Kernel,
}

/// All programs that the model knows.
#[derive(Default)]
pub(crate) struct Registry {
    entries: Vec<Entry>,
}

impl Registry {
    /// A later description replaces an earlier one of the same PDI and stream.
    pub(crate) fn add(&mut self, pdi: Vec<u8>, stream: Option<Vec<u8>>, kernel: Kernel) {
        self.entries.retain(|entry| (&entry.pdi, &entry.stream) != (&pdi, &stream));
        self.entries.push(Entry { pdi, stream, kernel });
    }

    /// The description for what a compute unit was given. A buffer is longer than its PDI.
    pub(crate) fn find(&self, buffer: &[u8], stream: &[u8]) -> Option<&Kernel> {
        let of_pdi = || self.entries.iter().filter(|entry| buffer.starts_with(&entry.pdi));
        let exact = of_pdi().find(|entry| entry.stream.as_deref() == Some(stream));
        exact.or_else(|| of_pdi().find(|entry| entry.stream.is_none())).map(|entry| &entry.kernel)
    }

    /// Whether a compute unit was given a known PDI at all.
    pub(crate) fn knows(&self, buffer: &[u8]) -> bool {
        self.entries.iter().any(|entry| buffer.starts_with(&entry.pdi))
    }
}
