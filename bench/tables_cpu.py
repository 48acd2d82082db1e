"""Tables of runs on the processor."""
import json
import math
import re
import statistics

from raw import PEERS, name_of, number, peer_settings, peer_speeds, table

SHORT = {"smollm2:135m": "SmolLM2 135M", "gemma3:270m": "Gemma 3 270M",
         "qwen2.5-coder:1.5b": "Qwen2.5-Coder 1.5B"}


def pairs(run):
    """{(model, test): {program: speeds}}, and our rows."""
    speeds, rows = {}, {}

    def add(model, test, program, speed):
        speeds.setdefault((model, test), {}).setdefault(program, []).append(speed)

    for call in run.of("pianola"):
        for row in call["output"]:
            add(call["model"], row["test"], "pianola", row["tokens_per_second"])
            rows.setdefault((call["model"], row["test"]), []).append(row)
    for peer in PEERS:
        for call in run.of(peer):
            for test, speed in peer_speeds(call):
                add(call["model"], test, peer, speed)
    return speeds, rows


def ceiling_of(rows):
    return statistics.median(row["ceiling_tokens_per_second"] for row in rows)


def settings(run):
    return (f"{run.head('machine')}, {run.head('threads')} threads each, "
            f"{run.head('rounds')} interleaved rounds, medians")


def beside(run):
    """Pianola and its peers, with the spread of the rounds' ratios."""
    speeds, rows = pairs(run)
    peers = [peer for peer in PEERS if run.of(peer)]
    lines = []
    for (model, test), found in speeds.items():
        # Older raw files have no row of ours for prompts and generation together.
        if "pianola" not in found:
            continue
        ours, *theirs = (statistics.median(found[program]) for program in ("pianola", *peers))
        ceiling = ceiling_of(rows[model, test])
        rounds = zip(found["pianola"], *(found[peer] for peer in peers))
        spread = sorted(mine / max(others) for mine, *others in rounds)
        lines.append([name_of(model), test, number(ours), *map(number, theirs), f"{ours / max(theirs):.2f}",
                      f"{spread[0]:.2f} to {spread[-1]:.2f}", number(ceiling), f"{ours / ceiling:.0%}"])
    fork = f"ik_llama.cpp {run.versions('ik_llama.cpp')}" if len(peers) > 1 else None
    ratio = "ratio to the best" if len(peers) > 1 else "ratio"
    head = ["model", "test", "pianola", *peers, ratio, "ratio by round", "ceiling", "of ceiling"]
    return run.table(head, lines, peer_settings(run), fork, settings(run))


def speed(run):
    """The README's table: a prompt and generation, beside the best peer and the limit."""
    speeds, rows = pairs(run)
    tests = list(dict.fromkeys(test for _, test in speeds))
    lines = []
    for model in dict.fromkeys(model for model, _ in speeds):
        cells = [SHORT.get(model, model)]
        for test in tests:
            found = speeds[model, test]
            best = max(statistics.median(found[peer]) for peer in PEERS if peer in found)
            shown = (statistics.median(found["pianola"]), best, ceiling_of(rows[model, test]))
            cells += [f"{value:,.0f}" for value in shown]
        lines.append(cells)
    head = ["model", "reading a prompt", "best other engine", "limit",
            "generating", "best other engine", "limit"]
    return run.table(head, lines, settings(run))


def load(run):
    """Time and memory from the start of a process to its first token."""
    seconds = lambda value: f"{value:.2f} s"
    megabytes = lambda value: f"{value / 1e6:,.0f} MB"
    lines = []
    for model in dict.fromkeys(call["model"] for call in run.runs):
        cells = [name_of(model)]
        for key, show in [("seconds", seconds), ("peak_bytes", megabytes)]:
            for program in ("pianola", "llama.cpp"):
                calls = run.of(program, model=model)
                cells.append(show(statistics.median(call["output"][key] for call in calls)))
        lines.append(cells)
    head = ["model", "pianola", "llama.cpp", "peak memory, pianola", "peak memory, llama.cpp"]
    about = f"{settings(run)}, context {run.head('context')}"
    return run.table(head, lines, f"llama.cpp {run.versions('llama.cpp')}", about)


def deviation(row):
    return f"{number(row['tokens_per_second'])} ± {number(row['stddev'])}"


