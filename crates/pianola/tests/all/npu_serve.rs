//! `serve` with an NPU that fails and works again, as `/metrics` and `/status` tell of it: with an emulated NPU
//! behind the device node, of which the binary knows nothing.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use crate::common::Folder;
use crate::common::npu::Machine;
use crate::common::server::Server;
use serde_json::Value;

/// A greedy answer to a prompt that has more tokens than a step has to have for the NPU.
fn answer(server: &Server, beginning: &str) -> String {
    let prompt = format!("{beginning}_was_a_bright_cold_day_in_april_and_the_clocks_were_striking");
    let body = format!(
        r#"{{"prompt": "{prompt}", "max_tokens": 8, "temperature": 0, "ignore_eos": true}}"#
    );
    let answer = server.post("/v1/completions", "", &body);
    answer.is(200, "text_completion");
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
    answer["choices"][0]["text"].as_str().unwrap().to_string()
}

/// The value of a metric for a device.
fn metric(server: &Server, name: &str, device: &str) -> f64 {
    let text = server.get("/metrics").body;
    let label = format!("device=\"{device}\"");
    let mut lines = text.lines().filter(|line| line.starts_with(name) && line.contains(&label));
    let value = lines.next().and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} of {device} in {text}"))
}

/// A device's part of the model.
fn part(server: &Server, device: &str) -> Value {
    let status: Value = serde_json::from_str(&server.get("/status").body).unwrap();
    let parts = status["models"][0]["parts"].as_array().unwrap();
    let found = parts.iter().find(|part| part["device"] == device);
    found.unwrap_or_else(|| panic!("no {device} in {status}")).clone()
}

#[test]
fn metrics_tell_of_an_npu_that_fails_and_works_again() {
    let machine = Machine::with_packages();
    let kernels = machine.folder.path.join("npu_kernels");
    let arguments =
        ["--device", "npu+cpu", "--npu-work", "always", "--npu-precision", "bf16", "--npu-kernels"];
    let arguments = [&arguments[..], &[kernels.to_str().unwrap()]].concat();
    // Self-tests and loading take 5 commands.
    let variables = machine.variables("error@10");
    let server = Server::launch_with(Folder::model, &arguments, "", &variables);
    server.until("it is ready", || server.get("/ready").status == 200);
    // The processor keeps weights in two forms only where it computes alone.
    let alone = Server::tiny(&["--prompt-weights", "off"]);
    assert_eq!(metric(&server, "pianola_device_failures_total", "npu"), 0.0);

    assert_eq!(answer(&server, "it"), answer(&alone, "it"));
    assert_eq!(metric(&server, "pianola_device_failures_total", "npu"), 1.0);
    assert_eq!(metric(&server, "pianola_device_left_out", "npu"), 1.0);
    assert_eq!(metric(&server, "pianola_device_failures_total", "cpu"), 0.0);
    let told = |words: &str| server.written().iter().filter(|line| line.contains(words)).count();
    assert_eq!(told("the step is computed without npu"), 1, "{:#?}", server.written());
    let failed = part(&server, "npu");
    assert_eq!((&failed["failures"], &failed["left_out"]), (&1.into(), &true.into()), "{failed}");

    // It is tried again after a second.
    let expected = answer(&alone, "that");
    let mut beginning = 0;
    server.until("the NPU is used again", || {
        // Another prompt each time: one that is kept needs no device.
        beginning += 1;
        answer(&server, &format!("{beginning}_that"));
        metric(&server, "pianola_device_left_out", "npu") == 0.0
    });
    assert_eq!(answer(&server, "that"), expected);
    assert_eq!(metric(&server, "pianola_device_failures_total", "npu"), 1.0);
    assert_eq!(metric(&server, "pianola_device_left_out", "npu"), 0.0);
    assert_eq!(told("npu works again"), 1, "{:#?}", server.written());
    for device in ["npu", "cpu"] {
        assert!(metric(&server, "pianola_device_work_seconds_total", device) > 0.0, "{device}");
        let share = part(&server, device)["work_share"].as_f64().unwrap();
        assert!(share > 0.0 && share < 1.0, "{device}: {share}");
    }
}
