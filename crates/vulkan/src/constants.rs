//! Numbers of the shaders' specialisation constants, by the names that the shaders give them.
//!
//! One module for each file that declares some. A test compares names and numbers with those in the
//! compiled code.

macro_rules! constants {
    ($($file:literal $module:ident { $($name:ident = $id:literal),* })*) => {
        $(
            #[doc = concat!("`shaders/", $file, "`")]
            pub(crate) mod $module {
                $(pub const $name: u32 = $id;)*

                #[cfg(test)]
                pub const NAMED: &[(&str, u32)] = &[$((stringify!($name), $id)),*];
            }
        )*
    };
}

constants! {
    "include/prologue.glsl" prologue_input {
        WIDTH = 10, PASSES = 11, SUM = 12, NORM = 13, SELECT = 14, SUBGROUP = 21
    }
    "include/matrix.glsl" matrix {
        WORKGROUP = 0, TYPE_A = 1, TYPE_B = 2, GATE = 3, BLOCKS = 4, SIDE = 5, ROWS_EACH = 6,
        TOKENS_EACH = 7, ACROSS = 8, ALONG = 9, SPLIT = 10, LOGITS = 14
    }
    "include/heads.glsl" heads {
        HEAD_DIM = 1, KV_TYPE = 2, QUERY_NORM = 3, KEY_NORM = 4, ROPE = 5, SUBGROUP = 11
    }
    "include/plain.glsl" plain { LOGITS = 0 }
    "prologue.comp" prologue {
        WORKGROUP = 0, FORM = 1, LOGITS = 2, KEEP = 3, OPERAND_ROWS = 4, ALL = 5, ROTATION = 6
    }
    "project_rows.comp" project_rows {
        WORKGROUP = 0, TYPE_A = 1, TYPE_B = 2, ROW_INVOCATIONS = 3, HEIGHT = 4, COUNT = 5, FUSED = 6,
        GATE = 7, INTEGER = 8, REFINED = 9, LOGITS = 15, SHARED_BLOCKS = 16, BLOCKS = 17,
        CODES = 18, TAIL = 19, UNROLL = 20
    }
    "project_single.comp" project_single {
        WORKGROUP = 0, TYPE_A = 1, TYPE_B = 2, ROW_INVOCATIONS = 3, HEIGHT = 4, UNROLL = 5,
        SLICES = 6, GATE = 7, REFINED = 8, BLOCKS = 9, MOST_GROUPS = 15,
        WORKGROUPS = 16
    }
    "project_tiles.comp" project_tiles {
        TYPE_A = 0, TYPE_B = 1, TOKENS = 2, GATE = 3, INTEGER = 4, REFINED = 5, LOGITS = 6,
        BLOCKS = 7
    }
    "project_matrix.comp" project_matrix { STEP = 11 }
    "project_fragments.comp" project_fragments {
        OPERAND_ROWS = 11, WEIGHTS_ROWS_FIRST = 12, OPERAND_ROWS_FIRST = 13, EARLY = 15,
        SHARERS = 16, NEXT_ROWS = 17, TOKEN_SIDE = 18
    }
    "project_rotated.comp" project_rotated {
        WORKGROUP = 0, GATE = 1, CHUNKS = 2, SIDE = 3, DEPTH = 4, ROWS_EACH = 5, TOKENS_EACH = 6,
        ACROSS = 7, ALONG = 8, OPERAND_ROWS = 9
    }
    "rotate_weights.comp" rotate_weights {
        WORKGROUP = 0, TYPE = 1, WIDTH = 2, PASSES = 3, SUBGROUP = 4, ROTATION = 5
    }
    "attention.comp" attention {
        HEADS = 6, SPLITS = 7, LEAST_PAGES = 14, FUSED = 8, SINGLE = 13, CODES = 9, EARLY = 10,
        FRAGMENT_ROWS = 12
    }
    "attention_single.comp" attention_single {
        WORKGROUP = 0, SPLITS = 7, FRAGMENT_ROWS = 12, SINGLE = 13, LEAST_PAGES = 14
    }
    "attention_matrix.comp" attention_matrix {
        WORKGROUP = 0, SIDE = 6, TOKENS = 7, SPLIT = 8, KEEP = 9, FRAGMENT_ROWS = 12
    }
    "rope.comp" rope { PAIRING = 1 }
    "gate.comp" gate { ACTIVATION = 1 }
    "embed.comp" embed { TYPE = 0 }
    "sample_cut.comp" sample { KEYS = 0 }
    "sample_select.comp" sample_select { KIND = 1, LEVEL = 2 }
    "sample_whole.comp" sample_whole { SLICE_KEYS = 1 }
    "probe.comp" probe { KIND = 0 }
    "probe_matrix.comp" probe_matrix { SIDE = 0 }
    "probe_fragments.comp" probe_fragments { SUBGROUP = 0, SIDE = 1, TOKEN_SIDE = 2 }
}

