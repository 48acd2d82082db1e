//! Where a loaded model lies.

use pianola_plan::{Plan, Recording, size_text};
use pianola_vulkan::{HeapUse, VulkanRecording};

/// A device's part of a loaded model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevicePart {
    /// Name of the device in the plan.
    pub device: String,
    /// Its layers.
    pub layers: std::ops::Range<usize>,
    /// Its part in words: layers, head or products of prompts.
    pub part: String,
    /// Whether it computes the logits.
    pub head: bool,
    /// Bytes of weights that it reads.
    pub weight_bytes: u64,
    /// Bytes of weights, pages and activations by heap, where the device has heaps.
    pub heaps: Option<HeapUse>,
}

/// Where a loaded model lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnginePlacement {
    /// Layers of the model.
    pub layers: usize,
    /// Each device's part, by device id.
    pub parts: Vec<DevicePart>,
}

impl EnginePlacement {
    pub(crate) fn of<'a>(
        plan: &Plan,
        recordings: impl Iterator<Item = &'a dyn Recording>,
    ) -> EnginePlacement {
        let head = plan.head_device();
        let part = |(id, recording): (pianola_plan::DeviceId, &dyn Recording)| DevicePart {
            device: plan.devices[id.0].name.clone(),
            layers: plan.layers_on(id),
            part: plan.part_text(id),
            head: id == head,
            weight_bytes: plan.weight_bytes_on(id),
            heaps: recording.as_any().downcast_ref().map(VulkanRecording::heap_use),
        };
        EnginePlacement {
            layers: plan.layers(),
            parts: plan.device_ids().zip(recordings).map(part).collect(),
        }
    }

    /// The part that computes the logits.
    pub fn head(&self) -> Option<&DevicePart> {
        self.parts.iter().find(|part| part.head)
    }

    /// Layers that run elsewhere than the head does.
    pub fn layers_apart(&self) -> usize {
        self.parts.iter().filter(|part| !part.head).map(|part| part.layers.len()).sum()
    }
}

impl std::fmt::Display for EnginePlacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{} on {} ", part.part, part.device)?;
            match part.heaps {
                None => write!(f, "({})", size_text(part.weight_bytes))?,
                Some(HeapUse { device_local, host }) => {
                    let (local, host) = (size_text(device_local), size_text(host));
                    write!(f, "({local} device-local, {host} host)")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_read_well() {
        let part = |device: &str, part: &str, head, heaps| DevicePart {
            device: device.to_string(),
            layers: 0..0,
            part: part.to_string(),
            head,
            weight_bytes: 1_200_000_000,
            heaps,
        };
        let heaps = Some(HeapUse { device_local: 14_300_000_000, host: 0 });
        let text = |parts| EnginePlacement { layers: 62, parts }.to_string();
        assert_eq!(
            text(vec![
                part("cpu", "layers 0 to 5", false, None),
                part("vulkan", "the head", true, heaps)
            ]),
            "layers 0 to 5 on cpu (1.2 GB), the head on vulkan (14.3 GB device-local, 0.0 MB host)"
        );
    }
}
