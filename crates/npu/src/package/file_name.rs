//! What file names of the builds say: mlir-aie's `final_512x512x512_64x64x64_4c.xclbin`, IRON's
//! `FLM_GEMM_tn64_ck128_…_M256_K512_N512.bin`.

use std::fmt;
use std::path::Path;

use super::operation::Shape;

/// Shape, tile and columns of a whole_array build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeArrayName {
    /// The shape.
    pub shape: Shape,
    /// The tile.
    pub tile: Shape,
    /// The columns.
    pub columns: u16,
}

impl WholeArrayName {
    /// Reads the name of an xclbin or instruction file; none where it has another form.
    pub fn parse(path: &Path) -> Option<WholeArrayName> {
        let stem = path.file_stem()?.to_str()?;
        let mut parts = stem.split('_');
        if !["final", "insts"].contains(&parts.next()?) {
            return None;
        }
        let shape = shape(parts.next()?)?;
        let tile = self::shape(parts.next()?)?;
        let columns = number(parts.next()?.strip_suffix('c')?)?;
        parts.next().is_none().then_some(())?;
        Some(WholeArrayName { shape, tile, columns: u16::try_from(columns).ok()? })
    }
}

impl fmt::Display for WholeArrayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WholeArrayName { shape, tile, columns } = self;
        write!(f, "{}x{}x{}_", shape.m, shape.k, shape.n)?;
        write!(f, "{}x{}x{}_{columns}c", tile.m, tile.k, tile.n)
    }
}

/// Shape and column block of an IRON build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IronName {
    /// The shape.
    pub shape: Shape,
    /// The column block of B, `tn`.
    pub n_tile: usize,
}

impl IronName {
    /// Reads the name of an instruction file; none where it has another form.
    pub fn parse(path: &Path) -> Option<IronName> {
        let stem = path.file_stem()?.to_str()?;
        let rest = stem.strip_prefix("FLM_GEMM_")?;
        let field =
            |prefix: &str| rest.split('_').find_map(|part| number(part.strip_prefix(prefix)?));
        let shape = Shape { m: field("M")?, k: field("K")?, n: field("N")? };
        Some(IronName { shape, n_tile: field("tn")? })
    }
}

fn shape(text: &str) -> Option<Shape> {
    let mut numbers = text.split('x').map(number);
    let shape = Shape { m: numbers.next()??, k: numbers.next()??, n: numbers.next()?? };
    numbers.next().is_none().then_some(shape)
}

fn number(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mlir_aie() {
        let name = WholeArrayName::parse(Path::new("build/final_512x256x1024_64x32x16_4c.xclbin"));
        let shape = Shape { m: 512, k: 256, n: 1024 };
        let tile = Shape { m: 64, k: 32, n: 16 };
        assert_eq!(name, Some(WholeArrayName { shape, tile, columns: 4 }));
        assert_eq!(WholeArrayName::parse(Path::new("insts_512x256x1024_64x32x16_4c.bin")), name);
        for other in ["final.xclbin", "final_1x2_3x4x5_4c.bin", "final_1x2x3_4x5x6_c.bin", "x"] {
            assert_eq!(WholeArrayName::parse(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn names_of_iron() {
        let path = "FLM_GEMM_tn64_ck128_ma64_mc1_em7_conv_even_npu1_M256_K512_N2048.bin";
        let shape = Shape { m: 256, k: 512, n: 2048 };
        assert_eq!(IronName::parse(Path::new(path)), Some(IronName { shape, n_tile: 64 }));
        assert_eq!(IronName::parse(Path::new("FLM_GEMM_tn64.xclbin")), None);
    }
}
