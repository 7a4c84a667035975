"""Measures the methods that draft trees, and computes the chances of the rules for trees.

With --write it writes docs/measured/trees.md. This takes about an hour on one core, on which nothing else should
run. The same command continues with the runs in runs/trees; delete that folder to measure again.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from specbench.analysis.audit.report import AuditReport, lossy_summary, p_value
from specbench.core.console import counted
from specbench.core.registry import RULES
from specbench.core.table import markdown_table
from specbench.decoding.proposal import Draws, TreeProposal
from specbench.decoding.sampling import Distributions, Sampling
from specbench.decoding.tree_acceptance import node_acceptance
from specbench.decoding.tree_rules import WalkingRule
from specbench.models.loading import load_model
from specbench.models.machine import environment
from specbench.report.captions import verdict_word
from specbench.results.metric_format import NULL, number, with_interval
from specbench.results.paired import pair_up
from specbench.results.runs import RecordedRun, finished_run, rows_of_subsets
from specbench.results.verdict import NUM_TOKENS as NUM_DRAWN
from specbench.statistics.bootstrap import MIN_PROMPTS, Estimate
from tools.bench_trees import WANTED, Step, measure, median_ratio
from tools.tree_controls import CONTROLS
from tools.tree_laws import VOCAB, Enumerated, chains, from_target, law, sibling_draws, table, trees

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured" / "trees.md"
WORK = Path("runs") / "trees"
TASKS = ("mgsm", "wmt", "humaneval", "mt_bench")
METHODS = (
    "sd", "sd-block", "sd-tree", "token-recycling", "lookahead", "rest", "medusa", "eagle", "eagle2", "eagle3",
    "eagle3-chain",
)  # fmt: skip
NUM_TOKENS, NUM_CACHED = 26, 100  # of the pass over a tree
TARGET_PROBS = (0.27, 0.15, 0.28, 0.30)
DRAFT_PROBS = (0.45, 0.25, 0.20, 0.10)
NUM_CHILDREN = 2
DRAWS: tuple[Draws, ...] = ("fixed", "independent", "without_replacement", "top_and_one")

HEAD = """# Draft trees and draft heads

`python -m tools.trees --write` writes this page. The models are the embedded family, whose speeds say nothing about
large models. [Draft trees](../notes/trees.md) describes the methods and the rules.

"""
METHODS_TEXT = """## Methods

Decoding is greedy, on {device}, with torch {torch}.
Prompts: {prompts}. Cells: τ · speed-up over AR with its 95 % interval over prompts · verdict.
There is no interval for fewer than {least} prompts.

```bash
{command}
```

"""
AUDIT = (
    "audit", "--method", "all", "--subset", "en", "--limit", "2", "--draws", "600", "--temperature", "0.6",
    "--threads", "1",
)  # fmt: skip
VERDICTS_TEXT = """
## Verdicts

An [audit](../notes/losslessness.md) tested every method on {prompts} decoded greedily, and on {draws} draws of up to
{tokens} tokens at temperature {temperature:g}. Fewer draws find fewer errors.
The control ({control}) was {caught}.{lossy} A dash stands where
nothing was compared, counted or drawn.

```bash
{command}
```

"""
SPEEDS_TEXT = """
## Speeds

The first two ratios are of tokens/s, paired by prompt; the third is of wall-clock times, over {pairs} interleaved pairs
of passes over {tokens} tokens behind {cached} cached ones (`python -m tools.bench_trees`). Intervals are 95 %.

```bash
{commands}
```

"""
RULES_TEXT = """
## Rules

The chance that one of the {children} children of a node is accepted, for the target's p = {p}
and the drafter's q = {q}: the mean over all draws of the drafter, computed by the rules' own code.
The optimum is the largest chance of any lossless rule for children that are drawn in this way. `traversal` equals
`recursive_rejection` here, and `block` judges chains only: they differ from the token rule in longer drafts, below. A
dash means that the code has no chance of a lossy rule.

