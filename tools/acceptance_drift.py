"""Computes what changes of a public target do to acceptance, and writes docs/measured/drift.md and drift.json.

`python -m tools.acceptance_drift MODELS_DIR --data DIR` has two kinds of parts. A *side* is the 1.5B with one change
(other weights of the same model), beside an unchanged drafter, on given texts: nothing is decoded. A *pair* is two
recorded runs of leaderboards/real with their own answers. drift.json holds each finished part, and the same command
goes on with the others. No figure depends on the load of the machine. The re-quantized files and the adapter are made
in the work folder, once.
"""

import argparse
import gc
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specbench.analysis.drift.drift import (
    GIVEN_BEFORE,
    NUMBERS,
    DriftReport,
    DriftSide,
    ModelSide,
    Sums,
    drift_of_runs,
    report_of,
)
from specbench.core.console import stderr
from specbench.core.environment import set_threads
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.core.table import markdown_table
from specbench.decoding.sampling import Sampling
from specbench.models.machine import environment
from specbench.results.metric_format import with_interval
from specbench.running.request import Request
from specbench.specs.run_options import RunOptions
from specbench.statistics.bootstrap import Estimate
from tools.commands import ROOT
from tools.real.board import Archives
from tools.real.cells import chosen
from tools.real.models import QWEN, QWEN_DRAFTER, QWEN_GGUF
from tools.real.workplace import Workplace

MEASURED = ROOT / "docs" / "measured"
TASK, LIMIT = "wmt", 16
SUBSETS = ("de-en", "en-de", "ja-en", "en-ja")  # sentences of Tatoeba
TEMPERATURES = (0.0, 1.0)
BEFORE, LORA = "bfloat16", "LoRA"
BASE_RUN, METHOD = "gsm8k-chains", "sd"


@dataclass(frozen=True)
class Adapter:
    """The fine-tune: `num_steps` of AdamW over `rows_per_step` rows of WMT22, German to English, behind those that
    other pages measure. The loss is that of the translation."""

    rank: int = 8
    alpha: int = 16
    learning_rate: float = 5e-4
    num_steps: int = 16
    rows_per_step: int = 4
    first_row: int = 30
    seed: int = 0


@dataclass(frozen=True)
class Change:
    """One side. `words`: what the page says. `options`: those of a run that differ. `make`: makes its file or folder
    from the models and the data, at the place that the options name."""

    words: str
    options: Mapping[str, Any]
    make: Callable[[Path, Path], dict[str, Any]] | None = None


def requantize(kind: str) -> Callable[[Path, Path], dict[str, Any]]:
    """Returns a function that makes the GGUF file of another type from the Q4_K_M file, as `llama-quantize
    --allow-requantize` does."""

    def make(place: Path, _: Path) -> dict[str, Any]:
        import llama_cpp

        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        params.allow_requantize, params.nthread = True, torch.get_num_threads()
        fresh = place.with_name(f".new-{place.name}")
        if llama_cpp.llama_model_quantize(QWEN_GGUF.path.encode(), str(fresh).encode(), params) != 0:
            raise RuntimeError(f"llama.cpp cannot requantize {QWEN_GGUF.path} to {kind}")
        fresh.rename(place)
        return {"bytes": place.stat().st_size}

    return make


