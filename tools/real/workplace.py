"""The work folder: the models and the data under the names that rows show, method files, corpora, and the commands."""

import gzip
import importlib.util
import json
import re
import shlex
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specbench.core.files import write_atomically
from specbench.models.gguf.files import is_gguf
from specbench.models.machine import commit
from specbench.results.leaderboard import ROWS
from specbench.results.runs import FAIRNESS_FILE, NEEDED_FILES, RecordedRun
from specbench.tasks.readers import CATEGORIES
from tools.commands import ROOT, link, run_specbench

from .cells import CALIBRATED, LANGUAGES, Cell, fairness_words, made_methods, made_tasks, run_words
from .lengths import calibrated
from .models import MODELS, QWEN, QWEN_DRAFTER

GENERAL, LOW_RESOURCE = "general", "low-resource"
NUM_MEASURED = 30  # rows at the beginning of a file that no corpus has, since cells measure them
CORPUS_TASKS = ("gsm8k", "humaneval")  # of whose files the general corpus has the rows behind these
STORE = re.compile(r"(.+)-(ngram|retrieval)(?:-order-(\d))?")  # its corpus, its kind, and its order if not the default
TRAINED, TRAINING_ROWS = "trained", "corpora/mgsm-training"
# The paper's 250 updates of 4 × 5 × 64 prompts take days on a CPU: these are 20 of 5 languages × 2 prompts. With so few
# prompts an update is mostly noise, and at the paper's rate of 1e-4 such a training made every language worse.
TRAINING = (
    "--num-steps", "20", "--learning-rate", "1e-5", "--set", "gradient_accumulation=1",
    "--set", "scdf.prompts_per_language=2", "--set", "scdf.mini_batch=2", "--set", "generation_batch=10",
    "--set", "checkpoint_every=5",
)  # fmt: skip


