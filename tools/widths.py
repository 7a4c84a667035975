"""Measures how the logits of public models depend on the width of a pass, by engine and dtype, and writes
docs/measured/widths.md and docs/measured/widths.json.

`python -m tools.widths MODELS` reads the folders and GGUF files of MODELS. The figures are counts and differences of
logits, which do not depend on the load of the machine, and ratios of times, which do. widths.json holds each finished
part with its commit and its versions, and the same command goes on with the others, on any machine. `--models`,
`--ways`: only these parts; `--again`: also those that are finished; `--page-only`: the page of what is finished.
"""

import argparse
import gc
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically
from specbench.core.table import markdown_table
from specbench.decoding.build import build_decoder
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.batch_width import BaselineAnswer, BatchWidth, Compared, Prefix, WidthChange, measure_batch_width
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.models.gguf.options import GgufOptions
from specbench.models.loading import load_model
from specbench.models.machine import environment
from specbench.models.scoring import PassShape
from specbench.results.metric_format import NULL
from specbench.specs.catalogue import load_method
from tools.commands import ROOT

MEASURED = ROOT / "docs" / "measured"
Parts = dict[str, dict[str, dict[str, Any]]]  # what is measured, by model and way
MODELS = ("smollm2-135m", "gemma3-270m", "qwen-coder-0.5b", "qwen-coder-1.5b")
MAX_WIDTH = 6  # tokens of a pass over five draft tokens
TREE_WIDTH = 16
NUM_TOKENS = 32  # of an answer
PROMPTS = {
    "prose": "The old lighthouse stood at the end of the harbour, and every evening its keeper",
    "code": 'def median(values):\n    """Return the median of a list of numbers."""\n',
    "question": "Question: A train leaves at 9:40 and arrives at 12:15. How long is the journey?\nAnswer:",
}

# Parts of these versions read all of the text before a fresh tree in one pass; later ones its answer as methods do.
ONE_PASS_BEFORE_TREES = ("340f5ff", "adadfc5", "785911c", "f8118da")
# Ways of which these versions had other passes: d9e913c2 gave compiled bfloat16 packed products and grouped attention.
REPLACED = {"compiled bfloat16": ONE_PASS_BEFORE_TREES}


@dataclass(frozen=True)
class Way:
    """A way to compute. `loading`: the options of `load_model`. `is_gguf`: of the GGUF file, else of the folder."""

    name: str
    loading: dict[str, Any]
    is_gguf: bool = False


FLOAT32_CACHE = GgufOptions(cache_dtype="float32")
WAYS = (
    Way("eager float32", {"dtype": "float32"}),
    Way("eager bfloat16", {"dtype": "bfloat16"}),
    Way("eager int8", {"quantize": "int8"}),
    Way("eager int4", {"quantize": "int4"}),
    Way("compiled float32", {"dtype": "float32", "engine": "compiled"}),
    Way("compiled bfloat16", {"dtype": "bfloat16", "engine": "compiled"}),
    Way("llama.cpp, float16 K/V", {"engine": "llama.cpp"}, is_gguf=True),
    Way("llama.cpp, float32 K/V", {"engine": "llama.cpp", "gguf": FLOAT32_CACHE}, is_gguf=True),
    Way("eager float32, --pass-width 6", {"dtype": "float32", "pass_width": MAX_WIDTH}),
    Way("eager bfloat16, --pass-width 6", {"dtype": "bfloat16", "pass_width": MAX_WIDTH}),
    Way("eager int8, --pass-width 6", {"quantize": "int8", "pass_width": MAX_WIDTH}),
    Way("eager int4, --pass-width 6", {"quantize": "int4", "pass_width": MAX_WIDTH}),
    Way("llama.cpp, float16 K/V, --pass-width 1", {"engine": "llama.cpp", "pass_width": 1}, is_gguf=True),
)


