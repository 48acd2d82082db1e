//! Packages that the stand-in can run, and the functions that it runs in their place.

use half::bf16;
use pianola_npu::package::{
    Activation, AttentionSpec, BLayout, Design, ElementType, ImportOptions, MatmulSpec, Operation,
    Package, PackageError, Packing, Shape, import,
};

use super::Scratch;
use super::files::{XclbinParts, stream_for, xclbin};

/// The smallest product that whole_array's rules allow on four columns.
pub fn matmul(input: ElementType, output: ElementType, b_layout: BLayout) -> MatmulSpec {
    MatmulSpec {
        design: Design::WholeArray,
        input,
        output,
        shape: Shape { m: 128, k: 16, n: 64 },
        tile: Shape { m: 16, k: 8, n: 16 },
        b_layout,
        activation: Activation::None,
    }
}

pub fn iron(activation: Activation) -> MatmulSpec {
    let packing = Packing::iron(64).unwrap();
    MatmulSpec {
        design: Design::IronGemm,
        input: ElementType::Bf16,
        output: ElementType::Bf16,
        shape: Shape { m: 256, k: 512, n: 64 },
        tile: Shape { m: 64, k: 512, n: 64 },
        b_layout: BLayout::Packed(packing),
        activation,
    }
}

pub fn attention(causal: bool) -> AttentionSpec {
    AttentionSpec {
        heads: 4,
        kv_heads: 2,
        queries: 256,
        keys: 256,
        key_width: 64,
        value_width: 128,
        causal,
    }
}

/// Writes the two files of a build.
pub fn build(scratch: &Scratch, operation: &Operation) -> (std::path::PathBuf, std::path::PathBuf) {
    let (left, right) = (scratch.0.join("final.xclbin"), scratch.0.join("insts.bin"));
    std::fs::write(&left, xclbin(&XclbinParts::default())).unwrap();
    std::fs::write(&right, stream_for(operation.arguments().len() as u64)).unwrap();
    (left, right)
}

pub fn try_package(scratch: &Scratch, operation: &Operation) -> Result<Package, PackageError> {
    let (xclbin, stream) = build(scratch, operation);
    let folder = scratch.0.join("npu_kernels");
    import(&folder, (&xclbin, &stream), operation, &ImportOptions::new("kernel"))
}

pub fn package(operation: Operation) -> Package {
    try_package(&Scratch::new(), &operation).unwrap()
}

fn bf16_at(bytes: &[u8], index: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32()
}

/// Where an element of B lies.
fn b_index(spec: &MatmulSpec, k: usize, n: usize) -> usize {
    let Shape { k: ks, n: ns, .. } = spec.shape;
    match spec.b_layout {
        BLayout::RowMajor => k * ns + n,
        BLayout::ColumnMajor => n * ks + k,
        BLayout::Packed(p) => {
            let outer = (n / p.n_tile) * ks * p.n_tile;
            let slice = (k / p.slice_k) * p.slice_k * p.n_tile;
            let column = (n % p.n_tile / 8) * p.slice_k * 8;
            outer + slice + column + (k % p.slice_k) * 8 + n % 8
        }
    }
}

/// A kernel that computes a product as the spec says.
pub fn matmul_kernel(spec: MatmulSpec) -> impl Fn(&mut [Vec<u8>]) + Send {
    move |buffers| {
        let Shape { m: ms, k: ks, n: ns } = spec.shape;
        let [a, b, c] = buffers else { panic!("three buffers") };
        for m in 0..ms {
            for n in 0..ns {
                let place = (m * ns + n) * spec.output.bytes();
                if spec.input == ElementType::I8 {
                    let term = |k| {
                        i32::from(a[m * ks + k] as i8) * i32::from(b[b_index(&spec, k, n)] as i8)
                    };
                    let sum: i32 = (0..ks).map(term).sum();
                    c[place..place + 4].copy_from_slice(&sum.to_le_bytes());
                    continue;
                }
                let term = |k| bf16_at(a, m * ks + k) * bf16_at(b, b_index(&spec, k, n));
                let sum: f32 = (0..ks).map(term).sum();
                let sum = match spec.activation {
                    Activation::None => sum,
                    Activation::Gelu => sum / (1.0 + (-1.702 * sum).exp()),
                    Activation::Silu => sum / (1.0 + (-sum).exp()),
                };
                if spec.output == ElementType::F32 {
                    c[place..place + 4].copy_from_slice(&sum.to_le_bytes());
                } else {
                    c[place..place + 2].copy_from_slice(&bf16::from_f32(sum).to_le_bytes());
                }
            }
        }
    }
}

/// A kernel that computes attention with values and outputs in parts of 64.
pub fn attention_kernel(spec: AttentionSpec) -> impl Fn(&mut [Vec<u8>]) + Send {
    move |buffers| {
        let [q, k, v, out] = buffers else { panic!("four buffers") };
        let parts = spec.value_width / 64;
        let scale = 1.0 / (spec.key_width as f32).sqrt();
        for head in 0..spec.heads {
            let kv_head = head * spec.kv_heads / spec.heads;
            for query in 0..spec.queries {
                let seen = if spec.causal { query + 1 } else { spec.keys };
                let row = (head * spec.queries + query) * spec.key_width;
                let score = |key: usize| {
                    let other = (kv_head * spec.keys + key) * spec.key_width;
                    let term = |i| bf16_at(q, row + i) * bf16_at(k, other + i);
                    ((0..spec.key_width).map(term).sum::<f32>() * scale).exp()
                };
                let weights: Vec<f32> = (0..seen).map(score).collect();
                let total: f32 = weights.iter().sum();
                for part in 0..parts {
                    for i in 0..64 {
                        let value = |key| ((kv_head * parts + part) * spec.keys + key) * 64 + i;
                        let terms = weights.iter().enumerate();
                        let sum: f32 = terms.map(|(key, w)| w * bf16_at(v, value(key))).sum();
                        let at = 2 * (((head * parts + part) * spec.queries + query) * 64 + i);
                        out[at..at + 2].copy_from_slice(&bf16::from_f32(sum / total).to_le_bytes());
                    }
                }
            }
        }
    }
}
