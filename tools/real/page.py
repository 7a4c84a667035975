"""The page of real pairs, from the archived cells."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from specbench.report.captions import (
    OFTEN,
    marked,
    marked_speedup,
    runs_on_lines,
    score_heading,
    share_cut,
    verdict_word,
    warning_lines,
)
from specbench.results.metric_format import metric_of, number, score_pair, speed, with_interval
from specbench.results.row import Row
from tools.drafters.cells import table

from .cells import CELLS, DRAFTING, INT8, LABELS, LLAMA_CPP, SWEPT, Cell
from .claims import claims_part
from .measured import Measured, measured_cells
from .models import MODELS
from .workplace import CORPUS_TASKS, NUM_MEASURED, training_words

TITLES = {"gsm8k": "GSM8K", "humaneval": "HumanEval", "spec_bench": "Spec-Bench", "mgsm": "MGSM",
          "wmt": "Translation: WMT22, German to English", "tatoeba": "Translation: Tatoeba"}  # fmt: skip
TASKS = ("gsm8k", "humaneval", "spec_bench", "wmt", "tatoeba")  # of the main pair
NOT_YET = "Not measured yet.\n"

HEAD = """# Real pairs

`python -m tools.real MODELS_DIR --data DIR` measures the pairs of this page cell by cell, each in one run, and writes
the page and the board `leaderboards/real.json`. The records of each measured cell are in the folder of this name; the
same command measures the others. `python -m tools.real --page-only` unpacks them and writes page and board anew; then
`specbench leaderboard validate leaderboards/real.json --records` recomputes every row.

