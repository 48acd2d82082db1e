//! Exponentials and what is made of them.

use super::lanes::Lanes;

/// `e^x` to about 2 units in the last place; arguments are clamped to what f32 can hold.
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(x: L::F) -> L::F {
    unsafe {
        // In this order of operands NaN stays NaN.
        let x = L::max(L::splat(-87.0), L::min(L::splat(88.0), x));
        let n = L::round(L::mul(x, L::splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts: the first has few bits, so n times it is exact.
        let r = L::fma(n, L::splat(-0.693_359_4), x);
        let r = L::fma(n, L::splat(2.121_944_4e-4), r);
        // Taylor's series to r^7; |r| <= ln(2) / 2 leaves a remainder under 6e-9.
        let mut p = L::splat(1.0 / 5040.0);
        for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = L::fma(p, r, L::splat(coefficient));
        }
        L::mul(p, L::power_of_two(n))
    }
}

/// `x * sigmoid(x)`
#[inline(always)]
pub(crate) unsafe fn silu<L: Lanes>(x: L::F) -> L::F {
    unsafe {
        let e = exp::<L>(L::sub(L::splat(0.0), x));
        L::div(x, L::add(L::splat(1.0), e))
    }
}

/// GELU in its tanh form, written as `x * sigmoid(2 u)`, which is the same.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<L: Lanes>(x: L::F) -> L::F {
    unsafe {
        // sqrt(8 / pi)
        let factor = L::splat(1.595_769);
        let cube = L::mul(L::mul(x, x), L::mul(x, L::splat(0.044715)));
        let twice_u = L::mul(factor, L::add(x, cube));
        let e = exp::<L>(L::sub(L::splat(0.0), twice_u));
        L::div(x, L::add(L::splat(1.0), e))
    }
}

/// `cap * tanh(x / cap)`
#[inline(always)]
pub(crate) unsafe fn soft_cap<L: Lanes>(x: L::F, cap: f32) -> L::F {
    unsafe {
        let e = exp::<L>(L::mul(x, L::splat(2.0 / cap)));
        let one = L::splat(1.0);
        L::mul(L::splat(cap), L::div(L::sub(e, one), L::add(e, one)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::portable::Portable;
    use super::*;

    fn each(f: unsafe fn([f32; 16]) -> [f32; 16], x: f32) -> f32 {
        // SAFETY: portable lanes need no instruction set.
        unsafe { f([x; 16])[7] }
    }

    #[test]
    fn exp_is_accurate() {
        for step in -8700..8800 {
            let x = step as f32 / 100.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(each(exp::<Portable>, x)) - exact).abs() / exact;
            assert!(error < 3.0 * f64::from(f32::EPSILON), "exp({x}) is off by {error:e}");
        }
    }

    #[test]
    fn nan_stays_nan() {
        assert!(each(exp::<Portable>, f32::NAN).is_nan());
        assert!(each(silu::<Portable>, f32::NAN).is_nan());
    }

    #[test]
    fn activations_match_their_definitions() {
        for step in -2000..2000 {
            let x = step as f32 / 100.0;
            let wide = f64::from(x);
            let silu_exact = wide / (1.0 + (-wide).exp());
            let u = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            let gelu_exact = 0.5 * wide * (1.0 + u.tanh());
            let cap_exact = 30.0 * (wide / 30.0).tanh();
            let close = |found: f32, exact: f64| (f64::from(found) - exact).abs() < 2e-5;
            assert!(close(each(silu::<Portable>, x), silu_exact), "silu({x})");
            assert!(close(each(gelu_tanh::<Portable>, x), gelu_exact), "gelu({x})");
            // SAFETY: portable lanes need no instruction set.
            let capped = unsafe { soft_cap::<Portable>([x; 16], 30.0)[0] };
            assert!(close(capped, cap_exact), "soft_cap({x})");
        }
    }
}