def train_adapter(place: Path, data: Path) -> dict[str, Any]:
    """Trains the adapter, merges it into the weights and saves them. Returns the mean loss of the first and of the last
    quarter of the steps."""
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = Adapter()
    torch.manual_seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(QWEN.path)
    network = AutoModelForCausalLM.from_pretrained(QWEN.path, dtype=torch.bfloat16)
    config = LoraConfig(r=given.rank, lora_alpha=given.alpha, target_modules="all-linear", task_type=TaskType.CAUSAL_LM)
    adapted: Any = get_peft_model(network, config)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in adapted.parameters() if parameter.requires_grad], lr=given.learning_rate
    )
    (file,) = sorted((data / "wmt22").glob("*de-en*"))
    rows = json.loads(file.read_text(encoding="utf-8"))[given.first_row :]
    losses = []
    for step in range(given.num_steps):
        total = 0.0
        for row in rows[step * given.rows_per_step : (step + 1) * given.rows_per_step]:
            prompt = tokenizer(f"Translate German to English: {row['translation']['de']}")["input_ids"]
            answer = tokenizer(f" {row['translation']['en']}\n", add_special_tokens=False)["input_ids"]
            labels = torch.tensor([[-100] * len(prompt) + answer])
            loss = adapted(input_ids=torch.tensor([prompt + answer]), labels=labels).loss / given.rows_per_step
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
        print(f"LoRA: step {step + 1} of {given.num_steps}, loss {total:.3f}", flush=True)
    merged = adapted.merge_and_unload()
    merged.save_pretrained(place)
    tokenizer.save_pretrained(place)
    quarter = max(1, given.num_steps // 4)
    return {
        **asdict(given), "first_loss": sum(losses[:quarter]) / quarter, "last_loss": sum(losses[-quarter:]) / quarter
    }  # fmt: skip


def requantized(kind: str) -> Change:
    name = f"models/Qwen2.5-Coder-1.5B-Instruct-{kind}-from-Q4_K_M.gguf"
    words = f"the Q4_K_M file quantized again to {kind} by llama.cpp, dequantized"
    return Change(words, {"target": name, "engine": "eager", "tokenizer": QWEN.path}, requantize(kind))


CHANGES: dict[str, Change] = {
    BEFORE: Change("unchanged", {}),
    "int8": Change("`--quantize int8`: weights only, in this process", {"quantize": "int8"}),
    "int4": Change("`--quantize int4`: weights only, in this process", {"quantize": "int4"}),
    "Q3_K_M": requantized("Q3_K_M"),
    "Q2_K": requantized("Q2_K"),
    LORA: Change("a LoRA adapter, merged", {"target": "models/Qwen2.5-Coder-1.5B-Instruct-LoRA"}, train_adapter),
}
PAIRS = {
    "int8": ("gsm8k-int8", "`--quantize int8`"),
    "q4": ("gsm8k-q4", "both GGUF files by llama.cpp: the same weights, other kernels"),
}  # by the name of the part: the cell of the run after the change
Parts = dict[str, dict[str, Any]]  # "sides" and "pairs", each by name


def side_part(name: str, data: Path, limit: int) -> dict[str, Any]:
    """Returns the sums of one side over the texts, by temperature: both read the same pass."""
    change, made = CHANGES[name], {}
    options = RunOptions(**{
        "subsets": SUBSETS, "target": QWEN.path, "drafter": QWEN_DRAFTER.path, "data": "data/tatoeba", "limit": limit,
        "dtype": "bfloat16", "device": "cpu", "chat": "never", "threads": torch.get_num_threads(), **change.options,
    })  # fmt: skip
    if change.make is not None:
        place, note = Path(str(options.target)), Path(f"{options.target}.json")
        if not note.is_file():
            write_atomically(note, json.dumps(change.make(place, data)))
        made = json.loads(note.read_text(encoding="utf-8"))
    loaded, texts = ModelSide(name, Request([TASK], ["sd"], options, f"tools.acceptance_drift: {name}")).load(stderr)
    prompts: dict[str, list[Any]] = {f"{temperature:g}": [] for temperature in TEMPERATURES}
    for done, (key, (example, language, new_ids)) in enumerate(texts.items(), start=1):
        for temperature in TEMPERATURES:
            sampling = Sampling(temperature)
            scored = replace(loaded, sampling=sampling, draft_sampling=sampling)
            overlap = scored.score(loaded.prompts[key], new_ids).overlap
            prompts[f"{temperature:g}"].append([key, example, language, float(overlap.sum()), len(overlap)])
        print(f"{name}: {done} of {len(texts)} texts", flush=True)
    return {"side": loaded.shown.model_dump(mode="json"), "prompts": prompts, "made": made}


def pair_part(name: str, archives: Archives, limit: int) -> dict[str, Any]:
    """Returns the report of `specbench drift` on the first prompts of two recorded runs."""
    cell, _ = PAIRS[name]
    by_name = {each.name: archives.unpacked(each) for each in archives.measured(chosen([BASE_RUN, cell]))}
    if absent := {BASE_RUN, cell} - by_name.keys():
        raise ConfigError(f"no archive of {', '.join(sorted(absent))}: measure it with tools.real")
    options = RunOptions(threads=torch.get_num_threads(), limit=limit)
    report = drift_of_runs(
        f"{by_name[BASE_RUN]}:{METHOD}", f"{by_name[cell]}:{METHOD}", options,
        progress=lambda text: print(f"{name}: {text}", flush=True),
    )  # fmt: skip
    text = report.model_dump_json().replace(f"{archives.board.parent}/", "")
    found: dict[str, Any] = json.loads(text)
    return {"report": found}


def settings(limit: int) -> dict[str, Any]:
    """Returns what all parts of a page have in common."""
    return {"task": TASK, "subsets": list(SUBSETS), "limit": limit, "adapter": asdict(Adapter())}


def read(place: Path, limit: int) -> Parts:
    """Returns the finished parts; none if they were computed with other settings."""
    empty: Parts = {"sides": {}, "pairs": {}}
    try:
        found = json.loads((place / "drift.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return empty
    parts: Parts = found.pop("parts")
    return parts if found == settings(limit) else empty


def compute_parts(names: list[str], place: Path, data: Path, archives: Archives, limit: int) -> bool:
    """Computes the parts that are not finished, and writes the page after each. Returns whether all are finished."""
    parts, failed = read(place, limit), False
    for name in names:
        kind, _, own = name.partition(":")
        if own in parts[kind]:
            continue
        print(name, flush=True)
        try:
            result = side_part(own, data, limit) if kind == "sides" else pair_part(own, archives, limit)
        except (ConfigError, ImportError, RuntimeError) as error:
            print(f"{name}: {error}", flush=True)
            failed = True
            continue
        known = environment("cpu", "", "")
        parts[kind][own] = {"commit": known["commit"], "versions": known["versions"], **result}
        write(parts, place, limit)
        gc.collect()
    write(parts, place, limit)
    return not failed


def report_of_sides(before: Mapping[str, Any], after: Mapping[str, Any], temperature: str) -> DriftReport:
    sums, languages = Sums(), {}
    for number, part in enumerate((before, after)):
        for key, example, language, numerator, denominator in part["prompts"][temperature]:
            sums.add(tuple(key), example, number, GIVEN_BEFORE, numerator, denominator)
            languages[key[0], key[1]] = language
    shown = [DriftSide.model_validate(part["side"]) for part in (before, after)]
    return report_of(sums, shown, f"the references of {TASK}", languages, 0, 0)


HEAD = """# Drift of acceptance

`python -m tools.acceptance_drift MODELS_DIR --data DIR` writes this page and `drift.json`, part by part, \
with the code of
[`specbench drift`](../guide/examine.md#what-does-a-change-do-to-acceptance-drift). The target is
`{target}`, the drafter, which never changes, `{drafter}`, both in bfloat16 and without a chat template.
{source} So every change here is one of weights that had 4 bits already: from the
hub's weights, int8 and int4 would change other things. Intervals are 95 % over prompts, differences paired by prompt.

*Computed*: from one pass of both models over known texts, nothing is decoded. *Measured*: counted while decoding, in
records of real runs.
"""

GIVEN = """
## On given texts, without decoding

All figures are computed. Σ min(p, q) at all positions of the reference translations, the same texts for every row: the
first {limit} sentence pairs of Tatoeba in each direction. Greedy, it is the share of positions at which \
target and drafter have
the same argmax. These are not α of decoding; [below](#on-each-targets-own-answers) stands how far off such a \
number is.

- {changes}
"""

RUNS = """
## On each target's own answers

Records of [real runs](real.md), GSM8K, greedy, 5 draft tokens, the first {limit} prompts. \
α and τ are computed along each target's own answers,
which AR wrote, in the steps that the method takes.
"""

AGREEMENT = """
Do they agree with decoding? *Measured* are the method's own counts. The method's answers differ from AR's on some
prompts (near-ties of bfloat16), so that the difference need not be 0. *Bias*: Σ min(p, q) over all positions of AR's
answers, the one-position number, − the measured α.
"""


def cells(estimate: Estimate, sign: str = "") -> str:
    return with_interval(estimate, 3, sign=sign)


def given_tables(parts: Parts) -> list[str]:
    sides = parts["sides"]
    if BEFORE not in sides:
        return ["Not computed yet."]
    found = []
    for temperature in TEMPERATURES:
        rows = []
        for name in [name for name in CHANGES if name in sides and name != BEFORE]:
            report = report_of_sides(sides[BEFORE], sides[name], f"{temperature:g}")
            for group in report.groups:
                change = group.changes["given_before"]
                rows.append([
                    name if group is report.groups[0] else "", group.label, str(group.num_prompts),
                    str(group.num_positions[0]), cells(change.before), cells(change.after),
                    cells(change.difference, "+"),
                ])  # fmt: skip
        columns = ("change", "texts", "n", "positions", "before", "after", "after − before")
        kind = (
            "Greedy: the share of equal argmaxes" if temperature == 0 else f"Temperature {temperature:g}: Σ min(p, q)"
        )
        found.append(f"{kind}, computed.\n\n{markdown_table(columns, rows).rstrip()}" if rows else "")
    missing = [name for name in CHANGES if name not in sides]
    return [each for each in (*found, f"Not computed yet: {', '.join(missing)}." if missing else "") if each]


def runs_tables(parts: Parts) -> list[str]:
    changes, agreements = [], []
    for name in [name for name in PAIRS if name in parts["pairs"]]:
        report = DriftReport.model_validate(parts["pairs"][name]["report"])
        whole = report.groups[0]
        for number, change in whole.changes.items():
            first = number == next(iter(whole.changes))
            changes.append([
                PAIRS[name][1] if first else "", f"{NUMBERS[number].label}, computed", cells(change.before),
                cells(change.after), cells(change.difference, "+"),
            ])  # fmt: skip
        for label, side in (("before", whole.before), ("after", whole.after)):
            assert side is not None
            agreements.append([
                name if label == "before" else "", label,
                *(text for number in side.decoded for text in (
                    cells(side.decoded[number]), cells(side.agreement[number], "+"))),
                cells(side.bias, "+"),
            ])  # fmt: skip
    missing = [name for name in PAIRS if name not in parts["pairs"]]
    found = []
    if changes:
        found.append(markdown_table(("after", "number", "before", "after", "after − before"), changes).rstrip())
        heads = ("run", "side", "α measured", "computed − measured", "τ measured", "computed − measured", "bias")
        found += [AGREEMENT.strip(), markdown_table(heads, agreements).rstrip()]
    return [*found, *([f"Not computed yet: {', '.join(missing)}."] if missing else [])]


def adapter_words(parts: Parts) -> str:
    made = parts["sides"].get(LORA, {}).get("made") or {}
    if not made:
        return ""
    return (
        f": rank {made['rank']} on all linear layers, {made['num_steps']} steps of AdamW over {made['rows_per_step']} "
        f"sentence pairs of WMT22, German to English (loss {made['first_loss']:.2f} → {made['last_loss']:.2f}), so "
        "that `de-en` is its own direction"
    )


def page(parts: Parts, limit: int) -> str:
    changes = [
        f"**{name}**: {change.words}{adapter_words(parts) if name == LORA else ''}"
        for name, change in CHANGES.items() if name != BEFORE
    ]  # fmt: skip
    source = f"The target's weights are {QWEN.source}; the drafter's are {QWEN_DRAFTER.source}."
    head = HEAD.format(target=Path(QWEN.path).name, drafter=Path(QWEN_DRAFTER.path).name, source=source)
    given = GIVEN.format(limit=limit, changes="\n- ".join(changes))
    commits = sorted({
        ", ".join(f"{name} {version}" for name, version in part["versions"].items())
        + f", commit {(part['commit'] or 'unknown')[:7]}"
        for kind in parts.values() for part in kind.values()
    })  # fmt: skip
    last = [f"Computed with {'; '.join(commits)}."] if commits else []
    return "\n\n".join([
        head.strip(), given.strip(), *given_tables(parts), RUNS.format(limit=limit).strip(), *runs_tables(parts), *last
    ]) + "\n"  # fmt: skip


def write(parts: Parts, place: Path, limit: int) -> None:
    write_atomically(place / "drift.md", page(parts, limit))
    content = {**settings(limit), "parts": parts}
    write_atomically(place / "drift.json", json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")


def main() -> None:
    """Computes what is not finished, and writes the page."""
    known = [*(f"sides:{name}" for name in CHANGES), *(f"pairs:{name}" for name in PAIRS)]
    parser = argparse.ArgumentParser(
        prog="python -m tools.acceptance_drift", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("models", type=Path, help="folder of the models, as for tools.real", metavar="MODELS_DIR")
    parser.add_argument("--data", type=Path, required=True, help="folder of the tasks' rows, as for tools.real")
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="PART", help=", ".join(known))
    parser.add_argument("--limit", type=int, default=LIMIT, help="texts of each direction, and prompts of a pair")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--work", type=Path, default=Path("runs") / "drift-work", help="work folder")
    parser.add_argument("--place", type=Path, default=MEASURED, help="folder of the page and the JSON")
    given = parser.parse_args()
    data, place = given.data.resolve(), given.place.resolve()
    work = Workplace(given.work.resolve(), given.models.resolve(), data, None, given.threads)
    work.prepare()
    set_threads(given.threads, embedded=False)
    os.chdir(work.folder)  # rows name models and data by their places in it
    if not compute_parts(given.only, place, data, Archives(ROOT / "leaderboards" / "real.json"), given.limit):
        raise SystemExit("some parts are not computed: see above; the same command goes on")


if __name__ == "__main__":
    main()