def load(folder: Path, model: str, way: Way) -> CausalLM:
    place = folder / (f"{model}.gguf" if way.is_gguf else model)
    loaded = load_model(str(place), device="cpu", **way.loading)
    if loaded.why_eager is not None:
        raise RuntimeError(f"{model}, {way.name}: {loaded.why_eager}")
    return loaded


def baseline_answers(target: CausalLM) -> list[BaselineAnswer]:
    """Returns AR's greedy answers to the prompts, without a chat template."""
    decoder = build_decoder(load_method("ar"), ModelPair(target), Sampling(0.0))
    stop = StopRules(max_new_tokens=NUM_TOKENS)
    answers = []
    for name, text in PROMPTS.items():
        ids = target.encode_prompt(text, chat=False)
        answers.append(BaselineAnswer(name, ids, decoder.generate(ids, stop, 0).token_ids))
    return answers


def measure(folder: Path, model: str, way: Way) -> BatchWidth:
    target = load(folder, model, way)
    if target.static is not None:  # as a run does whose methods draft five tokens, or such trees
        target.static.reserve(1024, [MAX_WIDTH], shapes=[PassShape(TREE_WIDTH, "tree")])
    target.check_trees()
    target.sequence.make_room(1024)
    return measure_batch_width(target, baseline_answers(target), MAX_WIDTH, TREE_WIDTH, whole=True)


def versions(way: Way) -> dict[str, object]:
    """Returns the versions of what computes a part."""
    engine = way.loading.get("engine", "eager")
    known = environment("cpu", "", "", engine)["versions"]
    return {name: known[name] for name in ("torch", "transformers", "llama-cpp-python") if name in known}


def settings() -> dict[str, Any]:
    """Returns what all parts of a page have in common."""
    return {
        "prompts": PROMPTS, "num_tokens": NUM_TOKENS, "max_width": MAX_WIDTH, "tree_width": TREE_WIDTH,
        "kinds": list(KINDS),
    }  # fmt: skip


