//! Placement: which device runs each node of a graph.
//!
//! It comes before fusion, so that no kernel spans two devices. Layers are placed as a whole; what
//! belongs to no layer goes with its neighbours, and tables that layers share are computed on every
//! device that reads them.

use crate::graph::{Graph, Node, Op, TensorId};

/// A device of a plan: an index into [`crate::Plan::devices`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceId(pub usize);

/// What the planner has to know of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceSpec {
    /// Name for printing, of which a plan has no two: `cpu`, `vulkan`, `vulkan:1`.
    pub name: String,
    /// How it keeps matrices, for printing.
    pub layout: &'static str,
    /// Whether it has kernels for fused operations.
    pub fuses: bool,
    /// Whether it records for numbers of rows in [`crate::BUCKETS`], so that a play is rounded up.
    pub rounds_rows: bool,
    /// Whether it works by itself once a segment is submitted.
    pub asynchronous: bool,
    /// Operations that it has no kernel for, by name.
    pub lacks: Vec<&'static str>,
}

impl DeviceSpec {
    /// Whether it can run an operation.
    pub fn runs(&self, op: &Op) -> bool {
        !self.lacks.contains(&op.name())
    }
}

/// A device for each node of a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct Placement {
    /// The devices.
    pub devices: Vec<DeviceSpec>,
    /// For each node the device that runs it.
    pub nodes: Vec<DeviceId>,
}

/// A node that runs on another device than asked for, which has no kernel for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The operation.
    pub op: &'static str,
    /// Where it was placed.
    pub from: DeviceId,
    /// Where it runs.
    pub to: DeviceId,
}

impl Placement {
    /// Everything on one device.
    pub fn single(graph: &Graph, device: DeviceSpec) -> Placement {
        Placement { devices: vec![device], nodes: vec![DeviceId(0); graph.nodes.len()] }
    }

    /// Consecutive layers on one device after another, as many as the number beside
    /// it. Nodes before the first layer run on that layer's device, nodes after the last on the last
    /// device. Devices that are left without a node are dropped.
    ///
    /// # Panics
    /// If the numbers do not add up to the layers of the graph.
    pub fn by_layers(graph: &Graph, devices: &[(DeviceSpec, usize)]) -> Placement {
        let counts: usize = devices.iter().map(|device| device.1).sum();
        assert_eq!(counts, graph.layers, "layers on {} devices", devices.len());
        let of_layer: Vec<usize> = devices
            .iter()
            .enumerate()
            .flat_map(|(index, device)| std::iter::repeat_n(index, device.1))
            .collect();
        let last = devices.len() - 1;
        let end = graph.nodes.iter().rposition(|node| node.layer.is_some()).map_or(0, |at| at + 1);
        let mut layer = 0;
        let place = |(index, node): (usize, &Node)| {
            layer = node.layer.unwrap_or(layer);
            if index < end { of_layer[layer] } else { last }
        };
        let nodes: Vec<usize> = graph.nodes.iter().enumerate().map(place).collect();
        let used: Vec<usize> = (0..devices.len()).filter(|device| nodes.contains(device)).collect();
        let id =
            |device: usize| DeviceId(used.iter().position(|&used| used == device).unwrap_or(0));
        Placement {
            devices: used.iter().map(|&device| devices[device].0.clone()).collect(),
            nodes: nodes.into_iter().map(id).collect(),
        }
    }

