"""Tables of runs on a GPU."""
import re
import statistics

from raw import number, peer_settings, peer_speeds


def shape_rows(run, what):
    """{(shape and type, test): {tuned: rows}}"""
    found = {}
    for call in run.of(what=what):
        for row in call["output"]:
            if "ablation" not in row:
                key = (f"{call['shape']} {call['quant'].upper()}", row["test"])
                found.setdefault(key, {}).setdefault(call["tuned"], []).append(row)
    return found


def mean(rows, key):
    return statistics.mean(row[key] for row in rows)


def speed(rows):
    if not rows:
        return ""
    left_out = sum(row["left_out"] for row in rows)
    text = f"{number(mean(rows, 'tokens_per_second'))} ± {number(mean(rows, 'stddev'))}"
    return f"{text} ({left_out} left out)" if left_out else text


def device(run):
    rows = [row for call in run.of() if isinstance(call["output"], list) for row in call["output"]]
    names = dict.fromkeys(row["device_name"] for row in rows)
    drivers = dict.fromkeys(driver for row in rows for driver in row["options"]["drivers"])
    return f"{', '.join(names)}, {', '.join(drivers)}"


def peers_of(run):
    """llama.cpp's speeds by shape, type and test."""
    found = {}
    for call in run.of("llama.cpp"):
        for test, rate in peer_speeds(call):
            found.setdefault((f"{call['shape']} {call['quant'].upper()}", test), []).append(rate)
    return found


def shapes(run, what="shape"):
    rows = shape_rows(run, what)
    peers = {key: found for key, found in peers_of(run).items() if key in rows}
    tuned = any(True in found for found in rows.values())
    lines = []
    for key, found in rows.items():
        base = found.get(False) or found[True]
        busy = [row["busy_share"] for row in base if row["busy_share"] is not None]
        rate, ceiling = mean(base, "tokens_per_second"), mean(base, "ceiling_tokens_per_second")
        cells = [*key, speed(found.get(False, []))]
        cells += [speed(found.get(True, []))] if tuned else []
        cells += [number(statistics.mean(peers[key])) if key in peers else ""] if peers else []
        cells += [number(ceiling), f"{rate / ceiling:.0%}", f"{statistics.mean(busy):.0%}" if busy else "",
                  f"{mean(base, 'host_microseconds_per_step'):.0f} µs", f"{mean(base, 'submits_per_step'):.1f}",
                  f"{mean(base, 'dispatches_per_step'):.0f}"]
        lines.append(cells)
    head = ["model", "test", "tokens/s", *(["tuned"] if tuned else []), *(["llama.cpp"] if peers else []),
            "ceiling", "of ceiling", "busy", "host a step", "submits", "dispatches"]
    return run.table(head, lines, device(run), peers and peer_settings(run))


def lanes(run):
    return shapes(run, "lanes")


def tandem(run):
    """Ways to compute a model that a GPU's memory does not hold."""
    lines = [[call["way"], *(speed([row]) for row in call["output"])] for call in run.of(what="tandem")]
    tests = [row["test"] for row in run.of(what="tandem")[0]["output"]]
    return run.table(["computed by", *tests], lines, device(run))


def submits(run):
    """Generation by the number of tokens that a submission may have."""
    found = {}
    for call in run.of(what="shape"):
        words = call["command"]
        tokens = int(words[words.index("--tokens-per-submit") + 1])
        for row in call["output"]:
            found.setdefault((f"{call['shape']} {call['quant'].upper()}", row["test"]), {})[tokens] = row
    counts = sorted({tokens for rows in found.values() for tokens in rows})
    lines = [[*key, *(speed([rows[tokens]]) for tokens in counts)] for key, rows in found.items()]
    head = ["model", "test", *(f"up to {tokens} tokens a submission" for tokens in counts)]
    return run.table(head, lines, device(run))


def types(run):
    """Bytes a second that generation reads, by the type of the weights."""
    lines = []
    for call in run.of(what="shape"):
        for row in call["output"]:
            if row.get("bytes_per_token"):
                read = row["bytes_per_token"] * row["tokens_per_second"]
                measured = row["ceilings"][0]["bytes_per_second"]
                lines.append([f"{call['shape']} {call['quant'].upper()}", row["test"], speed([row]),
                              f"{row['bytes_per_token'] / 1e9:.2f} GB", f"{read / 1e9:,.0f} GB/s",
                              f"{measured / 1e9:,.0f} GB/s", f"{read / measured:.0%}"])
    head = ["model", "test", "tokens/s", "read a token", "read a second", "a plain read", "of it"]
    return run.table(head, lines, device(run))


def gpu_load(run):
    """From a program's start to the first token."""
    found = {}
    for call in run.of(what="load"):
        model = f"{call['shape']} {call['quant'].upper()}, {call['file_bytes'] / 1e9:.1f} GB"
        found.setdefault((model, call["kept_pipelines"], call["cached"]), []).append(call)
    lines = []
    for (model, kept, _), calls in found.items():
        median = lambda key: statistics.median(call["output"][key] for call in calls)
        share = statistics.median(call["cached_share"] for call in calls)
        lines.append([model, "kept" if kept else "none", f"{share:.0%}", f"{median('first_token_seconds'):.2f} s",
                      f"{median('load_weights_seconds'):.2f} s",
                      f"{median('load_bytes_per_second') / 1e9:.2f} GB/s"])
    head = ["file", "pipelines", "of the file in memory", "first token", "of it weights", "weights"]
    starts = f"starts of each: {run.head('rounds')}"
    return run.table(head, lines, run.head("gpu"), run.head("machine"), starts)


def reproducible(run):
    normal, lines = shape_rows(run, "shape"), []
    for key, found in shape_rows(run, "reproducible").items():
        ours, usual = found[False], normal[key][False]
        ratio = mean(ours, "tokens_per_second") / mean(usual, "tokens_per_second")
        lines.append([*key, speed(usual), speed(ours), f"{ratio:.2f}"])
    return run.table(["model", "test", "tokens/s", "with --reproducible", "ratio"], lines, device(run))


def ablate(run):
    lines = []
    for call in run.of(what="shape"):
        rows = [row for row in call["output"] if "ablation" in row]
        for row in rows:
            lines.append([f"{call['shape']} {call['quant'].upper()}", row["ablation"], speed([row]),
                          f"{row['tokens_per_second'] / rows[0]['tokens_per_second']:.0%}",
                          f"{row['host_microseconds_per_step']:,.0f} µs", f"{row['allocations_per_step']:.0f}",
                          f"{row['allocated_bytes_per_step'] / 1e3:,.0f} kB"])
    head = ["model", "generation", "tokens/s", "of recorded once", "host a step", "allocations a step",
            "of them bytes"]
    return run.table(head, lines, device(run))


def sampling(run):
    times, kinds = {}, {}
    for call in run.of(what="sampling"):
        for line in call["output"].splitlines():
            if found := re.match(r"(\d+) x (\d+) tokens, (.*): ([\d.]+) µs", line):
                rows, vocabulary, kind, time = found.groups()
                times[int(vocabulary), int(rows), kind] = time
                kinds[kind] = True
    places = dict.fromkeys((vocabulary, rows) for vocabulary, rows, _ in times)
    lines = [[f"{rows} of {vocabulary:,}", *(f"{times[vocabulary, rows, kind]} µs" for kind in kinds)]
             for vocabulary, rows in places]
    return run.table(["rows and tokens", *kinds], lines, device(run))
