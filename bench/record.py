"""What the scripts of this folder share: calling both programs, and keeping what they said.

A run is a folder `bench/runs/DATE-KIND` with files raw*.json, each one object: date, machine, settings, and `runs`, a
list of calls with their command, version and whole output. Commands are kept without the folders of the machine they
ran on.
"""
import json
import os
import platform
import shutil
import shlex
import subprocess
import time
from pathlib import Path

RUNS = Path(__file__).resolve().parent / "runs"
BUILT = Path(__file__).resolve().parent.parent / "target/release/pianola"


def processor():
    try:
        names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith("model name")]
        return f"{names[0]}, {len(names)} cores"
    except (OSError, IndexError):
        return platform.processor()


def store():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("PIANOLA_HOME") or cache / "pianola") / "models"


def model_file(model):
    """The file of a name from the catalogue, or the file itself."""
    return Path(model) if model.endswith(".gguf") else store() / (model.replace(":", "-") + ".gguf")


def model_name(model):
    """A name from the catalogue, or that of a file."""
    return Path(model).stem if model.endswith(".gguf") else model


def stripped(words):
    """Words of a command without folders."""
    return [word.rsplit("/", 1)[-1] if word.startswith("/") else word for word in words]


def call(words):
    """Runs a command; (its standard output, its standard error)."""
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"there is no program {words[0]}: build or install it, or name where it is (--help)") from None
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(map(str, words))} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, done.stderr


class Pianola:
    """This project's program, with words before it where it needs a wrapper."""

    name = "pianola"

    def __init__(self, command):
        self.command = shlex.split(str(command))
        self.version = call([*self.command, "--version"])[0].strip().removeprefix("pianola ")

    def words(self, arguments):
        return [*self.command, *map(str, arguments)]

    def json(self, *arguments):
        """The parsed output of a command, with what it was."""
        out, _ = call(self.words(arguments))
        return {"program": self.name, "version": self.version, "command": ["pianola", *stripped(map(str, arguments))],
                "output": json.loads(out)}


class LlamaCpp:
    """llama.cpp's programs, in a folder that is another system's root where `root` is given."""

    name = "llama.cpp"

    def __init__(self, root):
        self.root = Path(root) if root else None
        lines = "".join(call(self.words("llama-bench", ["--version"]))).splitlines()
        self.version = next(line for line in lines if line.startswith("version:")).removeprefix("version: ")
        # The variant of the processor's kernels, of several that the package has.
        self.backend = [line.rsplit("/", 1)[-1] for line in lines if line.startswith("load_backend: loaded CPU")]

    def words(self, program, arguments):
        before = ["chroot", self.root] if self.root else []
        return [str(word) for word in (*before, program, *arguments)]

    def path(self, file):
        """A file as the programs see it: copied into their root, if they have one."""
        file = Path(file).resolve()
        if not self.root:
            return str(file)
        there = self.root / "bench" / file.name
        if not there.exists() or there.stat().st_size != file.stat().st_size:
            there.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, there)
        return f"/bench/{file.name}"

    def text(self, program, *arguments):
        """The whole output of a command, with what it was."""
        arguments = [str(word) for word in arguments]
        out, err = call(self.words(program, arguments))
        return {"program": self.name, "version": self.version, "command": [program, *stripped(arguments)],
                "output": out, "messages": err}


class IkLlamaCpp:
    """llama-bench of ik_llama.cpp, llama.cpp's fork for processors; with `repack`, weights are laid out anew at load."""

    def __init__(self, program, repack):
        self.program, self.repack = program, repack
        self.name = "ik_llama.cpp -rtr 1" if repack else "ik_llama.cpp"
        self.version = None

    def bench(self, model, args):
        arguments = ["-m", str(model_file(model)), "-t", args.threads, "-p", args.prompt, "-n", args.generate, "-r", 1,
                     *(["-rtr", 1] if self.repack else []), "-o", "json"]
        folder = f"{model_file(model).parent}/"
        out, err = (text.replace(folder, "") for text in call([self.program, *arguments]))
        build = json.loads(out)[0]
        version = f"{build['build_number']} ({build['build_commit']})"
        return {"program": self.name, "version": version, "command": ["llama-bench", *stripped(map(str, arguments))],
                "output": out, "messages": err}


class Record:
    """The file that a run is kept in, written anew after every call."""

    def __init__(self, out, settings, part=""):
        self.file = Path(out) / (f"raw-{part}.json" if part else "raw.json")
        if self.file.exists():
            raise SystemExit(f"{self.file} is there already: name another --out, another --part, or remove it")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SystemExit(f"cannot make the folder {self.file.parent}: {error.strerror}") from None
        self.runs = []
        self.head = {"date": time.strftime("%Y-%m-%d"), "machine": processor(), **settings}

    def add(self, run, **about):
        self.runs.append({**about, **run})
        lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in self.runs)
        head = json.dumps(self.head, ensure_ascii=False)[1:-1]
        self.file.write_text(f'{{{head}, "runs": [\n{lines}\n]}}\n')