def cpu_types(run):
    """Bytes read and operations computed a second, by type of the weights and instruction set."""
    lines = []
    for call in run.of(what="shape"):
        rows = {row["test"][:2]: row for row in call["output"]}
        prompt, generation = rows["pp"], rows["tg"]
        ceilings = generation["ceilings"][0]
        read = generation["bytes_per_token"] * generation["tokens_per_second"]
        # A prompt's ceiling is its operations at the measured rate.
        each = ceilings["operations_per_second"] / prompt["ceiling_tokens_per_second"]
        level = re.search(r"\((.+?),", generation["device_name"])[1]
        lines.append([f"{call['shape']} {call['quant'].upper()}", level, number(generation["tokens_per_second"]),
                      f"{read / 1e9:.1f} GB/s", f"{read / ceilings['bytes_per_second']:.0%}",
                      number(prompt["tokens_per_second"]), f"{each * prompt['tokens_per_second'] / 1e9:,.0f} GOP/s",
                      f"{prompt['fraction_of_ceiling']:.0%}"])
    head = ["model", "instructions", "tg tokens/s", "read a second", "of a plain read", "pp tokens/s",
            "computed a second", "of the ceiling"]
    return run.table(head, lines, run.head("machine"))


def cores(run):
    """Instruction sets and numbers of threads, with llama.cpp's rows beside them."""
    lines = []
    for call in run.runs:
        model = f"{call['shape']} {call['quant'].upper()}"
        if call["program"] == "llama.cpp":
            level = "llama.cpp, " + re.findall(r"libggml-cpu-(\w+)", call["messages"])[-1]
            for row in json.loads(call["output"]):
                test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
                lines.append([model, level, row["n_threads"], test, number(row["avg_ts"]), "", ""])
            continue
        for row in call["output"]:
            lines.append([model, row["simd"], row["threads"], row["test"], deviation(row),
                          number(row["ceiling_tokens_per_second"]), f"{row['fraction_of_ceiling']:.0%}"])
    head = ["model", "instructions", "threads", "test", "tokens/s", "ceiling", "of ceiling"]
    peer = run.versions("llama.cpp")
    return run.table(head, lines, f"llama.cpp {peer}" if peer else None, run.head("machine"))


def serve(run):
    """The engine alone and the same conversations through HTTP."""
    lines = []
    for engine, http in zip(run.of(what="engine"), run.of(what="http")):
        found, theirs = http["output"], engine["output"]["tokens_per_second"]
        ours, resident = found["tokens_per_second"], found["resident_bytes"]
        lines.append([f"round {http['round'] + 1}", number(theirs), number(ours), f"{ours / theirs:.2f}",
                      found["requests"], found["incomplete"] + found["unfinished"],
                      f"{found['client_cpu_seconds']:.1f} s",
                      f"{resident[0] / 1e6:,.0f} to {resident[-1] / 1e6:,.0f} MB"])
    head = ["", "engine alone", "through HTTP", "ratio", "requests", "lost", "client's processor time",
            "server's memory"]
    lines = table(head, lines)
    for found in (idle["output"] for idle in run.of(what="idle")):
        lines += ["", f"HTTP delays the first token of a single request by {found['p50_ms']:.1f} ms "
                  f"(median of {found['requests']} requests;",
                  f"99th percentile {found['p99_ms']:.1f} ms)."]
    about = f"{run.head('conversations')} conversations at once, {run.head('lanes')} lanes"
    return [*lines, "", *run.caption(run.head("machine"), about)]


def percentile(values, share):
    """The smallest value that at least this share of the values does not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def of_users(calls):
    """(tokens a second, median time to the first token, 95th percentile): medians of the rounds."""
    rounds = [call["output"] for call in calls]
    tokens = [sum(row["output_tokens"] for row in found["requests"]) / found["seconds"] for found in rounds]
    firsts = [[row["first_token_ms"] for row in found["requests"]] for found in rounds]
    return (statistics.median(tokens), statistics.median(percentile(times, 0.5) for times in firsts),
            statistics.median(percentile(times, 0.95) for times in firsts))


def users(run):
    """What several users get at once, beside llama-server."""
    cases = dict.fromkeys(tuple(call[key] for key in ("model", "streams", "prompt", "generate"))
                          for call in run.runs)
    lines = []
    for model, streams, prompt, generate in cases:
        case = {"model": model, "streams": streams, "prompt": prompt, "generate": generate}
        found = [of_users(run.of(program, **case)) for program in ("pianola", "llama-server")]
        (ours, *_), (theirs, *_) = found
        waits = [f"{middle / 1e3:.2f} s, {late / 1e3:.2f} s" for _, middle, late in found]
        lines.append([SHORT.get(model, model), streams, f"{prompt} + {generate}", number(ours), number(theirs),
                      f"{ours / theirs:.1f}", *waits])
    head = ["model", "users", "tokens each", "pianola, tokens/s", "llama-server, tokens/s", "ratio",
            "first token: p50, p95", "llama-server's"]
    about = f"guidellm {run.head('guidellm')}, {run.head('requests')} requests a user, {settings(run)}"
    return run.table(head, lines, f"llama-server {run.versions('llama-server')}", about)
