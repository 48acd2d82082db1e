//! A limit to the instruction sets in use, so that tests run on one machine what others have.

/// Names the best instruction set: the processor counts as one that has no better.
const VARIABLE: &str = "PIANOLA_SIMD";

/// Instruction sets from the least on. The dot products of bf16 are no level of their own: kernels of
/// `avx512` use them where they are there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Limit {
    Portable,
    Avx2,
    AvxVnni,
    Avx512,
    Avx512Bf16,
    Amx,
}

const NAMES: [(&str, Limit); 6] = [
    ("portable", Limit::Portable),
    ("avx2", Limit::Avx2),
    ("avx-vnni", Limit::AvxVnni),
    ("avx512", Limit::Avx512),
    ("avx512-bf16", Limit::Avx512Bf16),
    ("amx", Limit::Amx),
];

/// Whether the variable, if it is set, names an instruction set; the error says which there are.
pub fn check() -> Result<(), String> {
    read(std::env::var(VARIABLE).ok().as_deref()).map(|_| ())
}

/// Whether the limit allows an instruction set. A name that [`check`] refuses allows none.
pub(crate) fn allows(set: Limit) -> bool {
    let limit = read(std::env::var(VARIABLE).ok().as_deref()).unwrap_or(Limit::Portable);
    set <= limit
}

fn read(value: Option<&str>) -> Result<Limit, String> {
    let Some(name) = value.filter(|name| !name.is_empty()) else { return Ok(Limit::Amx) };
    let known = NAMES.iter().find(|(known, _)| *known == name);
    known.map(|(_, limit)| *limit).ok_or_else(|| {
        let names = NAMES.map(|(name, _)| name).join(", ");
        format!("{VARIABLE} is '{name}', which is no instruction set; known are {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        assert_eq!(read(None), Ok(Limit::Amx));
        assert_eq!(read(Some("")), Ok(Limit::Amx));
        assert_eq!(read(Some("avx2")), Ok(Limit::Avx2));
        assert!(Limit::Avx512 < Limit::Avx512Bf16 && Limit::AvxVnni < Limit::Avx512);
        assert!(read(Some("avx3")).unwrap_err().contains("avx-vnni, avx512, avx512-bf16"));
    }
}
