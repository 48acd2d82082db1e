//! The core's rounding modes, and the number formats they round to.

use half::bf16;

/// How a core rounds when it narrows: the values of its control register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// 0: towards minus infinity. Cores start so.
    Floor,
    /// 1: towards plus infinity.
    Ceil,
    /// 2: towards zero.
    SymmetricFloor,
    /// 3: away from zero.
    SymmetricCeil,
    /// 8: to the nearest, halves towards minus infinity.
    NegativeInfinity,
    /// 9: to the nearest, halves towards plus infinity.
    PositiveInfinity,
    /// 10: to the nearest, halves towards zero.
    SymmetricZero,
    /// 11: to the nearest, halves away from zero.
    SymmetricInfinity,
    /// 12: to the nearest, halves to even.
    ConvergentEven,
    /// 13: to the nearest, halves to odd.
    ConvergentOdd,
}

impl Rounding {
    /// The mode of a register value.
    pub fn from_register(value: u32) -> Option<Rounding> {
        Some(match value {
            0 => Rounding::Floor,
            1 => Rounding::Ceil,
            2 => Rounding::SymmetricFloor,
            3 => Rounding::SymmetricCeil,
            8 => Rounding::NegativeInfinity,
            9 => Rounding::PositiveInfinity,
            10 => Rounding::SymmetricZero,
            11 => Rounding::SymmetricInfinity,
            12 => Rounding::ConvergentEven,
            13 => Rounding::ConvergentOdd,
            _ => return None,
        })
    }

    /// `value / 2^shift`, rounded.
    pub fn shift(self, value: i32, shift: u32) -> i64 {
        let value = i64::from(value);
        if shift == 0 {
            return value;
        }
        let shift = shift.min(62);
        let floor = value >> shift;
        let rest = value - (floor << shift);
        let half = (rest << 1).cmp(&(1i64 << shift));
        floor + i64::from(self.rounds_up(rest != 0, half, value < 0, floor & 1 != 0))
    }

    /// Whether the next value above is taken instead of the one below. `half` compares what was cut
    /// off with half a step; `odd` is the value below.
    fn rounds_up(self, inexact: bool, half: std::cmp::Ordering, negative: bool, odd: bool) -> bool {
        let nearest = |tie: bool| half.is_gt() || (half.is_eq() && tie);
        match self {
            Rounding::Floor => false,
            Rounding::Ceil => inexact,
            Rounding::SymmetricFloor => inexact && negative,
            Rounding::SymmetricCeil => inexact && !negative,
            Rounding::NegativeInfinity => nearest(false),
            Rounding::PositiveInfinity => nearest(true),
            Rounding::SymmetricZero => nearest(negative),
            Rounding::SymmetricInfinity => nearest(!negative),
            Rounding::ConvergentEven => nearest(odd),
            Rounding::ConvergentOdd => nearest(!odd),
        }
    }

    /// The nearest bf16 as this mode has it. NaN stays NaN.
    pub fn to_bf16(self, value: f32) -> bf16 {
        if value.is_nan() || value.is_infinite() {
            return bf16::from_f32(value);
        }
        let bits = value.to_bits();
        let cut = bits & 0xFFFF;
        let toward_zero = (bits >> 16) as u16;
        let negative = value.is_sign_negative();
        // Bits count away from zero; of a negative number the value above is the one nearer zero.
        let mut half = cut.cmp(&0x8000);
        let mut below_is_odd = toward_zero & 1 != 0;
        if negative {
            half = half.reverse();
            below_is_odd = !below_is_odd;
        }
        let inexact = cut != 0;
        if !inexact {
            return bf16::from_bits(toward_zero);
        }
        let up = self.rounds_up(inexact, half, negative, below_is_odd);
        bf16::from_bits(toward_zero + u16::from(up != negative))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [u32; 10] = [0, 1, 2, 3, 8, 9, 10, 11, 12, 13];

    /// Each mode on quarters from -2.5 to 2.5, by its definition on real numbers.
    fn by_definition(mode: u32, value: f64) -> f64 {
        let (floor, ceil) = (value.floor(), value.ceil());
        let tie = value - floor == 0.5;
        let nearest = |at_tie: f64| if tie { at_tie } else { (value + 0.5).floor() };
        match mode {
            0 => floor,
            1 => ceil,
            2 => value.trunc(),
            3 => {
                if value < 0.0 {
                    floor
                } else {
                    ceil
                }
            }
            8 => nearest(floor),
            9 => nearest(ceil),
            10 => nearest(value.trunc()),
            11 => nearest(if value < 0.0 { floor } else { ceil }),
            12 => nearest(if floor % 2.0 == 0.0 { floor } else { ceil }),
            _ => nearest(if floor % 2.0 == 0.0 { ceil } else { floor }),
        }
    }

    #[test]
    fn shifts_follow_the_definition() {
        for mode in MODES {
            let rounding = Rounding::from_register(mode).unwrap();
            for value in -40..=40 {
                let expected = by_definition(mode, f64::from(value) / 8.0);
                assert_eq!(rounding.shift(value, 3), expected as i64, "mode {mode}, {value}/8");
            }
        }
        assert_eq!(Rounding::from_register(4), None);
        assert_eq!(Rounding::Ceil.shift(i32::MIN, 0), i64::from(i32::MIN));
    }

    #[test]
    fn bf16_follows_the_same_definition() {
        // Between 128 and 256 a step of bf16 is one.
        for mode in MODES {
            let rounding = Rounding::from_register(mode).unwrap();
            for eighth in 129 * 8..160 * 8 {
                for sign in [1.0, -1.0] {
                    let value = sign * f64::from(eighth) / 8.0;
                    let result = rounding.to_bf16(value as f32).to_f32();
                    assert_eq!(
                        f64::from(result),
                        by_definition(mode, value),
                        "mode {mode}, {value}"
                    );
                }
            }
        }
        assert!(Rounding::Floor.to_bf16(f32::NAN).is_nan());
        for bits in (0..u32::MAX - 70_001).step_by(70_001) {
            let value = f32::from_bits(bits);
            let (ours, theirs) = (Rounding::ConvergentEven.to_bf16(value), bf16::from_f32(value));
            assert!(ours.to_bits() == theirs.to_bits() || value.is_nan());
        }
    }
}