def read(place: Path) -> Parts:
    """Returns the finished parts, by model and way; none if they were measured with other settings."""
    try:
        found = json.loads((place / "widths.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    parts: Parts = found.pop("parts")
    return parts if found == settings() else {}


def measure_parts(folder: Path, place: Path, models: Sequence[str], ways: Sequence[Way], again: bool = False) -> None:
    """Measures the parts that are not finished, and writes the page and the JSON after each."""
    parts = read(place)
    for model in models:
        for way in ways:
            if way.name in parts.get(model, {}) and not again:
                continue
            print(f"{model}: {way.name}", flush=True)
            try:
                result: dict[str, Any] = {"batch_width": measure(folder, model, way).model_dump(mode="json")}
            except (RuntimeError, ConfigError) as error:  # a model that cannot be compiled
                result = {"problem": " ".join(str(error).replace(f"{folder}/", "").split())}
            known = environment("cpu", "", "")
            parts.setdefault(model, {})[way.name] = {
                "device": known["device"],
                "commit": known["commit"],
                "versions": versions(way),
                **result,
            }
            write(parts, place)
            gc.collect()


HEAD = """# Batch width

`python -m tools.widths MODELS` writes this page and `widths.json`, which has all figures by width.

A pass over several tokens does not compute like as many passes over one token
([why](../notes/losslessness.md#in-every-run)). The tables tell by how much, for four public models. AR's greedy answers
to {prompts} prompts, {tokens} tokens each, are read again: in passes of 2 to {width} tokens, in one pass over prompt
and answer, and as draft trees of {tree} tokens; all that after the prompt alone, and after a longer text, the other
prompts with their answers before it ({long} tokens). Each row of logits is compared with that of a pass over one token.
There is one thread, and no model is a checkpoint of the hub: the folders are dequantized from the GGUF files (Q4_1 for
SmolLM2, Q4_K_M for the others), and the weights of the smaller Qwen come from an AWQ release. So a folder and its GGUF
file hold the same weights under other kernels.

## What the columns say

Each model has two tables. Two figures in a cell are those after the prompt · after the longer text. The first table
counts the rows that are equal bit for bit, of all.

- *chain*: of passes of 2 to {width} tokens on the same prefix as the single passes. *classes*: chains of these widths
  give the same rows after the prompt.
- *kept*: of passes of 2 to {width} and of {tree} tokens that are all kept, so that each reads keys and values of the
  one before. *after*: of a pass over one token after a wide one that is kept.
- *tree*: of the tokens that a tree has in common with the answer. *after tree*: of a pass over one token after the path
  of a tree was kept. *fresh tree*: of trees right behind a text that was read anew, each with two sets of wrong tokens;
  its answer was read in passes of {width} tokens.{one_pass}
- *one pass*: of the pass over prompt and answer.

The second table tells how far the rows are apart, and how long a pass takes.

- *median*: of the largest change of a logit in each row of passes over {width} tokens that are all kept. *largest*: the
  largest change of a logit in any of these passes, the one over prompt and answer too.
- *gap*: the largest change of a gap between the highest logit and one of the next nine in the columns *kept* and *one
  pass*, which roll nothing back; twice that is what the width explains of a difference from AR.
- *flips*: rows of chains with another argmax. *AR*: prompts on which AR would write another token. *TV*: the largest
  mean total variation of a kind of pass, at temperature 1.
- *v({width})*: the fastest pass over {width} tokens in fastest passes over one, of the same way and after the prompt.
  The load of the machine was not recorded, so that ratios that differ by a tenth may be equal.

In every part a repeated pass gave the same rows{exceptions}.{replaced}"""
ONE_PASS = " Those with a * were measured\n  by an earlier version, behind one pass over the whole text."
REPLACED_NOTE = """

† The passes of this way were replaced after it was measured: its figures, those of time above all, are not those of
this version."""
COST_HEAD = """## The cost of one width

`--pass-width N` makes all passes of N rows ([passes of one width](../notes/losslessness.md#passes-of-one-width)): the
tables below have what that makes equal, this one what it costs. Passes over fewer than N tokens pay for it, those of AR
above all, and prompts; with N = 1, passes over several tokens. *a token*: the fastest pass over one token in fastest
ones without the option, in turns with them. *v({width}) with it*: in passes over one token with the option, which are
the dearer ones; *without it*: of the same way without the option, in a process of its own.

"""
COST_COLUMNS = ("model", "way", "a token", f"v({MAX_WIDTH}) with it", f"v({MAX_WIDTH}) without it")
TREES = """## Trees in llama.cpp

One would expect rows of trees to be those of chains and of single passes, bit for bit, with float32 keys and values and
without flash attention, on a file whose products do not depend on the width (SmolLM2's Q4_1). **Measured, they are
not**: it is so with float16 and flash attention, llama.cpp's default.

{table}

Flash attention skips the tokens that a query does not see. Without it they are added up as zeros, in the order of the
cache, which [changes the rounding](../notes/losslessness.md#draft-trees)."""
# Every kind of pass: each change of a logit is of one of these columns.
KINDS: tuple[Compared, ...] = ("chain", "kept", "after", "tree", "after tree", "fresh tree", "prompt")
PREFIXES: tuple[Prefix, ...] = ("short", "long")
EQUAL_COLUMNS = ("way", *("one pass" if kind == "prompt" else kind for kind in KINDS), "classes")
CHANGE_COLUMNS = ("way", "median", "largest", "gap", "flips", "AR", "TV", f"v({MAX_WIDTH})")


def equal(changes: Iterable[WidthChange]) -> str:
    """Returns the number of equal rows, of all."""
    found = list(changes)
    num = sum(each.num_positions for each in found)
    return f"{sum(each.num_equal for each in found)}/{num}" if num else NULL


def classes(changes: Sequence[WidthChange]) -> str:
    """Returns the widths whose rows are the same, such as "1 2 · 3–6"."""
    groups: dict[int, list[int]] = {1: [1]}
    for each in changes:
        assert each.same_as is not None
        groups.setdefault(each.same_as, []).append(each.width)
    return " · ".join(f"{w[0]}–{w[-1]}" if len(w) > 1 and w == [*range(w[0], w[-1] + 1)] else " ".join(map(str, w))
                      for w in groups.values())  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A way of a model that is measured."""

    way: str
    commit: str
    width: BatchWidth

    @property
    def is_replaced(self) -> bool:
        return self.commit.startswith(REPLACED.get(self.way, ()))

    @property
    def has_one_pass_before_trees(self) -> bool:
        return self.commit.startswith(ONE_PASS_BEFORE_TREES)

    @property
    def label(self) -> str:
        return f"{self.way} †" if self.is_replaced else self.way

    def changes(self, compared: Compared, prefix: Prefix) -> list[WidthChange]:
        return [each for each in self.width.changes if (each.compared, each.prefix) == (compared, prefix)]

    def equal(self, compared: Compared) -> str:
        return " · ".join(equal(self.changes(compared, prefix)) for prefix in PREFIXES)

    @property
    def cost(self) -> str:
        """v(MAX_WIDTH)."""
        costs = [each.cost for each in self.changes("chain", "short") if each.width == MAX_WIDTH]
        return f"{costs[0]:.2f}" if costs and costs[0] is not None else NULL

    def equal_cells(self) -> list[str]:
        shares = {kind: self.equal(kind) for kind in KINDS}
        if self.has_one_pass_before_trees:
            shares["fresh tree"] += " *"
        return [self.label, *shares.values(), classes(self.changes("chain", "short"))]

    def change_cells(self) -> list[str]:
        width = self.width
        chains = [each for prefix in PREFIXES for each in self.changes("chain", prefix)]
        flips, num = sum(len(each.flip_gaps) for each in chains), sum(each.num_positions for each in chains)
        kept = [each for prefix in PREFIXES for each in self.changes("kept", prefix) if each.width == MAX_WIDTH]
        variation = max(each.total_variation or 0.0 for each in width.changes)
        return [
            self.label, " · ".join(f"{each.median_change:.2g}" for each in kept) or NULL,
            f"{max(each.max_change for each in width.changes):.2g}", f"{width.noise().max_gap_change:.2g}",
            f"{flips} of {num}" if flips else "0", f"{width.num_changed} of {width.num_prompts}", f"{variation:.1g}",
            self.cost,
        ]  # fmt: skip


def measured(by_way: dict[str, dict[str, Any]]) -> dict[str, Part]:
    """Returns the measured parts of a model by way, in the order of WAYS."""
    return {
        way.name: Part(way.name, part["commit"] or "", BatchWidth.model_validate(part["batch_width"]))
        for way in WAYS if "batch_width" in (part := by_way.get(way.name, {}))
    }  # fmt: skip


def costs(found: dict[str, dict[str, Part]]) -> str:
    """Returns the table of what passes of one width cost, of all models."""
    rows = []
    for model, parts in found.items():
        for way in WAYS:
            if "pass_width" not in way.loading or (part := parts.get(way.name)) is None:
                continue
            padding = part.width.padding_cost
            plain = parts.get(way.name.partition(", --pass-width")[0])
            rows.append([
                model, part.label, NULL if padding is None else f"{padding:.2f}", part.cost,
                NULL if plain is None else plain.cost,
            ])  # fmt: skip
    return COST_HEAD.format(width=MAX_WIDTH) + markdown_table(COST_COLUMNS, rows) if rows else ""


def trees(found: dict[str, dict[str, Part]]) -> str:
    """Returns how rows of trees depend on llama.cpp's kinds of attention, where no product depends on the width."""
    parts = found.get("smollm2-135m", {})
    rows = [
        [part.way, part.equal("chain"), part.equal("tree"), part.equal("after tree")]
        for way in ("llama.cpp, float32 K/V", "llama.cpp, float16 K/V") if (part := parts.get(way)) is not None
    ]  # fmt: skip
    return TREES.format(table=markdown_table(["way", "chain", "tree", "after tree"], rows)) if len(rows) == 2 else ""


def page(parts: Parts) -> str:
    """Returns the page of the finished parts, by model and way."""
    found = {model: measured(parts.get(model, {})) for model in MODELS}
    known = [part for by_way in found.values() for part in by_way.values()]
    others = [f"{model} {name}" for model, by_way in found.items() for name, part in by_way.items()
              if not part.width.repeated]  # fmt: skip
    longest = max((part.width.prefixes["long"][1] for part in known if "long" in part.width.prefixes), default=0)
    head = HEAD.format(
        prompts=len(PROMPTS), tokens=NUM_TOKENS, width=MAX_WIDTH, tree=TREE_WIDTH, long=f"up to {longest}",
        one_pass=ONE_PASS if any(part.has_one_pass_before_trees for part in known) else "",
        exceptions=f", but for {', '.join(others)}" if others else "",
        replaced=REPLACED_NOTE if any(part.is_replaced for part in known) else "",
    )  # fmt: skip
    sections = [head, costs(found), trees(found)]
    for model, by_way in found.items():
        finished = parts.get(model, {})
        tables = [
            markdown_table(EQUAL_COLUMNS, [part.equal_cells() for part in by_way.values()]),
            markdown_table(CHANGE_COLUMNS, [part.change_cells() for part in by_way.values()]),
        ] if by_way else []  # fmt: skip
        notes = [f"{way.name}: {finished[way.name]['problem']}." for way in WAYS
                 if "problem" in finished.get(way.name, {})]  # fmt: skip
        if missing := [way.name for way in WAYS if way.name not in finished]:
            notes.append(f"Not measured yet: {'; '.join(missing)}." if finished else "Not measured yet.")
        sections += [f"## {model}", *tables, *notes]
    return "\n\n".join(section for section in [*sections, versions_line(parts)] if section) + "\n"


def versions_line(parts: Parts) -> str:
    found = {
        (part["device"], *part["versions"].items(), ("commit", (part["commit"] or "unknown")[:7]))
        for ways in parts.values() for part in ways.values()
    }  # fmt: skip
    lines = sorted(f"{device}, {', '.join(f'{name} {version}' for name, version in known)}" for device, *known in found)
    return f"Measured on {'; '.join(lines)}."


def write(parts: Parts, place: Path) -> None:
    """Writes the page and the JSON of all finished parts."""
    write_atomically(place / "widths.md", page(parts))
    ordered = {model: parts[model] for model in MODELS if model in parts}
    write_atomically(place / "widths.json", json.dumps({**settings(), "parts": ordered}, indent=1) + "\n")


def chosen_from(text: str | None, names: Sequence[str]) -> list[str]:
    given = list(names) if text is None else text.split(";")
    if unknown := [name for name in given if name not in names]:
        raise SystemExit(f"no '{unknown[0]}': one of {'; '.join(names)}")
    return given


def main() -> None:
    """Measures what is not finished, and writes the page."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.widths", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with the models' folders and GGUF files")
    parser.add_argument("--models", help="separated by semicolons")
    parser.add_argument("--ways", help="separated by semicolons")
    parser.add_argument("--again", action="store_true", help="measure finished parts again")
    parser.add_argument("--page-only", action="store_true", help="measure nothing")
    parser.add_argument("--place", type=Path, default=MEASURED, help="folder of the page and the JSON")
    given = parser.parse_args()
    if given.page_only:
        write(read(given.place), given.place)
        return
    torch.set_num_threads(1)
    models = chosen_from(given.models, MODELS)
    ways = [way for way in WAYS if way.name in chosen_from(given.ways, [way.name for way in WAYS])]
    measure_parts(given.folder, given.place, models, ways, given.again)


if __name__ == "__main__":
    main()