@dataclass(frozen=True)
class Workplace:
    """`folder` is where all commands run. `data`: the folder of real rows; None: the bundled samples are measured.
    `trained`: the folder of the drafter that s-CDF has trained, if there is one."""

    folder: Path
    models: Path
    data: Path | None
    trained: Path | None
    threads: int

    def prepare(self) -> None:
        """Makes links to models and data, and the files of methods and tasks."""
        for name in ("methods", "tasks", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for model in MODELS:
            link(self.folder / model.path, self.models / model.folder)
        for name, source in (("data", self.data), ("trained", self.trained)):
            if source is not None and source != self.folder / name:
                link(self.folder / name, source)
        self.write_specs("methods", made_methods())
        self.write_specs("tasks", made_tasks())

    def write_specs(self, kind: str, made: Mapping[str, Mapping[str, Any]]) -> None:
        for name, content in made.items():
            text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
            write_atomically(self.folder / kind / f"{name}.yaml", text)

    def missing(self, cell: Cell) -> str | None:
        """Returns why a cell cannot be measured here; None: it can."""
        named = {made_methods().get(name, {}).get("drafter", {}).get("checkpoint") for name in cell.methods}
        models = [model for model in MODELS if model in (cell.target, cell.drafter) or model.path in named]
        for model in models:
            if not (self.models / model.folder).exists():
                return f"{self.models / model.folder} is missing"
        if any(is_gguf(model.folder) for model in models) and importlib.util.find_spec("llama_cpp") is None:
            return "llama-cpp-python is not installed (pip install 'specbench-lm[gguf]')"
        if cell.needs_trained and self.trained is None:
            return "it needs a trained drafter (--train makes one; --trained FOLDER names it)"
        if (cell.data.folder in ("low_resource", "tatoeba") or cell.data.is_made) and self.data is None:
            return "it needs --data: there is no bundled sample of these rows"
        if absent := [name for name in cell.after if not self.has_finished(name)]:
            return f"it reads the records of {', '.join(absent)}: measure that first"
        return None

    def train(self) -> None:
        """Trains the drafter by s-CDF on the target's own answers, or continues. Exits if that fails."""
        if self.data is None:
            raise SystemExit("--train needs --data DIR: with the bundled samples it would train on what cells measure")
        rows_folder = self.folder / TRAINING_ROWS
        rows_folder.mkdir(parents=True, exist_ok=True)
        for language in LANGUAGES:
            name = f"mgsm_{language}.tsv"
            lines = (self.data / "mgsm" / name).read_text(encoding="utf-8").splitlines(keepends=True)
            write_atomically(rows_folder / name, "".join(lines[NUM_MEASURED:]))
        if not self.specbench("train-scdf", training_words(self.threads)):
            raise SystemExit("--train: could not train; the same command goes on")

    def run_folder(self, name: str) -> Path:
        return self.folder / "cells" / name

    def words(self, cell: Cell) -> list[str]:
        """Returns the words of the cell's run."""
        return run_words(cell, None if self.data is None else "data", self.threads)

    def measure(self, cell: Cell) -> bool:
        """Runs the cell, or continues it. Returns whether it is finished."""
        for store in stores(cell):
            self.make_store(store)
        if cell.data.is_made:
            self.make_rows(cell.data.folder)
        if CALIBRATED.keys() & cell.methods:
            self.write_specs("methods", calibrated([RecordedRun(self.run_folder(name)) for name in cell.after]))
        self.set_aside(cell)
        if not self.has_finished(cell.name) and not self.specbench(cell.name, self.words(cell)):
            return False
        report = self.run_folder(cell.name) / FAIRNESS_FILE
        if cell.fairness and not report.exists():
            found = self.specbench(f"{cell.name}-fairness", fairness_words(cell, self.threads))
            if not found:
                return False
            write_atomically(report, (self.folder / "logs" / f"{cell.name}-fairness.txt").read_text(encoding="utf-8"))
        return all((self.run_folder(cell.name) / name).is_file() for name in NEEDED_FILES)

    def has_finished(self, name: str) -> bool:
        """Whether a cell's run has ended: its rows are written last."""
        return (self.run_folder(name) / ROWS).is_file()

    def set_aside(self, cell: Cell) -> None:
        """Renames the folder of an interrupted run of another version of specbench, which no version continues."""
        file = self.run_folder(cell.name) / "run.json"
        if self.has_finished(cell.name) or not file.is_file():
            return
        begun = json.loads(file.read_text(encoding="utf-8"))["environment"]["commit"]
        if begun == commit(ROOT):
            return
        kept = file.parent.with_name(f"{cell.name}.of-{begun}")
        shutil.rmtree(kept, ignore_errors=True)
        file.parent.rename(kept)
        print(f"{cell.name}: was begun by commit {begun}: measured anew; its records are in {kept}", flush=True)

    def specbench(self, name: str, words: Sequence[str]) -> bool:
        """Runs specbench; its output goes into logs/NAME.txt, its errors to the terminal. Returns whether it ended
        well."""
        print(shlex.join(["specbench", *words]), flush=True)
        with (self.folder / "logs" / f"{name}.txt").open("w", encoding="utf-8") as log:
            return run_specbench(words, self.folder, self.threads, log).returncode == 0

    def make_rows(self, name: str) -> None:
        """Writes the rows of a made task into the work folder."""
        assert self.data is not None
        folder = self.folder / "rows" / name
        folder.mkdir(parents=True, exist_ok=True)
        file, text = MADE_ROWS[name](self.data)
        write_atomically(folder / file, text)

    def make_store(self, name: str) -> None:
        """Builds an n-gram model or a datastore of Qwen's tokens, unless it is there."""
        found = STORE.fullmatch(name)
        assert found is not None, name
        corpus, kind, order = found.groups()
        folder = self.folder / "stores" / name
        if folder.is_dir():
            return
        text = self.folder / "corpora" / f"{corpus}.jsonl"
        text.parent.mkdir(exist_ok=True)
        documents = {GENERAL: general, LOW_RESOURCE: low_resource}[corpus](self.data)
        lines = (json.dumps({"text": each}, ensure_ascii=False) + "\n" for each in documents if each.strip())
        write_atomically(text, "".join(lines))
        words = ["train", kind, "--corpus", f"corpora/{corpus}.jsonl", "--target", QWEN.path]
        words += ["--order", order] if order else []
        if not self.specbench(f"store-{name}", [*words, "--output", f"stores/{name}"]):
            raise SystemExit(f"{name}: could not be made")


def training_words(threads: int) -> list[str]:
    """Returns the words of the training of the cell mgsm-scdf: its pair, languages and prompt, and none of its rows."""
    return [
        "train", "scdf", "--task", "mgsm", "--subset", ",".join(LANGUAGES), "--data", TRAINING_ROWS,
        "--target", QWEN.path, "--drafter", QWEN_DRAFTER.path, "--dtype", "bfloat16", "--threads", str(threads),
        *TRAINING, "--output", TRAINED,
    ]  # fmt: skip


def stores(cell: Cell) -> list[str]:
    """Returns the stores that the cell's methods read."""
    found = [made_methods().get(name, {}).get("drafter", {}).get("path", "") for name in cell.methods]
    return [path.removeprefix("stores/") for path in found if path]


def general(data: Path | None) -> Iterator[str]:
    """Yields code of Python's standard library, and rows behind the measured ones of GSM8K and HumanEval, and
    meetings."""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield file.read_text(encoding="utf-8", errors="replace")
    if data is None:
        return
    for row in rows(next((data / "gsm8k").glob("*.jsonl")))[NUM_MEASURED:]:
        yield f"{row['question']}\n{row['answer']}"
    for row in rows(data / "humaneval" / "HumanEval.jsonl.gz")[NUM_MEASURED:]:
        yield row["prompt"] + row["canonical_solution"]
    for row in rows(next((data / "qmsum").glob("*.jsonl"))):
        yield "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in row["meeting_transcripts"])


def low_resource(data: Path | None) -> Iterator[str]:
    """Yields sentences in Cherokee, Quechua and Yoruba, none of them the translation of a measured row."""
    assert data is not None
    folder = data / "low_resource"
    sources = [(folder / "chren_mono_head500.chr", 0), (folder / "chren_dev_head200.chr", NUM_MEASURED),
               (folder / "quechua_dev_head200.quy", NUM_MEASURED)]  # fmt: skip
    for file, first in sources:
        yield from file.read_text(encoding="utf-8").splitlines()[first:]
    for line in (folder / "menyo_dev_head200.tsv").read_text(encoding="utf-8").splitlines()[1 + NUM_MEASURED :]:
        yield line.split("\t")[1]


def humaneval_behind(data: Path) -> tuple[str, str]:
    return "HumanEval.jsonl", as_lines(rows(data / "humaneval" / "HumanEval.jsonl.gz")[NUM_MEASURED:])


def wmt_behind(data: Path) -> tuple[str, str]:
    (file,) = (data / "wmt22").glob("*de-en*.json")
    return file.name, json.dumps(json.loads(file.read_text(encoding="utf-8"))[NUM_MEASURED:], ensure_ascii=False)


def first_turns(data: Path) -> tuple[str, str]:
    """Prompts of one turn, so that answers may be a memory for others, one of each category in turn."""
    by_category: dict[str, list[dict[str, Any]]] = {name: [] for name in CATEGORIES}
    for row in rows(data / "spec_bench" / "question.jsonl"):
        if row["category"] in by_category:
            by_category[row["category"]].append({**row, "turns": row["turns"][:1], "reference": None})
    return "question.jsonl", as_lines(row for group in zip(*by_category.values(), strict=False) for row in group)


# By folder, the name and the content of the file of rows.
MADE_ROWS: dict[str, Callable[[Path], tuple[str, str]]] = {
    "humaneval-behind": humaneval_behind, "wmt22-behind": wmt_behind, "mt-bench-first-turns": first_turns,
}  # fmt: skip


def as_lines(found: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)


def rows(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file of JSON lines, which may be compressed."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in raw.decode("utf-8").splitlines() if line.strip()]