"""
LAWS_TEXT = """
The tokens that a rule accepts of a longer draft, and the total variation between the law of its tokens (one more than
the depth of the draft) and the target's. Both are exact: all draws of the drafter and all choices of the rule are
enumerated, for a vocabulary of {vocab} tokens and p and q that depend on the tokens before (`tools/tree_laws.py`). A
tree (2, 1) has two children, each with one child. `rejection` is the token rule. A lossless rule has a total variation
of 0 up to rounding.

"""
CONTROLS_TEXT = """
The same distance for wrong rules, computed in the same way (`tools/tree_controls.py`): it tells every one of them from
a lossless rule. For each, the same rule without the error has a total variation of 0 up to rounding. The two steps with
one coin are verified by three tokens.

"""
CHAIN, TREE = (1, 1, 1), (2, 1)
CHAIN_RULES = ("rejection", "exact_match", "block", "traversal", "best_path_block", "typical")


def run_words(tasks: Sequence[str], methods: Sequence[str], subsets: int, limit: int, *more: str) -> list[str]:
    """Returns the words of a `specbench run` on one thread."""
    return [
        "run", "--task", ",".join(tasks), "--method", ",".join(methods), "--subsets-per-task", str(subsets),
        "--limit", str(limit), "--threads", "1", *more,
    ]  # fmt: skip


def measured(words: Sequence[str], folder: Path) -> RecordedRun:
    """Runs specbench into a folder, or continues there. Returns the run."""
    print(command_of(words), flush=True)
    subprocess.run(
        [sys.executable, "-m", "specbench", *words, "--output", str(folder)], check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return finished_run(folder)


def command_of(words: Sequence[str]) -> str:
    return shlex.join(["specbench", *words])


def methods_table(run: RecordedRun) -> str:
    """Returns the table of methods by tasks."""
    cells = {
        (row.method_name, row.task_name): f"{number(row.metric('mean_acceptance_length'), 2)} · "
        f"{with_interval(row.metric('speedup'))} · {verdict_word(row)}" for row in rows_of_subsets(run.rows, ())
    }  # fmt: skip
    methods, tasks = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    lines = [[method, *(cells[method, task] for task in tasks)] for method in methods if method != "ar"]
    return markdown_table(["method", *tasks], lines)


def audited(file: Path) -> AuditReport:
    """Audits into a file, unless it exists. Returns the report."""
    words = [*AUDIT, "--output", str(file)]
    print(command_of(words), flush=True)
    if not file.exists():
        done = subprocess.run(
            [sys.executable, "-m", "specbench", *words], stdout=subprocess.DEVNULL, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if not file.exists():  # an audit that finds a lossy method exits with 1 and has a report
            done.check_returncode()
    return AuditReport.model_validate_json(file.read_text(encoding="utf-8"))


def verdicts_part(report: AuditReport) -> str:
    """Returns the table of verdicts with its text."""
    assert report.control is not None
    text = VERDICTS_TEXT.format(
        prompts=counted(report.noise.num_prompts, "prompt"), draws=report.num_draws, tokens=NUM_DRAWN,
        temperature=report.temperature, control=report.control.name,
        caught="caught" if report.control.caught else "NOT caught", command=command_of(AUDIT),
        lossy=lossy_summary(report),
    )  # fmt: skip
    lines = []
    for each in report.verdicts:
        greedy, draws = each.greedy, each.distribution
        accepted = [None if part is None else part.num_accepted for part in (greedy, draws)]
        lines.append([
            each.method, each.verdict, NULL if greedy is None else f"{greedy.num_equal}/{greedy.num_prompts}",
            *(NULL if number is None else str(number) for number in accepted),
            NULL if draws is None else p_value(draws.p_value), each.reason or "",
        ])  # fmt: skip
    columns = [
        "method",
        "verdict",
        "greedy = AR",
        "accepted tokens, greedy",
        "accepted tokens, draws",
        "p-value",
        "reason",
    ]
    return text + markdown_table(columns, lines) + "\n"


def speed_ratio(run: RecordedRun, method: str, other: str) -> Estimate:
    """Returns the tokens/s of a method ÷ those of another method of the same run, paired by prompt."""
    (first,), (second,) = (rows_of_subsets(run.rows_of(name), ()) for name in (other, method))
    pairs = pair_up(run.with_records(first), run.with_records(second))
    return pairs.change("tokens_per_second").change


def pass_ratio(num_pairs: int) -> str:
    """Returns the time of a tree pass and the move of its path ÷ that of a bare pass with the same mask."""
    torch.set_num_threads(1)
    found = measure(Step(load_model("embedded:target", device="cpu"), NUM_TOKENS, NUM_CACHED), num_pairs)[:, :, 0]
    return median_ratio(found[:, 0] + found[:, 1], found[:, 2])


def chances(rule: str, draws: Draws, num_children: int) -> tuple[float, float] | None:
    """Returns the chance that a rule accepts a child, and the optimum; None where the rule does not know its chance."""
    p, q = (torch.tensor(probs, dtype=torch.float64) for probs in (TARGET_PROBS, DRAFT_PROBS))
    judge, rows = RULES.get(rule)(), p.expand(num_children + 1, -1)
    target, draft = (Distributions(each.log(), Sampling(1.0), each) for each in (rows, q[None]))
    expected, optimum = 0.0, 0.0
    for mass, token_ids in sibling_draws(q, num_children, draws):
        tree = TreeProposal(list(token_ids), [-1] * num_children, draws, draft, [-1])
        found = node_acceptance(judge, tree, target, -1)
        if found is None:
            return None
        expected, optimum = expected + mass * found[0], optimum + mass * found[1]
    return expected, optimum


def tree_rules() -> Iterator[tuple[str, Draws]]:
    """Yields the rules for trees, with each way of drawing children that they take."""
    for rule in (name for name in RULES.names() if RULES.features(name).verifies_trees):
        valid = RULES.features(rule).draws or DRAWS
        yield from ((rule, draws) for draws in DRAWS if draws in valid)


def chance_lines() -> list[list[str]]:
    """Returns the lines of the table of chances at one node."""
    lines = []
    for rule, draws in tree_rules():
        if rule == "traversal":
            continue
        found = chances(rule, draws, NUM_CHILDREN)
        shown = [f"{chance:.4f}" for chance in found] if found else [NULL, NULL]
        lines.append([f"`{rule}`", lossless(rule), draws.replace("_", " "), *shown])
    return lines


def law_lines() -> list[list[str]]:
    """Returns the lines of the table of exact laws."""
    drafts: list[tuple[str, Draws, tuple[int, ...]]] = [(rule, "independent", CHAIN) for rule in CHAIN_RULES]
    drafts += [(rule, draws, TREE) for rule, draws in tree_rules()]
    lines = []
    for rule, draws, widths in drafts:
        num_accepted, variation = exact(rule, draws, widths)
        shown = "< 1e-12" if variation < 1e-12 else f"{variation:.4f}"
        draft = "chain of 3" if widths == CHAIN else "tree (2, 1)"
        lines.append([f"`{rule}`", lossless(rule), draft, draws.replace("_", " "), f"{num_accepted:.4f}", shown])
    return lines


def exact(rule: str, draws: Draws, widths: tuple[int, ...]) -> tuple[float, float]:
    """Returns the expected number of accepted tokens of a draft, and the total variation of the tokens' law from the
    target's."""
    p, q, length = table(0), table(1000), len(widths) + 1
    judge = RULES.get("recursive_rejection" if rule == "rejection" else rule)()
    walking = judge if isinstance(judge, WalkingRule) else Enumerated(judge)
    found, num_accepted = law(walking, p, chains(q, length - 1) if widths == CHAIN else trees(q, widths, draws), length)
    return num_accepted, from_target(found, p, length)


