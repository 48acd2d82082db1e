// What follows a product: activation of a gate, soft cap.

float tanh_of(float x) { return 1.0 - 2.0 / (exp(2.0 * clamp(x, -15.0, 15.0)) + 1.0); }

float silu(float x) { return x / (1.0 + exp(-x)); }

float gelu_tanh(float x) {
    return 0.5 * x * (1.0 + tanh_of(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

// A gate's output: `activation` is 1 for silu, 2 for gelu.
float gated(const uint activation, float x, float up) { return (activation == 1 ? silu(x) : gelu_tanh(x)) * up; }

float soft_cap(float x, float cap) { return cap * tanh_of(x / cap); }