    /// Moves every node that its device has no kernel for to the first device that has one.
    /// Gives the name of an operation that none has.
    pub(crate) fn move_unsupported(&mut self, graph: &Graph) -> Result<Vec<Moved>, &'static str> {
        let mut moved = Vec::new();
        for (device, node) in self.nodes.iter_mut().zip(&graph.nodes) {
            if self.devices[device.0].runs(&node.op) {
                continue;
            }
            let op = node.op.name();
            let to = self.devices.iter().position(|other| other.runs(&node.op)).ok_or(op)?;
            moved.push(Moved { op, from: *device, to: DeviceId(to) });
            *device = DeviceId(to);
        }
        Ok(moved)
    }

    /// Computes every table that layers share on each device that reads it, instead of passing it
    /// from one to another: the graph gets a node and a tensor more for each further device, in
    /// front of the first reader there.
    pub(crate) fn share_tables(&mut self, graph: &mut Graph) {
        let mut index = 0;
        while index < graph.nodes.len() {
            let node = &graph.nodes[index];
            if let (Op::RopeAngles { .. }, Some(table)) = (&node.op, node.output) {
                self.share_table(graph, index, table);
            }
            index += 1;
        }
    }

    fn share_table(&mut self, graph: &mut Graph, index: usize, table: TensorId) {
        let reads = |graph: &Graph, at: usize| graph.nodes[at].inputs.contains(&table);
        let mut readers = (0..graph.nodes.len()).filter(|&at| reads(graph, at));
        let Some(first) = readers.next() else { return };
        // A device without a kernel for the table receives it from one that has.
        let op = graph.nodes[index].op.clone();
        let runs =
            |placement: &Placement, at: usize| placement.devices[placement.nodes[at].0].runs(&op);
        if runs(self, first) {
            self.nodes[index] = self.nodes[first];
        }
        let mut at = first;
        while at < graph.nodes.len() {
            let device = self.nodes[at];
            if device == self.nodes[index] || !reads(graph, at) || !runs(self, at) {
                at += 1;
                continue;
            }
            let copy = self.copy_table(graph, index, at, device);
            for (node, _) in
                graph.nodes.iter_mut().zip(&self.nodes).filter(|(_, place)| **place == device)
            {
                let inputs = node.inputs.iter_mut().filter(|input| **input == table);
                inputs.for_each(|input| *input = copy);
            }
        }
    }

    /// Puts a copy of the node at `index` in front of the one at `at`, for another device. Returns
    /// its tensor.
    fn copy_table(
        &mut self,
        graph: &mut Graph,
        index: usize,
        at: usize,
        device: DeviceId,
    ) -> TensorId {
        let mut node = graph.nodes[index].clone();
        let mut tensor = graph.tensor(node.output.expect("a table is a tensor")).clone();
        tensor.name = format!("{}@{}", tensor.name, self.devices[device.0].name);
        graph.tensors.push(tensor);
        let copy = TensorId(graph.tensors.len() - 1);
        node.output = Some(copy);
        graph.nodes.insert(at, node);
        self.nodes.insert(at, device);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
    use crate::graph::{RopePairing, RopeSpec};
    use crate::weight::{WeightShape, WeightSpec};
    use pianola_formats::TensorType;

    fn spec(name: &str) -> DeviceSpec {
        DeviceSpec {
            name: name.to_string(),
            layout: "rows",
            fuses: true,
            rounds_rows: false,
            asynchronous: false,
            lacks: Vec::new(),
        }
    }

    /// Two layers that rotate the embedding by one table, and a cap behind them.
    fn graph() -> Graph {
        let mut builder = GraphBuilder::new("toy", 64, 8);
        let shape = WeightShape::Matrix { rows: 8, columns: 4 };
        let name = "table".to_string();
        let table = builder.weight(WeightSpec::whole(name, shape, TensorType::F32));
        let mut x = builder.embed(table, 1.0);
        for layer in 0..2 {
            builder.set_layer(Some(layer));
            let frequencies = vec![1.0, 0.5];
            let pairing = RopePairing::Halves;
            let rope =
                builder.rope_table(RopeSpec { frequencies, magnitude: 1.0, pairing, long: None });
            x = builder.rope("rotated", x, rope, 1);
        }
        builder.set_layer(None);
        let x = builder.soft_cap("capped", x, 2.0);
        builder.finish(x)
    }

    #[test]
    fn layers_go_to_their_devices_and_their_neighbours_with_them() {
        let graph = graph();
        let layers: Vec<Option<usize>> = graph.nodes.iter().map(|node| node.layer).collect();
        assert_eq!(layers, [None, None, Some(0), Some(1), None]);
        let nodes = |counts: &[usize]| {
            let specs = ["a", "b", "c"].into_iter().zip(counts);
            let devices: Vec<_> = specs.map(|(name, &count)| (spec(name), count)).collect();
            let placement = Placement::by_layers(&graph, &devices);
            placement
                .nodes
                .iter()
                .map(|id| placement.devices[id.0].name.clone())
                .collect::<Vec<_>>()
        };
        let names = |names: &str| -> Vec<String> { names.chars().map(String::from).collect() };
        assert_eq!(nodes(&[2]), names("aaaaa"));
        assert_eq!(nodes(&[1, 1]), names("aaabb"));
        assert_eq!(nodes(&[2, 0]), names("aaaab"));
        assert_eq!(nodes(&[0, 2]), names("bbbbb"));
        assert_eq!(nodes(&[1, 1, 0]), names("aaabc"));
    }

    #[test]
    fn shared_tables_are_computed_where_they_are_read() {
        let mut graph = graph();
        let mut placement = Placement::by_layers(&graph, &[(spec("a"), 1), (spec("b"), 1)]);
        placement.share_tables(&mut graph);
        let devices: Vec<usize> = placement.nodes.iter().map(|id| id.0).collect();
        assert_eq!(devices, [0, 0, 0, 1, 1, 1]);
        assert_eq!(graph.tensor(graph.nodes[3].output.unwrap()).name, "angles.0@b");
        assert_eq!(graph.nodes[2].inputs[1], graph.nodes[1].output.unwrap());
        assert_eq!(graph.nodes[4].inputs[1], graph.nodes[3].output.unwrap());
        let before = graph.clone();
        placement.share_tables(&mut graph);
        assert_eq!(graph, before, "once is enough");
    }

    #[test]
    fn an_operation_without_a_kernel_moves_to_a_device_that_has_one() {
        let graph = graph();
        let lacking = DeviceSpec { lacks: vec!["rope"], ..spec("b") };
        let devices = [(spec("a"), 1), (lacking.clone(), 1)];
        let mut placement = Placement::by_layers(&graph, &devices);
        let (from, to) = (DeviceId(1), DeviceId(0));
        assert_eq!(placement.move_unsupported(&graph), Ok(vec![Moved { op: "rope", from, to }]));
        assert_eq!(placement.nodes[3], to);
        let mut alone = Placement::single(&graph, lacking);
        assert_eq!(alone.move_unsupported(&graph), Err("rope"));
    }
}
