"""The raw files of bench/runs, and what tables share: names, numbers, versions."""
import json
import re
import subprocess
import textwrap

from record import RUNS

NAMES = {"smollm2:135m": "SmolLM2-135M Q4_1", "gemma3:270m": "Gemma 3 270M Q4_K_M",
         "qwen2.5-coder:1.5b": "Qwen2.5-Coder 1.5B Q4_K_M"}
PEERS = ["llama.cpp", "ik_llama.cpp", "ik_llama.cpp -rtr 1"]
ATTENTION = {-1: "auto", 0: "off", 1: "on", False: "off", True: "on"}


def of_comparison(row):
    """A row of scripts/gpu-quality in the form of the other raw files."""
    return {"program": "pianola", "version": f"({row['commit']})", "output": row}


class Run:
    """The raw files of a run's folder."""

    def __init__(self, folder):
        self.folder = folder
        files = [json.loads(file.read_text()) for file in sorted(folder.glob("raw*.json"))]
        self.heads = [{key: value for key, value in file.items() if key != "runs"} for file in files]
        self.runs = [run for file in files for run in file["runs"]]
        for file in folder.glob("quality.json"):
            self.runs += [of_comparison(row) for row in json.loads(file.read_text())]

    @classmethod
    def newest(cls, kind):
        """The newest run bench/runs/DATE-KIND; None if there is none."""
        folders = sorted(folder for folder in RUNS.glob(f"*-{kind}") if folder.name[11:] == kind)
        return cls(folders[-1]) if folders else None

    def of(self, program="pianola", **wanted):
        return [run for run in self.runs if run["program"] == program
                and all(run.get(key) == value for key, value in wanted.items())]

    def versions(self, program):
        return ", ".join(dict.fromkeys(run["version"] for run in self.of(program) if "version" in run))

    def head(self, key):
        return ", ".join(dict.fromkeys(str(head[key]) for head in self.heads if key in head))

    def caption(self, *more):
        """Where the rows lie and what made them, in lines of a page's width."""
        parts = [f"Raw rows: `bench/runs/{self.folder.name}`", f"Pianola {self.versions('pianola')}",
                 *filter(None, more)]
        text = "; ".join(parts) + "."
        return textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)

    def table(self, head, rows, *about):
        """A table with its caption below; nothing if it has no rows."""
        return [*table(head, rows), "", *self.caption(*about)] if rows else []


def name_of(model):
    return NAMES.get(model, model)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def number(value):
    """Three digits at least, a comma for thousands."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def peer_rows(call):
    if call["command"][0] == "llama-batched-bench":
        return [json.loads(line) for line in call["output"].splitlines() if line.startswith("{")]
    return json.loads(call["output"])


def peer_speeds(call):
    for row in peer_rows(call):
        if "speed_pp" in row:
            yield f"pp{row['pp']} x {row['pl']}", row["speed_pp"]
            yield f"tg{row['tg']} x {row['pl']}", row["speed_tg"]
            yield f"pp{row['pp']}+tg{row['tg']} x {row['pl']}", row["speed"]
        else:
            test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
            yield test + (f" @ d{row['n_depth']}" if row.get("n_depth") else ""), row["avg_ts"]


def peer_settings(run):
    """llama.cpp's settings as its own output has them."""
    calls = run.of("llama.cpp")
    rows = [row for call in calls for row in peer_rows(call)]
    if not rows:
        return None
    found = lambda key, show=str: "/".join(dict.fromkeys(show(row[key]) for row in rows if key in row))
    parts = [f"flash attention {found('flash_attn', lambda value: ATTENTION.get(value, str(value)))}",
             f"batches of {found('n_batch')}, {found('n_ubatch')}"]
    if found("type_k"):
        parts.append(f"keys and values {found('type_k')}")
    backends = dict.fromkeys(name for head in run.heads for name in head.get("llama_cpp_backend", []))
    build = run.versions("llama.cpp") or f"{found('build_commit')} ({found('build_number')}), {found('gpu_info')}"
    return f"llama.cpp {build}, {', '.join([*backends, *parts])}"


def git(*words):
    return subprocess.run(["git", "-C", RUNS, *words], capture_output=True, text=True)


def faults_of(run):
    """What is missing of where a run's rows come from."""
    whole = git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"
    for version in sorted({call.get("version", "") for call in run.of("pianola")}):
        commit = re.search(r"\(([0-9a-f]{7,})\)$", version)
        if not commit:
            yield f"made by '{version}', a build without a commit"
        elif whole and git("merge-base", "--is-ancestor", commit[1], "HEAD").returncode:
            yield f"made by '{version}', whose commit is not in the history"
    for peer in [*PEERS, "llama-server"]:
        if any(not call.get("version") for call in run.of(peer)):
            yield f"rows of {peer} without a version"
