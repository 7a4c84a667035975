"""The page of real pairs, from the archived cells."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from specbench.report.captions import marked, marked_speedup, marked_warnings, score_heading, verdict_word
from specbench.results.metric_format import NULL, metric_of, number, score_pair, speed, with_interval
from specbench.results.row import Row
from tools.drafters.cells import table

from .cells import CELLS, CLAIM, DRAFTING, INT8, LLAMA_CPP, SWEPT, Cell, Data
from .claims import claims_part
from .measured import Measured, label, measured_cells
from .models import MODELS
from .notes import TITLES, below, has_no_scores
from .reruns import has_change
from .results import results
from .workplace import NUM_MEASURED, training_words

TASKS = ("gsm8k", "humaneval", "spec_bench", "wmt", "tatoeba")  # of the main pair
NOT_YET = "Not measured yet.\n"

HEAD = """# Real pairs

{results}

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

The archived records have no reference answers, and prompts by their digest. Each cell has its own AR, beside which its
methods are measured in one process; a method of several cells has a line for each. The board keeps a row of a method
from each version of specbench that measured it, of several cells of one version that of the cell with most methods, so
that `ar` there may be of another process than the methods of other cells: speed-up and *tok/s ar* of a row are of its
own cell, and its tok/s compare only with that. `fsd-low`, `fsd-med` and `fsd-high` have the thresholds of the embedded
pair; the [curve](#fuzzy-speculative-decoding-accuracy-against-speed) has others.

The words of the tables ([glossary](../glossary.md), [counting](../notes/counting.md)):

- *γ*: draft tokens of a step at most; of trees their levels (`sd-tree`, `token-recycling`, `rest`), of `lookahead` the
  tokens of a guess. *α*: accepted ÷ verified draft tokens. *τ*: tokens of a step, the target's own included. *c*: a
  draft pass in target passes, medians; a pass of `sd-tree` has several tokens. *Accepted length*: draft tokens that a
  step accepts. *Drafted tokens %*: the share of the answer that the drafter wrote. *n*: prompts.
- *Speed-up*: tokens/s ÷ those of AR, paired by prompt. Intervals are 95 % over prompts; a difference of scores over
  fewer than {least} prompts has none. †: a line below the table doubts it. ‡: answers run on where AR's end.
- *Differ*: greedy answers that are not AR's, of those compared; in parentheses how many of them were decoded again, to
  look into the method's own passes: of each subset all but the near-ties after the eighth. Runs that do not record this
  number have it by that rule. An answer is one turn: the conversations of `mt_bench` have two, of which the second is
  compared only if the first answer is AR's, so that more than n or fewer answers are compared. A verdict of *near-tie
  only* is about all that differ, but the near-ties that were not decoded again have only the gap between their logits
  as its reason, and cells without [replay](#width-of-a-pass) were judged by an earlier, less strict test.
- *Loops %*, *cut %*: the share of answers with a loop, and that of answers which the limit on new tokens ended, AR →
  method.

| measured | not measured yet |
| --- | --- |
| {measured} | {missing} |
"""
MAIN = """
## Qwen2.5-Coder 1.5B with the 0.5B

bfloat16, greedy. `slem` and `tli` have SmolLM2-135M as their drafter, which has another vocabulary. α of `rest`,
`sd-tree` and other trees is not defined.

{doubts}
"""
PRECISION = """
## Other precisions of the same target

int8 has its own rounding, and llama.cpp computes Q4_K_M with its own kernels: **different numerics are different
targets**. Each line compares a method with AR of the same numerics; accuracies of two precisions are not paired.
"""
CURVE = """
## Fuzzy speculative decoding: accuracy against speed

GSM8K, greedy drafts of 5 tokens. A threshold has a meaning only with its divergence; that of acceptance at random is
its probability.
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

The pair on MGSM, at temperature 1. *D*: the teacher-forced cross entropy of the drafter with the target, in nats. *𝒰*:
the mean over languages of the squared distance of D from the smallest D.
"""
NGRAM = """
## An n-gram drafter in low-resource languages

Translation from English (Quechua: from Spanish), at the sampling of arXiv:2605.30580. One bigram model of some 1,000
sentences in Cherokee, Quechua and Yoruba, half of them from the files of the measured rows, but none of them the
translation of one; both methods draft 4 tokens.
"""
SINGLE = """
## For single claims

Tasks, methods and temperatures that only one of [the claims](#claims-of-the-papers) needs.

"""
WIDTHS = """## Width of a pass

How the logits of these models depend on it: [widths of passes](widths.md). Each greedy run tests its target in passes
as its methods make before it gives [verdicts](../notes/losslessness.md#in-every-run). *Explained gap*: twice the
largest change of a gap between logits, of which the width of a pass explains a difference from AR. *Equal rows*: the
share of rows that are those of passes over one token bit for bit. Of several subsets and methods the largest gap and
the smallest share; a dash is of a run that did not record it. *Replay*: whether a difference beyond the noise of the
method's own passes was compared with a replay in such passes, too, which finds smaller faults of the state.

"""


def page(found: Measured, reruns: str = "", moved: str = "") -> str:
    """The whole page. `reruns`: the section on cells that were measured twice; `moved`: that in a sentence."""
    main = MAIN.format(doubts=f"{marks_words(found)} {moved}".strip())
    parts = [head(found), main, *(task_part(found, task) for task in TASKS)]
    parts += [PRECISION, precision_part(found), CURVE, curve_part(found), vocabulary_part(found)]
    parts += [
        FAIRNESS,
        fairness_part(found),
        NGRAM,
        ngram_part(found),
        single_part(found),
        widths_part(found),
        reruns,
        claims_part(found),
    ]
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
        results="\n".join(f"- {line}" for line in results(found)) or NOT_YET.strip(), least=LEAST,
        models=models.strip(), conditions=conditions(found, done), data=data_words(own_cells()),
        measured=", ".join(f"{cell.name} (n = {found.row(cell.name, 'ar').n})" for cell in done) or "–",
        missing=", ".join(cell.name for cell in left) or "–",
    )  # fmt: skip


def conditions(found: Measured, done: Sequence[Cell]) -> str:
    """Returns the machine and versions that the rows tell, what other cells have besides, and where answers end."""
    by_machine: dict[tuple[str, ...], list[str]] = {}
    for cell in done:
        row = found.row(cell.name, "ar")
        versions = (f"{name} {version}" for name, version in sorted(row.versions.items()) if version)
        by_machine.setdefault((row.device, *versions), []).append(cell.name)
    if not by_machine:
        return ""
    usual = max(by_machine, key=lambda machine: len(by_machine[machine]))
    lines = [f"Measured on {usual[0]}; {', '.join(usual[1:])}."]
    for machine, names in by_machine.items():
        if machine != usual:
            parts = [*(set(machine) - set(usual)), *(f"without {part}" for part in set(usual) - set(machine))]
            lines.append(f"Otherwise in {', '.join(names)}: {', '.join(sorted(parts))}.")
    return "\n".join([*lines, *ends(found, done)])


def ends(found: Measured, done: Sequence[Cell]) -> Iterator[str]:
    """Yields the end tokens that folders of targets do not name, and the cells with answers that go on behind one."""
    for model in MODELS:
        own = [cell for cell in done if cell.target == model]
        if model.unnamed_end is None or not own:
            continue
        end, text = model.unnamed_end
        told = (
            f"The hub's release of `{model.shown}` also ends answers at {text} ({end}), which its folder here does not "
            "name as an end token; runs may have it as a stop."
        )
        went_on = []
        for cell in own:
            answers = [answer.token_ids for record in found.run(cell.name).records.values()
                       for answer in record.methods.values()]  # fmt: skip
            share = sum(end in map(int, ids[:-1]) for ids in answers) / len(answers)
            went_on += [f"{cell.name} ({100 * share:.0f} %)"] if share else []
        if went_on:
            told += (
                " **In these cells a share of the answers of all methods goes on behind it**, so that α, τ, speed and "
                f"loops are in part of that text: {', '.join(went_on)}."
            )
        yield told


def data_words(cells: Sequence[Cell]) -> str:
    """Returns a line for the prompts of each task; of several with one name, each has its cells."""
    by_data: dict[Data, list[str]] = {}
    for cell in cells:
        by_data.setdefault(cell.data, []).append(cell.name)
    several = {name for name, number in Counter(map(data_name, by_data)).items() if number > 1}
    words = []
    for data, names in by_data.items():
        how = f" {data.prompt}" if data.prompt else ""
        of = f": {', '.join(names)}" if data_name(data) in several else ""
        words.append(f"- {data_name(data)}: {data.num_prompts} prompts{how}, at most {data.tokens} new tokens{of}")
    return "\n".join(words)


def data_name(data: Data) -> str:
    subsets = ", ".join(data.subsets) if len(data.subsets) > 1 or data.source else ""
    rows = "; ".join(filter(None, [data.source, subsets]))
    return f"{data.task} ({rows})" if rows else data.task


def marks_words(found: Measured) -> str:
    """Says how many rows of the main pair have a mark."""
    rows = [row for cell in measured_cells(CELLS, found, "main") for row in found.whole(cell) if not row.is_baseline]
    num_marked = sum(bool(marked_warnings(row)) for row in rows)
    return f"{num_marked} of the {len(rows)} rows of methods below are marked †." if rows else ""


HEADS = ["cell", "method", "γ", "α", "τ", "c", "tok/s", "speed-up", "ar → method", "difference", "verdict", "differ",
         "loops %", "cut %"]  # fmt: skip


def differing(found: Measured, cell: Cell, row: Row) -> str:
    """Returns the answers that are not AR's, of those compared, and how many of them were decoded again."""
    if row.differences is None:
        return "" if row.is_baseline else "–"
    again = found.decoded_again(cell.name, row)
    return f"{row.differences.answers} of {row.differences.compared}" + ("" if again is None else f" ({again})")


# Below so many prompts a difference of scores has no interval: that of equal answers alone is ± 1 − 0.025^(1/n), which
# is 31 points for 10 prompts, and 52 for 5.
LEAST = 10


def difference(row: Row) -> str:
    """Returns the difference of the score from AR's, with its interval if there are prompts enough."""
    unit, change = metric_of(row.quality), row.metric(f"{row.quality}_difference")
    shown = number if row.n < LEAST else with_interval
    return shown(change, unit.digits, unit.factor, "+")


def scores(row: Row, ar: Row) -> tuple[str, str]:
    """Returns AR's score and the method's, and their difference; dashes where scores say nothing."""
    if row.quality is None or has_no_scores(ar):
        return NULL, NULL
    return score_pair(row.metrics, row.quality), "" if row.is_baseline else difference(row)


def method_line(found: Measured, cell: Cell, name: str, row: Row) -> list[str]:
    """The cells of one row."""
    loops = [number(row.metric(key), 0, 100) for key in ("share_looping_ar", "share_looping")]
    ar = found.row(cell.name, "ar")
    cut = [number(each.metric("share_cut_by_length"), 0, 100) for each in (ar, row)]
    return [
        name, label(row.method_name), str(row.num_draft_tokens), number(row.metric("acceptance_rate"), 3),
        number(row.metric("mean_acceptance_length"), 2), number(row.metric("cost_ratio"), 2),
        speed(row.metric("tokens_per_second")),
        "1" if row.is_baseline else marked_speedup(row, ar),
        *scores(row, ar), verdict_word(row), differing(found, cell, row),
        *(both[1] if row.is_baseline else " → ".join(both) for both in (loops, cut)),
    ]  # fmt: skip


def filled(heads: Sequence[str], lines: Sequence[Sequence[str]], num_texts: int = 1) -> str:
    """Returns a table of the columns that have something to show."""
    kept = [place for place in range(len(heads)) if any(line[place] not in ("", NULL) for line in lines)]
    return table([heads[place] for place in kept], [[line[place] for place in kept] for line in lines], num_texts)


def methods_table(found: Measured, cells: Sequence[Cell], prefix: str) -> str:
    """A line for each method of each cell, and the reasons of marks below."""
    pairs = [(cell, row) for cell in cells for row in found.whole(cell)]
    if not pairs:
        return NOT_YET
    heads = [*HEADS]
    heads[8] = f"{score_heading([row for _, row in pairs])}, {HEADS[8]}"
    lines = [method_line(found, cell, cell.name.removeprefix(prefix), row) for cell, row in pairs]
    return filled(heads, lines, 2) + below(found, pairs)


def task_part(found: Measured, task: str) -> str:
    """One task of the main pair."""
    cells = [cell for cell in measured_cells(CELLS, found, "main") if cell.data.task == task]
    prefix = f"{task.replace('_', '-')}-"
    text = f"### {TITLES[task]}\n\n{methods_table(found, cells, prefix)}\n"
    return text + (groups_part(found, cells) if task in ("spec_bench", "tatoeba") and cells else "")


def groups_part(found: Measured, cells: Sequence[Cell]) -> str:
    """τ, speed-up and score in each group of Spec-Bench, language, or direction of translation; nothing for one."""
    if all(len(found.by_subset(cell.name, "ar")) < 2 for cell in cells):
        return ""
    text = f"\nτ · speed-up by subset:\n\n{by_subset(found, cells, subset_cell)}"
    baselines = {cell: found.row(cell.name, "ar") for cell in cells}
    scored = [cell for cell, ar in baselines.items() if ar.quality is None or not has_no_scores(ar)]
    if not (found_scores := by_subset(found, scored, subset_score, subset_unit)):
        return text
    return (
        f"{text}\nScores by subset, AR → method, and from {LEAST} prompts on their difference. Without a column or a "
        "number are subsets with no right answers in their file, that need a judge, or most of whose answers by AR are "
        f"cut:\n\n{found_scores}"
    )


def by_subset(
    found: Measured, cells: Sequence[Cell], shown: Callable[[Row, Row], str | None],
    unit: Callable[[Row], str] = lambda row: "",
) -> str:  # fmt: skip
    """A column for each subset, and a line for each method that has something to show of a row and AR's; empty without
    any. `unit`: what the head of a column says behind its name."""
    heads: dict[str, str] = {}
    lines: list[tuple[list[str], dict[str, str]]] = []
    for cell in cells:
        baseline = found.by_subset(cell.name, "ar")
        for row in (row for row in found.whole(cell) if not row.is_baseline):
            words = {}
            for name, each in found.by_subset(cell.name, row.method_name).items():
                if (word := shown(each, baseline[name])) is not None:
                    words[name], heads[name] = word, f"{name}{unit(each)}"
            numbers = dict.fromkeys(str(each.n) for each in baseline.values())
            if words:
                lines.append(([cell.name, label(row.method_name), " to ".join(numbers)], words))
    cells_of = [[*first, *(words.get(subset, "") for subset in heads)] for first, words in lines]
    return table(["cell", "method", "n", *heads.values()], cells_of, 2) if lines else ""


def subset_unit(row: Row) -> str:
    return f", {metric_of(row.quality).label}"


def subset_score(row: Row, ar: Row) -> str | None:
    if row.quality is None or has_no_scores(ar) or row.metric(row.quality).value is None:
        return None
    change = f" ({difference(row)})" if row.n >= LEAST else ""
    return score_pair(row.metrics, row.quality) + change


def subset_cell(row: Row, ar: Row) -> str:
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
    return filled(heads, lines, 3) + below(found, marked)


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
        ar = found.row(cell.name, "ar")
        lines.append([
            divergence, f"{threshold:g}", number(row.metric("acceptance_rate"), 3),
            number(row.metric("accepted_length"), 2), number(row.metric("drafter_share"), 1, 100),
            speed(row.metric("tokens_per_second")), marked_speedup(row, ar), *scores(row, ar),
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
    costs: dict[str, list[float]] = {}
    for cell in cells:
        for row in found.whole(cell):
            if cost := row.value("cost_ratio"):
                costs.setdefault("-".join(cell.name.split("-")[:2]), []).append(cost)
    words = " and ".join(f"{min(own):.2f} to {max(own):.2f} target passes in {name}" for name, own in costs.items())
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
                              with_interval(divergence), scores(row, ar)[0],
                              " → ".join(cut)])  # fmt: skip
            if method in forced and forced[method].family.unfairness is not None:
                texts.append(f"𝒰 of {cell.name}, {method}: {with_interval(forced[method].family.unfairness, 3)}.")
    if not lines:
        return NOT_YET
    heads = ["cell", "method", "language", "α", "τ", "speed-up", "D, nats", "accuracy %, ar → method", "cut %"]
    pairs = [(cell, row) for cell in cells for row in found.whole(cell)]
    return filled(heads, lines, 3) + below(found, pairs) + "\n" + "\n".join(texts)


def ngram_part(found: Measured) -> str:
    cells = measured_cells(CELLS, found, "ngram")
    return methods_table(found, cells, "") + groups_part(found, cells) if cells else NOT_YET


def single_part(found: Measured) -> str:
    """A table for each task of the cells that single claims need."""
    cells = measured_cells(CELLS, found, CLAIM)
    tasks = dict.fromkeys(cell.data.task for cell in cells)
    tables = [methods_table(found, [cell for cell in cells if cell.data.task == task], "") for task in tasks]
    return SINGLE + ("\n".join(tables) or NOT_YET)


REPLAY = "00db7de067331081af51d9109ab611de2616025c"  # the commit that brought it


def widths_part(found: Measured) -> str:
    """What the short batch-width test of each run found, on which its verdicts rest."""
    lines = []
    for cell in own_cells():
        rows = [row for row in found.whole(cell) if row.batch_width is not None] if found.has(cell.name) else []
        widths = [row.batch_width for row in rows if row.batch_width is not None]
        if widths:
            shares = [each.share_equal for each in widths if each.share_equal is not None]
            lines.append(
                [cell.name, f"{rows[0].engine} {rows[0].dtype}", "; ".join(label(row.method_name) for row in rows),
                 f"{max(each.tolerance for each in widths):.2f}", f"{100 * min(shares):.1f}" if shares else NULL,
                 {True: "yes", False: "no", None: NULL}[has_change(rows[0].commit, REPLAY)]]
            )  # fmt: skip
    if not lines:
        return WIDTHS + NOT_YET
    heads = ["cell", "numerics", "methods", "explained gap", "equal rows %", "replay"]
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
        "are 20 updates of 10 prompts; the paper's are 250 of 1,280 at a learning rate of 1e-4. **The rows above are "
        "of a drafter that was trained at this rate, too**, and made every language worse, since an update over so few "
        "prompts is mostly noise. The command now has 1e-5; what it trains is not measured yet.\n\n"
        f"```bash\n{command}\n```\n"
    )
    return "\n".join(parts)
