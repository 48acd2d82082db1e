//! Where kernels make a mistake on purpose. Without the feature `test-hooks` none of it is compiled.

/// Whether a play (or what else carries one) has a fault planted: false without the feature.
#[cfg(any(test, feature = "test-hooks"))]
macro_rules! fault {
    ($carrier:expr, $fault:ident) => {
        $carrier.fault == Some(pianola_plan::Fault::$fault)
    };
}

#[cfg(not(any(test, feature = "test-hooks")))]
macro_rules! fault {
    ($carrier:expr, $fault:ident) => {
        false
    };
}

/// What the weights of a faulty block are taken times.
#[cfg(any(test, feature = "test-hooks"))]
pub(crate) fn block_factor(fault: Option<pianola_plan::Fault>) -> Option<f32> {
    match fault {
        Some(pianola_plan::Fault::DroppedBlock) => Some(0.0),
        Some(pianola_plan::Fault::WrongScale) => Some(2.0),
        _ => None,
    }
}

/// The output of a tile whose block is faulty.
#[cfg(any(test, feature = "test-hooks"))]
pub(crate) const FAULTY_OUTPUT: usize = 5;