`python -m tools.real --bundle real-models.tar.gz` makes one [bundle](../guide/bundles.md) of all records, with the
earlier editions that the history of Git has. `specbench bundle verify real-models.tar.gz` recomputes it anywhere, and
says which rows [were measured again](#measured-again).

**The weights are not those of the hub.** They come from quantized files:

{models}

A row has this name as its target or drafter. To measure the hub's weights, put the hub's name in its place.

{conditions}

Rows are the first ones of public test files:

{data}

The archived records have no reference answers, and prompts by their digest. Intervals are 95 % over prompts. Each cell
has its own AR, beside which its methods are measured in one process; a method of several cells has a line for each.
The board keeps a row of a method from each version of specbench that measured it, of several cells of one version that
of the last cell, so that `ar` there may be of another process than the methods of other cells: speed-up and *tok/s ar*
of a row are of its own cell, and its tok/s compare only with that. `fsd-low`, `fsd-med` and `fsd-high` have the
thresholds of the embedded pair; the [curve](#fuzzy-speculative-decoding-accuracy-against-speed) has others.

In all tables of methods:

- `differ`: greedy answers that are not AR's, of those compared; in parentheses how many of them were decoded again, to
  look into the method's own passes: of each subset all but the near-ties after the eighth. Runs that do not record this
  number have it by that rule. A verdict of *near-tie only* is about all that differ, but the near-ties that were not
  decoded again have only the gap between their logits as its reason.
- `loops %`, `cut %`: the share of answers with a loop, and that of answers which the limit on new tokens ended, AR →
  method.

| measured | not measured yet |
| --- | --- |
| {measured} | {missing} |
"""
MAIN = """
## Qwen2.5-Coder 1.5B with the 0.5B

bfloat16, greedy. `slem` and `tli` have SmolLM2-135M as their drafter, which has another vocabulary. α of `rest`,
`sd-tree` and other trees is not defined.
"""
PRECISION = """
## Other precisions of the same target

int8 has its own rounding, and llama.cpp computes Q4_K_M with its own kernels: **different numerics are different
targets**. Each line compares a method with AR of the same numerics; accuracies of two precisions are not paired.
"""
CURVE = """
## Fuzzy speculative decoding: accuracy against speed

GSM8K, greedy drafts of 5 tokens. A threshold has a meaning only with its divergence; that of acceptance at random is
its probability. The accepted length counts draft tokens of a step.
"""
VOCABULARY = """
## SmolLM2 and Gemma: other vocabularies

The two models have different tokenizers, and are of about the same size, so that no method can be fast: one draft token
costs {costs}. The tables show what is accepted. A translation ends at a line break, with which Gemma, a base model,
begins: its translations are measured without that stop. At a temperature slrs is measured apart, with drafts of one
token and among the 20 most probable tokens: with all of them the probability of a common token of either model took
more than 4,096 draft passes.
"""
FAIRNESS = """
## Languages

The pair on MGSM, at temperature 1. D is the teacher-forced cross entropy of the drafter with the target.
"""
NGRAM = """
## An n-gram drafter in low-resource languages

Translation from English (Quechua: from Spanish), at the sampling of arXiv:2605.30580. One bigram model of some 1,000
sentences in Cherokee, Quechua and Yoruba, half of them from the files of the measured rows, but none of them the
translation of one; both methods draft 4 tokens.
"""
WIDTHS = """## Width of a pass

How the logits of these models depend on it: [widths of passes](widths.md). Each greedy run tests its target in passes
as its methods make before it gives [verdicts](../notes/losslessness.md#in-every-run). *Explained gap*: twice the
largest change of a gap between logits, of which the width of a pass explains a difference from AR. *Equal rows*: the
share of rows that are those of passes over one token bit for bit. Of several subsets and methods the largest gap and
the smallest share; a dash is of a run that did not record it.

"""


def page(found: Measured, reruns: str = "") -> str:
    """The whole page. `reruns`: the section on cells that were measured twice."""
    parts = [head(found), MAIN, *(task_part(found, task) for task in TASKS)]
    parts += [PRECISION, precision_part(found), CURVE, curve_part(found), vocabulary_part(found)]
    parts += [FAIRNESS, fairness_part(found), NGRAM, ngram_part(found), widths_part(found), reruns, claims_part(found)]
    return "\n".join([*(part.strip("\n") + "\n" for part in parts if part), commands_part(found)])


def own_cells() -> list[Cell]:
    """Returns the cells of this page: all but those of drafting.md."""
    return [cell for cell in CELLS if cell.group != DRAFTING]


def head(found: Measured) -> str:
    models = table(
        ["name in rows", "on the hub", "weights"],
        [[f"`{model.shown}`", f"`{model.hub}`", model.source] for model in MODELS], 3,
    )  # fmt: skip
    done = [cell for cell in own_cells() if found.has(cell.name)]
    left = [cell for cell in own_cells() if not found.has(cell.name)]
    return HEAD.format(
        models=models.strip(), conditions=conditions(found, done), data=data_words(own_cells()),
        measured=", ".join(f"{cell.name} (n = {found.row(cell.name, 'ar').n})" for cell in done) or "–",
        missing=", ".join(cell.name for cell in left) or "–",
    )  # fmt: skip


def conditions(found: Measured, done: Sequence[Cell]) -> str:
    """Returns the machines and versions that the rows tell, and the cells of each."""
    by_machine: dict[str, list[str]] = {}
    for cell in done:
        row = found.row(cell.name, "ar")
        versions = ", ".join(f"{name} {version}" for name, version in sorted(row.versions.items()) if version)
        by_machine.setdefault(f"{row.device}; {versions}", []).append(cell.name)
    if len(by_machine) < 2:
        return "".join(f"Measured on {machine}." for machine in by_machine)
    return "\n".join(f"- {', '.join(names)}: measured on {machine}" for machine, names in by_machine.items())


def data_words(cells: Sequence[Cell]) -> str:
    """Returns a line for the prompts of each task."""
    words = []
    for data in dict.fromkeys(cell.data for cell in cells):
        subsets = ", ".join(data.subsets) if len(data.subsets) > 1 or data.source else ""
        rows = "; ".join(filter(None, [data.source, subsets]))
        how = f" {data.prompt}" if data.prompt else ""
        name = f"{data.task} ({rows})" if rows else data.task
        words.append(f"- {name}: {data.num_prompts} prompts{how}, at most {data.tokens} new tokens")
    return "\n".join(words)


HEADS = ["cell", "method", "γ", "α", "τ", "c", "tok/s", "speed-up", "ar → method", "difference", "verdict", "differ",
         "loops %", "cut %"]  # fmt: skip


def label(row: Row) -> str:
    return LABELS.get(row.method_name, row.method_name)


def differing(found: Measured, cell: Cell, row: Row) -> str:
    """Returns the answers that are not AR's, of those compared, and how many of them were decoded again."""
    if row.differences is None:
        return "" if row.is_baseline else "–"
    again = found.decoded_again(cell.name, row)
    return f"{row.differences.answers} of {row.differences.compared}" + ("" if again is None else f" ({again})")


def method_line(found: Measured, cell: Cell, name: str, row: Row) -> list[str]:
    """The cells of one row."""
    unit = metric_of(row.quality)
    difference = with_interval(row.metric(f"{row.quality}_difference"), unit.digits, unit.factor, "+")
    loops = [number(row.metric(key), 0, 100) for key in ("share_looping_ar", "share_looping")]
    ar = found.row(cell.name, "ar")
    cut = [number(each.metric("share_cut_by_length"), 0, 100) for each in (ar, row)]
    return [
        name, label(row), str(row.num_draft_tokens), number(row.metric("acceptance_rate"), 3),
        number(row.metric("mean_acceptance_length"), 2), number(row.metric("cost_ratio"), 2),
        speed(row.metric("tokens_per_second")),
        "1" if row.is_baseline else marked_speedup(row, ar),
        score_pair(row.metrics, row.quality),
        "" if row.is_baseline else difference,
        verdict_word(row), differing(found, cell, row),
        *(both[1] if row.is_baseline else " → ".join(both) for both in (loops, cut)),
    ]  # fmt: skip


def methods_table(found: Measured, cells: Sequence[Cell], prefix: str) -> str:
    """A line for each method of each cell, and the reasons of marks below."""
    pairs = [(cell, row) for cell in cells for row in found.whole(cell)]
    if not pairs:
        return NOT_YET
    heads = [*HEADS]
    heads[8] = f"{score_heading([row for _, row in pairs])}, {HEADS[8]}"
    lines = [method_line(found, cell, cell.name.removeprefix(prefix), row) for cell, row in pairs]
    return table(heads, lines, 2) + below(found, pairs)


Pairs: TypeAlias = Sequence[tuple[Cell, Row]]


def below(found: Measured, pairs: Pairs) -> str:
    """What readers of a table of methods must know: the reasons of its marks, what its corpora hold, where its scores
    and speeds mean little, and the numbers without loops."""
    lines = warning_lines([row for _, row in pairs], [f"{cell.name}, {label(row)}" for cell, row in pairs])
    lines += [*corpus_notes(pairs), *cut_notes(found, [cell for cell, _ in pairs]), *run_on_notes(found, pairs)]
    return "".join(f"\n{line}\n" for line in lines) + without_loops(pairs)


def corpus_notes(pairs: Pairs) -> Iterator[str]:
    """Yields a line about the methods that draft from a corpus of the measured tasks."""
    names = list(dict.fromkeys(f"`{row.method_name}`" for _, row in pairs if row.method_name in LABELS))
    if names:
        titles = ", ".join(TITLES[task] for task in CORPUS_TASKS)
        yield (
            f"*In-domain corpus* (in the records {' and '.join(names)}): it has questions and right answers of the "
            f"same test files ({titles}; row {NUM_MEASURED + 1} and later, none of which is measured), besides "
            "Python's standard library and QMSum. These numbers are not those of a general corpus."
        )


def cut_notes(found: Measured, cells: Sequence[Cell]) -> Iterator[str]:
    """Yields a line for each cell whose scores say nothing, since most of AR's answers have no end."""
    for cell in dict.fromkeys(cells):
        ar, *others = found.whole(cell)
        if share_cut(ar) < OFTEN or ar.quality is None:
            continue
        shares = dict.fromkeys(f"{share:.0f}" for share in sorted(100 * share_cut(row) for row in others))
        ends = " to ".join(dict.fromkeys([*shares][:: max(1, len(shares) - 1)]))
        unit = metric_of(ar.quality)
        score = number(ar.metric(ar.quality), unit.digits, unit.factor)
        yield (
            f"**Scores of {cell.name} mean nothing**: the limit of {cell.data.tokens} new tokens ends "
            f"{share_cut(ar) * ar.n:.0f} of AR's {ar.n} answers ({100 * share_cut(ar):.0f} %; methods: "
            f"{ends} %), and an answer is scored as far as it goes ({score_heading([ar])} of AR: {score}). Acceptance "
            "and speed are of the tokens before the cut."
        )


def run_on_notes(found: Measured, pairs: Pairs) -> Iterator[str]:
    """Yields a line about methods whose answers run on where AR's end."""
    for cell in dict.fromkeys(cell for cell, _ in pairs):
        ar = found.row(cell.name, "ar")
        rows = [row for each, row in pairs if each == cell]
        yield from runs_on_lines(rows, list(map(label, rows)), ar, f"{cell.name}: ", cell.data.tokens)


def without_loops(pairs: Pairs) -> str:
    """A table of τ and speed-up without the prompts at which a method of the run loops."""
    lines = [
        [cell.name, label(row), *(number(row.metric(key), 2) for key in (
            "mean_acceptance_length", "mean_acceptance_length_without_loops", "speedup")),
         with_interval(row.metric("speedup_without_loops"))]
        for cell, row in pairs
        if not row.is_baseline and max(row.value(f"share_looping{end}") or 0 for end in ("", "_ar")) > 0
    ]  # fmt: skip
    if not lines:
        return ""
    told = "Without the prompts at which any method of the cell loops, AR included:"
    heads = ["cell", "method", "τ", "τ without loops", "speed-up", "speed-up without loops"]
    return f"\n{told}\n\n{table(heads, lines, 2)}"


def task_part(found: Measured, task: str) -> str:
    """One task of the main pair."""
    cells = [cell for cell in measured_cells(CELLS, found, "main") if cell.data.task == task]
    prefix = f"{task.replace('_', '-')}-"
    text = f"### {TITLES[task]}\n\n{methods_table(found, cells, prefix)}\n"
    return text + (groups_part(found, cells) if task in ("spec_bench", "tatoeba") and cells else "")


def groups_part(found: Measured, cells: Sequence[Cell]) -> str:
    """τ, speed-up and score in each group of Spec-Bench, language, or direction of translation."""
    has_sum = all(row.quality is not None for cell in cells for row in found.whole(cell))
    why = "" if has_sum else (
        " Their units differ, so that there is no score over all; a subset without a column has no right answers in "
        "its file, or needs a judge."
    )  # fmt: skip
    return (
        "\nτ · speed-up by subset:\n\n" + by_subset(found, cells, subset_cell)
        + f"\nScores by subset, AR → method, and their difference.{why}\n\n" + by_subset(found, cells, subset_score)
    )  # fmt: skip


def by_subset(found: Measured, cells: Sequence[Cell], shown: Callable[[Row], str | None]) -> str:
    """A column for each subset in which some method has something to show."""
    methods = [(cell, row) for cell in cells for row in found.whole(cell) if not row.is_baseline]
    lines = []
    for cell, row in methods:
        by_name = found.by_subset(cell.name, row.method_name)
        lines.append((f"{cell.name}, {label(row)}", {name: shown(each) for name, each in by_name.items()}))
    subsets = list(dict.fromkeys(name for _, words in lines for name, word in words.items() if word is not None))
    cells_of = [[first, *(words.get(subset) or "" for subset in subsets)] for first, words in lines]
    return table(["cell, method", *subsets], cells_of)


def subset_score(row: Row) -> str | None:
    if row.quality is None or row.metric(row.quality).value is None:
        return None
    unit = metric_of(row.quality)
    difference = with_interval(row.metric(f"{row.quality}_difference"), unit.digits, unit.factor, "+")
    return f"{unit.label} {score_pair(row.metrics, row.quality)} ({difference})"


def subset_cell(row: Row) -> str:
    return f"{number(row.metric('mean_acceptance_length'), 2)} · {marked(with_interval(row.metric('speedup')), row)}"


def precision_part(found: Measured) -> str:
    """bfloat16, int8 and Q4_K_M, task by task."""
    names = {"": "bfloat16", INT8: "int8", LLAMA_CPP: "Q4_K_M, llama.cpp"}
    cells = measured_cells(CELLS, found, "precision")
    cells += [cell for cell in measured_cells(CELLS, found, "main") if cell.name.endswith("-chains")]
    lines, marked = [], []
    for task in ("gsm8k", "humaneval", "spec_bench"):
        for cell in sorted((each for each in cells if each.data.task == task), key=lambda each: each.precision):
            for row in (each for each in found.whole(cell) if each.method_name in ("ar", "sd", "pld")):
                line = method_line(found, cell, TITLES[task], row)
                lines.append([line[0], names[cell.precision], *line[1:]])
                marked.append((cell, row))
    if not measured_cells(CELLS, found, "precision"):
        return NOT_YET
    heads = ["task", "precision", *HEADS[1:8], f"score, {HEADS[8]}", *HEADS[9:]]
    return table(heads, lines, 3) + below(found, marked)


CURVES = ("gsm8k-chains", "gsm8k-curve-js", "gsm8k-curve-reverse-kl", "gsm8k-curve-tv", "gsm8k-random")


def curve_points(found: Measured) -> Iterator[tuple[str, float, Cell, Row]]:
    """Yields divergence, threshold, cell and row of every measured point; of random acceptance its probability."""
    for cell in (cell for cell in CELLS if cell.name in CURVES and found.has(cell.name)):
        for row in found.run(cell.name).rows:
            rule = row.options.get("verification", {})
            if rule.get("rule") == "fuzzy":
                yield str(rule["divergence"]), float(rule["threshold"]), cell, row
            elif rule.get("rule") == "random_accept":
                yield "none: at random", float(rule["probability"]), cell, row


def curve_part(found: Measured) -> str:
    lines = []
    points = sorted(curve_points(found), key=lambda point: point[:2])
    for divergence, threshold, cell, row in points:
        unit = metric_of(row.quality)
        lines.append([
            divergence, f"{threshold:g}", number(row.metric("acceptance_rate"), 3),
            number(row.metric("accepted_length"), 2), number(row.metric("drafter_share"), 1, 100),
            speed(row.metric("tokens_per_second")), marked_speedup(row, found.row(cell.name, "ar")),
            score_pair(row.metrics, row.quality),
            with_interval(row.metric(f"{row.quality}_difference"), unit.digits, unit.factor, "+"),
            number(row.metric("share_looping"), 0, 100), number(row.metric("share_cut_by_length"), 0, 100),
        ])  # fmt: skip
    if not lines:
        return NOT_YET
    heads = ["divergence", "threshold", "α", "accepted length", "drafted tokens %", "tok/s", "speed-up",
             "accuracy %, ar → method", "difference", "loops %", "cut %"]  # fmt: skip
    return table(heads, lines) + below(found, [(cell, row) for *_, cell, row in points]) + left_out_of_curve(found)


def left_out_of_curve(found: Measured) -> str:
    missing = [name for name in SWEPT if not found.has(f"gsm8k-curve-{name.replace('_', '-')}")]
    missing += [] if found.has("gsm8k-random") else ["acceptance at random, the control"]
    return f"\nNot measured yet: {', '.join(missing)}.\n" if missing else ""


def vocabulary_part(found: Measured) -> str:
    """SmolLM2 with Gemma and back."""
    cells = measured_cells(CELLS, found, "vocabulary")
    if not cells:
        return "## SmolLM2 and Gemma: other vocabularies\n\n" + NOT_YET
    costs: dict[str, str] = {}
    for cell in cells:
        for row in found.whole(cell):
            if row.method_name == "tli":
                costs.setdefault(cell.name.rsplit("-", 1)[0], number(row.metric("cost_ratio"), 2))
    words = ", ".join(f"{cost} target passes in {name}" for name, cost in costs.items())
    parts = [VOCABULARY.format(costs=words or "about a target pass")]
    for task in ("mgsm", "wmt", "tatoeba"):
        own = [cell for cell in cells if cell.data.task == task]
        parts += [f"### {TITLES[task]}, SmolLM2 and Gemma\n", methods_table(found, own, "")]
        if own:
            parts += [groups_part(found, own)]
    return "\n".join(parts)


def fairness_part(found: Measured) -> str:
    """α, τ, speed-up and D by language."""
    lines = []
    texts = []
    cells = measured_cells(CELLS, found, "fairness")
    for cell in cells:
        report = found.fairness(cell.name)
        forced = {drafter.method: drafter for drafter in report.drafters} if report is not None else {}
        for method in cell.methods:
            for subset, row in found.by_subset(cell.name, method).items():
                of_method = forced.get(method)
                group = next((g for g in of_method.groups.values() if g.subset == subset), None) if of_method else None
                divergence = group.forced.cross_entropy if group is not None and group.forced is not None else None
                ar = found.row(cell.name, "ar", subset)
                cut = [number(each.metric("share_cut_by_length"), 0, 100) for each in (ar, row)]
                lines.append([cell.name, method, subset, with_interval(row.metric("acceptance_rate"), 3),
                              number(row.metric("mean_acceptance_length"), 2), marked_speedup(row, ar),
                              with_interval(divergence), score_pair(row.metrics, row.quality),
                              " → ".join(cut)])  # fmt: skip
            if method in forced and forced[method].family.unfairness is not None:
                texts.append(f"𝒰 of {cell.name}, {method}: {with_interval(forced[method].family.unfairness, 3)}.")
    if not lines:
        return NOT_YET
    heads = ["cell", "method", "language", "α", "τ", "speed-up", "D, nats", "accuracy %, ar → method", "cut %"]
    pairs = [(cell, row) for cell in cells for row in found.whole(cell)]
    return table(heads, lines, 3) + below(found, pairs) + "\n" + "\n".join(texts)


def ngram_part(found: Measured) -> str:
    cells = measured_cells(CELLS, found, "ngram")
    return methods_table(found, cells, "") + groups_part(found, cells) if cells else NOT_YET


def widths_part(found: Measured) -> str:
    """What the short batch-width test of each run found, on which its verdicts rest."""
    lines = []
    for cell in own_cells():
        rows = [row for row in found.whole(cell) if row.batch_width is not None] if found.has(cell.name) else []
        widths = [row.batch_width for row in rows if row.batch_width is not None]
        if widths:
            shares = [each.share_equal for each in widths if each.share_equal is not None]
            lines.append(
                [cell.name, f"{rows[0].engine} {rows[0].dtype}", "; ".join(label(row) for row in rows),
                 f"{max(each.tolerance for each in widths):.2f}", f"{100 * min(shares):.1f}" if shares else "–"]
            )  # fmt: skip
    if not lines:
        return WIDTHS + NOT_YET
    heads = ["cell", "numerics", "methods", "explained gap", "equal rows %"]
    return WIDTHS + table(heads, lines, 3)


def commands_part(found: Measured) -> str:
    """The command of every measured cell, as its run recorded it, and of the drafter that is trained for a cell."""
    parts = ["## Commands\n"]
    if commands := [found.row(cell.name, "ar").command for cell in own_cells() if found.has(cell.name)]:
        parts.append(
            "In a folder with links `models` and `data`, and the files that `python -m tools.real` writes into "
            "`methods` and `tasks`:\n\n```bash\n" + "\n".join(commands) + "\n```\n"
        )
    trained = [cell.name for cell in CELLS if cell.needs_trained]
    command = shlex.join(["specbench", *training_words(2)])
    parts.append(
        f"The drafter of {', '.join(trained)} is trained by s-CDF, which `python -m tools.real MODELS_DIR --data DIR "
        f"--train` does first. It writes the rows of MGSM behind the first {NUM_MEASURED} of each language, none of "
        "which is measured, into a folder, and trains on the target's own answers to them, in the work folder. These "
        "are 20 updates of 10 prompts; the paper's are 250 of 1,280, at the same learning rate.\n\n"
        f"```bash\n{command}\n```\n"
    )
    return "\n".join(parts)