def lossless(rule: str) -> str:
    return "yes" if RULES.features(rule).lossless else "no"


def rules_part() -> str:
    text = RULES_TEXT.format(p=TARGET_PROBS, q=DRAFT_PROBS, children=NUM_CHILDREN)
    nodes = markdown_table(["rule", "lossless", "children", "expected acceptance", "optimum"], chance_lines())
    columns = ["rule", "lossless", "draft", "children", "accepted tokens", "total variation"]
    laws = LAWS_TEXT.format(vocab=VOCAB) + markdown_table(columns, law_lines())
    controls = [[control.error, control.draft, f"{control.distance():.4f}"] for control in CONTROLS]
    wrong = CONTROLS_TEXT + markdown_table(["error of the rule", "draft", "total variation"], controls)
    return f"{text}{nodes}\n{laws}\n{wrong}"


def page(work: Path, tasks: Sequence[str], subsets: int, limits: tuple[int, int], num_pairs: int) -> str:
    """Measures below a folder. Returns the page. `limits`: prompts of a subset, for the methods and for the ratios. The
    ratio of sd-block is near 1, so it is of ten times as many prompts as the other: all subsets, twice the limit."""
    ratios = [
        ("eagle3-chain", "1.15", subsets, limits[1], []),
        ("sd-block", "1.0", 11, 2 * limits[1], ["--set", "generation.temperature=1"]),
    ]
    words = run_words(tasks, METHODS, subsets, limits[0])
    run = measured(words, work / "methods")
    known = environment("cpu", "float32", "sdpa")
    lines = []
    commands = []
    open_ratios = []
    for method, wanted, num_subsets, limit, more in ratios:
        own_words = run_words(["mgsm"], ["sd", method], num_subsets, limit, *more)
        found = speed_ratio(measured(own_words, work / method), method, "sd")
        lines.append([f"{method} ÷ sd, mgsm, temperature {1 if more else 0}", f"≥ {wanted}", with_interval(found, 3)])
        if found.low is not None and found.high is not None and found.low <= float(wanted) <= found.high:
            open_ratios.append(f"The interval of {method} ÷ sd includes {wanted}, so this ratio is not shown.")
        commands.append(command_of(own_words))
    over = f"pass over a tree of {NUM_TOKENS} tokens and the move of its path ÷ bare pass with the same mask"
    lines.append([over, f"≤ {WANTED}", pass_ratio(num_pairs)])
    text = METHODS_TEXT.format(
        device=known["device"],
        torch=known["versions"]["torch"],
        prompts=", ".join(f"{row.num_timed} of {row.task_name}" for row in rows_of_subsets(run.rows_of("ar"), ())),
        least=MIN_PROMPTS,
        command=command_of(words),
    )
    speeds = SPEEDS_TEXT.format(pairs=num_pairs, tokens=NUM_TOKENS, cached=NUM_CACHED, commands="\n".join(commands))
    table_of_ratios = "\n\n".join([markdown_table(["ratio", "wanted", "measured"], lines), *open_ratios])
    verdicts = verdicts_part(audited(work / "audit.json"))
    return f"{HEAD}{text}{methods_table(run)}\n{verdicts}{speeds}{table_of_ratios}\n{rules_part()}\n"


def main() -> None:
    """Prints the part of rules or writes it, or measures and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.trees", description=__doc__)
    parser.add_argument("--write", action="store_true", help="measure, and write the page")
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="tasks of the table of methods")
    parser.add_argument("--subsets-per-task", type=int, default=2, help="subsets of each task")
    parser.add_argument("--limits", type=int, nargs=2, default=(5, 12), help="prompts of a subset: methods, ratios")
    parser.add_argument("--pairs", type=int, default=300, help="pairs of passes")
    parser.add_argument(
        "--write-rules", action="store_true", help="write only the part of rules, which measures nothing"
    )
    given = parser.parse_args()
    if given.write_rules:
        before = PAGE.read_text(encoding="utf-8").partition("\n## Rules\n")[0]
        PAGE.write_text(f"{before}{rules_part()}\n", encoding="utf-8")
    elif given.write:
        PAGE.write_text(
            page(WORK, given.tasks, given.subsets_per_task, tuple(given.limits), given.pairs), encoding="utf-8"
        )
    else:
        print(rules_part())


if __name__ == "__main__":
    main()
