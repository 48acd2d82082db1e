//! Measured choices: what `pianola tune` found fastest on this device.

use crate::policy::rows::RowsShape;
use pianola_formats::TensorType;
use std::collections::BTreeMap;

/// A product that was measured: type, weight rows, blocks a row, rows of activations.
pub(crate) type RowsKey = (TensorType, u32, u32, u32);

/// Choices by what they were measured for; empty where nothing was.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tuning {
    pub(crate) rows: BTreeMap<RowsKey, RowsShape>,
}

impl Tuning {
    pub(crate) fn rows(
        &self,
        ty: TensorType,
        rows: u32,
        blocks: u32,
        count: u32,
    ) -> Option<RowsShape> {
        self.rows.get(&(ty, rows, blocks, count)).copied()
    }
}