constants! {
    "include/fault.glsl" fault { FAULT = 31 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Shader;
    use crate::statistics::constant_names;
    use std::collections::BTreeMap;

    /// Constants named here for a shader: its own, and those of the files it includes.
    fn named(shader: Shader) -> Vec<&'static [(&'static str, u32)]> {
        match shader {
            Shader::Embed => vec![embed::NAMED],
            Shader::RopeAngles => vec![],
            Shader::Prologue => vec![prologue::NAMED, prologue_input::NAMED],
            Shader::ProjectRows => vec![project_rows::NAMED, prologue_input::NAMED, fault::NAMED],
            Shader::ChainProbe => vec![],
            Shader::ProjectSingle | Shader::ProjectSingleChained => {
                vec![project_single::NAMED, prologue_input::NAMED, fault::NAMED]
            }
            Shader::ProjectTiles => vec![project_tiles::NAMED, fault::NAMED],
            Shader::ProjectMatrix => vec![matrix::NAMED, project_matrix::NAMED],
            Shader::ProjectFragments => vec![matrix::NAMED, project_fragments::NAMED],
            Shader::ProjectRotated => vec![project_rotated::NAMED],
            Shader::RotateWeights => vec![rotate_weights::NAMED],
            Shader::KvWrite => vec![heads::NAMED, fault::NAMED],
            Shader::Attention => vec![heads::NAMED, attention::NAMED, fault::NAMED],
            Shader::AttentionSingle | Shader::AttentionSingleChained => {
                vec![heads::NAMED, attention_single::NAMED, fault::NAMED]
            }
            Shader::AttentionMatrix => vec![heads::NAMED, attention_matrix::NAMED],
            Shader::RmsNorm | Shader::Add | Shader::SelectRows | Shader::SoftCap => {
                vec![plain::NAMED]
            }
            Shader::Rope => vec![plain::NAMED, rope::NAMED],
            Shader::Gate => vec![plain::NAMED, gate::NAMED],
            Shader::Probe => vec![probe::NAMED],
            Shader::ProbeMatrix => vec![probe_matrix::NAMED],
            Shader::ProbeFragments => vec![probe_fragments::NAMED],
            Shader::SampleCut | Shader::SampleBest | Shader::SampleShape | Shader::SampleWeigh => {
                vec![sample::NAMED]
            }
            Shader::SampleSelect => vec![sample::NAMED, sample_select::NAMED],
            Shader::SampleWhole => vec![sample::NAMED, sample_whole::NAMED],
        }
    }

    #[test]
    fn names_and_numbers_are_those_of_the_shaders() {
        for shader in Shader::ALL {
            let here: BTreeMap<u32, String> =
                named(shader).concat().iter().map(|&(name, id)| (id, name.to_string())).collect();
            let compiled: BTreeMap<u32, String> = constant_names(shader).into_iter().collect();
            assert_eq!(here, compiled, "{}", shader.name());
        }
    }
    /// The numbers by which kernels know faults, and that every fault has one.
    #[test]
    fn faults_are_those_of_the_shaders() {
        let source = include_str!("../shaders/include/fault.glsl");
        for fault in pianola_plan::Fault::ALL {
            let name = fault.name().replace('-', "_").to_uppercase();
            let line = format!("const uint {name} = {};", fault as u32);
            assert!(source.contains(&line), "{line}");
        }
        assert_eq!(source.matches("const uint").count(), pianola_plan::Fault::ALL.len() + 2);
    }
}
