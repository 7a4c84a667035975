"""python -m tools.real: its list of cells, its archives, and two cells of the embedded pair from start to page."""

import gzip
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from specbench.core.environment import EMBEDDED
from specbench.embedded import member_path
from specbench.results.leaderboard import load
from specbench.results.leaderboard_files import validate
from specbench.results.row import RowWarning
from specbench.specs.catalogue import load_method, load_task, method_names
from specbench.statistics.bootstrap import Estimate
from specbench.tasks.examples import load_examples
from specbench.tasks.readers import CATEGORIES
from tests.support.rows import row as made_row
from tools import picture
from tools.commands import ROOT
from tools.real import __main__ as program
from tools.real import archive, drafting, notes, page, results, workplace
from tools.real.board import Archives
from tools.real.cells import (
    CALIBRATED,
    CALIBRATION,
    CELLS,
    DRAFTING,
    LANGUAGES,
    LENGTHS,
    ORDERS,
    TATOEBA,
    Cell,
    Data,
    chosen,
    made_methods,
    made_tasks,
    run_words,
)
from tools.real.claims import (
    CLAIMS,
    CURVES,
    FAIR,
    STRINGS,
    UNTESTED,
    Claim,
    accuracy_and_gain_coincide,
    beside_ar,
    corrected,
    direction,
    english_is_fastest,
    faster,
    fitness_over_prompts,
    pays,
    rates,
    score_kept,
)
from tools.real.measured import Measured, label
from tools.real.models import MODELS, RealModel

LONGEST, ALTOGETHER = 40, 600  # minutes of a cell, and of all cells of a page
FEWEST = {DRAFTING: 8}  # prompts of a cell; of other groups 30
# Of one layer each, since the program is tried and not its models.
TARGET = RealModel("target", "target-dequantized-from-nothing", "embedded:drafter", "shipped", 1)
DRAFTER = RealModel("drafter", "drafter-dequantized-from-nothing", "embedded:drafter-scdf", "shipped", 1)
TINY = Data("mgsm", "mgsm", 1, 12, ("en", "de"))


def test_every_cell_can_be_planned(tmp_path: Path) -> None:
    """Methods, tasks and subsets exist, every method file is valid, and no cell is longer than it may be. What a cell
    reads is measured before it."""
    made = made_methods()
    for name, content in made.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(content), encoding="utf-8")
        assert load_method(str(file)).name == name
    tasks = {cell.data.task: cell.data.task for cell in CELLS}
    for name, content in made_tasks().items():
        tasks[name] = str(tmp_path / f"{name}.yaml")
        Path(tasks[name]).write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
        assert load_task(tasks[name]).name == name
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert set(cell.methods) <= made.keys() | CALIBRATED.keys() | set(method_names()), cell.name
        assert set(cell.data.subsets) <= set(load_task(tasks[cell.data.task]).subset_names), cell.name
        assert cell.minutes <= LONGEST and cell.data.num_prompts >= FEWEST.get(cell.group, 30), cell.name
        assert {cell.target, cell.drafter} <= {None, *MODELS}
    for on_page in (True, False):
        assert sum(cell.minutes for cell in CELLS if (cell.group == DRAFTING) == on_page) <= ALTOGETHER
    whole = {cell.data for cell in CELLS if cell.data.task == "spec_bench" and not cell.data.subsets}
    assert {data.num_subsets for data in whole} == {len(load_task("spec_bench").subset_names)}
    names = [cell.name for cell in CELLS]
    assert all(names.index(name) < names.index(cell.name) for cell in CELLS for name in cell.after)
    assert all(cell.after == CALIBRATION for cell in CELLS if CALIBRATED.keys() & cell.methods)
    used = {name for cell in CELLS for name in cell.methods}
    assert made.keys() <= used, "a method file that no cell uses"


def test_rows_of_tatoeba_are_of_a_task_of_that_name(tmp_path: Path) -> None:
    """The page's published figures are of WMT's rows."""
    file = tmp_path / "tatoeba.yaml"
    file.write_text(yaml.safe_dump(made_tasks()["tatoeba"], allow_unicode=True), encoding="utf-8")
    (tmp_path / "rows").mkdir()
    for name, text in {"deu": "Ein Hund.", "eng": "A dog."}.items():
        (tmp_path / "rows" / f"tatoeba.deu-eng.{name}").write_text(text + "\n", encoding="utf-8")
    examples = load_examples(
        load_task(str(file)), "en-de", data=str(tmp_path / "rows"), use_sample=False, limit=1, num_subsets=3
    ).examples
    assert [(each.prompt, each.reference) for each in examples] == [
        ("Translate English to German: A dog.", "Ein Hund.")
    ]
    for cell in CELLS:
        words = run_words(cell, "data", 2)
        is_of_tatoeba = words[words.index("--data") + 1] == "data/tatoeba"
        assert is_of_tatoeba == (words[words.index("--task") + 1] == "tasks/tatoeba.yaml") == (cell.data == TATOEBA)
    words = page.data_words(page.own_cells())
    assert "tatoeba (sentences of Tatoeba; en-de, ja-en, en-ja): 30 prompts" in words
    assert "wmt (WMT22; de-en): 30 prompts" in words


def test_claims_name_cells_that_exist() -> None:
    names = {cell.name for cell in CELLS}
    assert all(set(claim.cells) <= names and claim.cells for claim in CLAIMS)
    assert {claim.paper for claim in CLAIMS} == {
        "2510.02128", "2605.30580", "2502.20704", "2406.16758", "2502.05202",
    }  # fmt: skip


def test_rows_say_how_the_weights_were_made() -> None:
    assert all(any(word in model.shown for word in ("dequantized-from", "Q4_K_M.gguf")) for model in MODELS)
    words = run_words(CELLS[0], "data", 2)
    assert f"models/{MODELS[0].shown}" in words and words[words.index("--data") + 1] == "data/gsm8k"
    assert run_words(CELLS[0], None, 2)[words.index("--data") + 1] == "sample"


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_drafter_is_given_by_the_command_or_by_the_methods(cell: Cell) -> None:
    """A run refuses one from both, unless some methods lack it."""
    made = made_methods()
    named = [made.get(name, {}).get("drafter", {}).get("checkpoint") for name in cell.methods]
    assert ("--drafter" in run_words(cell, "data", 2)) == (cell.drafter is not None and None in named)
    specs = [load_method(name) for name in cell.methods if name not in made.keys() | CALIBRATED.keys()]
    assert cell.drafter is not None or not any(spec.needs_drafter for spec in specs)


def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(SystemExit, match="gsm8k-chain: no such cell; there are gsm8k-chains, "):
        chosen(["gsm8k-chain"])


def test_an_archive_has_the_same_bytes_and_no_reference(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in archive.NEEDED_FILES:
        (folder / name).write_text("{}", encoding="utf-8")
    line = '{"id":"0","reference":"the text of the data","seconds":0.1234567890123}\n'
    (folder / "records.jsonl").write_text(line, encoding="utf-8")
    first, second = tmp_path / "a.tar.xz", tmp_path / "b.tar.xz"
    archive.pack(folder, first)
    os.utime(folder / "run.json", (1, 1))
    archive.pack(folder, second)
    assert first.read_bytes() == second.read_bytes()
    archive.unpack(first, tmp_path / "back")
    assert (tmp_path / "back" / "records.jsonl").read_text() == line.replace('"the text of the data"', "null")
    assert sorted(file.name for file in (tmp_path / "back").iterdir()) == sorted(archive.NEEDED_FILES)
    environment = '{"environments": [{"packages": {"torch": "2.8.0"}}]}'
    (folder / "environment.json").write_text(environment, encoding="utf-8")
    archive.pack(folder, second)
    archive.unpack(second, tmp_path / "with")
    assert (tmp_path / "with" / "environment.json").read_text(encoding="utf-8") == environment


@pytest.mark.parametrize(
    ("low", "high", "word"), [(1.1, 1.2, "shown"), (0.8, 0.9, "reversed"), (0.9, 1.1, "not separable")]
)
def test_a_direction_is_that_of_the_interval(low: float, high: float, word: str) -> None:
    assert direction(Estimate(value=1.0, low=low, high=high)) == word
    assert direction(Estimate(value=1.0)) == "not separable"


def estimate(value: float, half: float) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half)


class Made(Measured):
    """Cells with made numbers: what the claims say (`sign` = 1), the opposite (−1), or no difference (0)."""

    sign: int
    numbers: Mapping[tuple[str, str], Mapping[str, float]]

    def __init__(self, sign: int) -> None:
        super().__init__({cell.name: Path(cell.name) for cell in CELLS})
        object.__setattr__(self, "sign", sign)
        object.__setattr__(self, "numbers", numbers(sign))

    def row(self, name: str, method: str, subset: str | None = None) -> Any:
        found = self.numbers[name, method] if method != "ar" else {}
        assert subset is None or (name, subset) == ("spec-bench-vocabulary", "summarization")
        metrics = {key: estimate(value, 0.01) for key, value in found.items() if key != "threshold"}
        rule = {"rule": "fuzzy", "threshold": found.get("threshold", 0)}
        return made_row(method=f"{method}@1:0123456789ab", metrics=metrics, options={"verification": rule},
                        quality="accuracy")  # fmt: skip

    def run(self, name: str) -> Any:
        methods = [method for cell, method in self.numbers if cell == name]
        return SimpleNamespace(rows=[self.row(name, method) for method in methods])

    def by_subset(self, name: str, method: str) -> Any:
        subsets = {FAIR: LANGUAGES, "mcot-sampled": ("en", "sw")}.get(
            name, ("mt_bench", "math_reasoning", "translation")
        )
        return {subset: self.row(name, subset) for subset in subsets}

    def between(self, first: tuple[str, str], second: tuple[str, str], metric: str) -> Estimate:
        before, after = (self.row(*side).value(metric) for side in (first, second))
        if metric in ("tokens_per_second", "speedup", "mean_acceptance_length"):
            return estimate(after / before, 0.01)
        return estimate(after - before, 0.01)

    def fairness(self, name: str) -> Any:
        sign = self.sign
        # D of the languages, of which English and Japanese are the first and the fourth.
        order: tuple[float, ...] = (1, 3, 0, 1, 2.5, 0.5) if sign == 0 else tuple(sign * place for place in range(6))
        groups = {
            language: SimpleNamespace(
                subset=language, forced=SimpleNamespace(cross_entropy=estimate(2 + place / 4, 0.1)))
            for language, place in zip(LANGUAGES, order, strict=True)
        }  # fmt: skip
        correlations = SimpleNamespace(fitness_and_measured_over_prompts=0.44 * sign)
        change = SimpleNamespace(difference=estimate(-sign, 0.1), percent=estimate(-20 * sign, 2))
        drafter = SimpleNamespace(groups=groups, family=SimpleNamespace(correlations=correlations))
        return SimpleNamespace(
            num_prompts=48, drafters=[drafter],
            comparison=SimpleNamespace(family={"acceptance_rate.variance": change, "unfairness": change}),
        )  # fmt: skip


def numbers(sign: int) -> Mapping[tuple[str, str], Mapping[str, float]]:
    """The metrics by cell and method."""
    speed, rate, gain, score = "tokens_per_second", "acceptance_rate", "speedup", "accuracy"
    length = "mean_acceptance_length"
    loss = f"{score}_difference"
    found: dict[tuple[str, str], dict[str, float]] = {
        ("low-resource", "sd-4"): {speed: 10, rate: 0.4, gain: 1 + 0.1 * sign},
        ("low-resource", "ngram-low-resource"): {speed: 10 + sign, rate: 0.4 - 0.1 * sign},
        ("mgsm-scdf", "sd-untrained"): {rate: 0.5},
        ("mgsm-scdf", "scdf-trained"): {rate: 0.5},
        ("wmt-chains", "pld"): {speed: 10, length: 1},
        ("wmt-chains", "sd"): {speed: 10 + sign, length: 1 + 0.3 * sign},
        ("wmt-chains", "lookahead"): {gain: 1 + 0.1 * sign, length: 1 + 0.1 * sign},
        ("spec-bench-chains", "mt_bench"): {gain: 1.5},
        ("spec-bench-chains", "math_reasoning"): {gain: 1.5},
        ("spec-bench-chains", "translation"): {gain: 1.5 - 0.1 * sign},
        ("gsm8k-random", "fsd-low"): {rate: 0.9, score: 0.5 + 0.1 * sign},
        ("gsm8k-random", "random-accept-0.8"): {rate: 0.8, score: 0.5},
        ("gsm8k-random", "random-accept-0.9"): {rate: 0.95, score: 0.5 - 0.4 * sign},  # it accepts more than FSD
        (STRINGS, "slem-1"): {speed: 10, rate: 0.4},
        (STRINGS, "slrs"): {speed: 10 - sign, rate: 0.4 + 0.1 * sign},
    }
    for cell in ("gsm8k-chains", "humaneval-chains"):
        more = 0.1 if cell == "humaneval-chains" else 0
        found[cell, "sd"] = {speed: 10, score: 0.5, rate: 0.7 + more * abs(sign)}
        found[cell, "fsd-low"] = {speed: 10 + sign, score: 0.5 + 0.1 * sign, rate: 0.8 + more * sign}
        found[cell, "fsd-high"] = {speed: 10 + 2 * sign, score: 0.5}
    for task in ("gsm8k", "humaneval", "spec-bench"):
        for method in ("slem", "tli"):
            found[f"{task}-vocabulary", method] = {gain: 1 + 0.1 * sign}
    for cell in ("smollm2-gemma-mgsm-t1", "gemma-smollm2-mgsm-t1"):
        found[cell, "union"], found[cell, "tli"] = {rate: 0.4}, {rate: 0.4 + 0.1 * sign}
    for cell in CURVES:  # the highest threshold loses too much to be chosen
        best = 1.5 + (0.2 * sign if cell == CURVES[0] else 0)
        found[cell, "low"] = {"threshold": 0.1, speed: 10, gain: best, score: 0.5, loss: 0}
        found[cell, "high"] = {"threshold": 0.7, speed: 10 + sign, gain: 9, score: 0.5 - 0.1 * sign, loss: -0.2}
    for cell in ("gsm8k-sampled", "csqa-levels", "mmlu-levels"):
        found[cell, "sd"] = {speed: 10, score: 0.5}
        found[cell, "fsd-low"] = {speed: 10 + sign, score: 0.5 + 0.1 * sign}
    found["gsm8k-allocation", "random-allocation"] = {speed: 10, score: 0.5}
    found["gsm8k-allocation", "fsd-low"] = {speed: 10 + sign, score: 0.5 + 0.1 * sign}
    for value in (0.5, 1.5, 2):
        found[f"mgsm-t{value:g}", "sd"] = {rate: 0.5 - 0.1 * sign * (value == 1.5)}
    found["mcot-sampled", "en"], found["mcot-sampled", "sw"] = {rate: 0.8}, {rate: 0.8 - 0.2 * sign}
    for order in ("", *ORDERS):
        found["low-resource-orders", f"ngram-low-resource{order}"] = {rate: 0.3 - 0.1 * sign * bool(order)}
    for method in ("sd", "lookahead"):
        found["wmt-sampled", method] = {gain: 1 + 0.1 * sign}
    for place, language in enumerate(LANGUAGES):
        found[FAIR, language] = {gain: 2 - place / 10, rate: 0.6 - 0.05 * sign * place}
    return found


OF_LANGUAGES = (english_is_fastest, accuracy_and_gain_coincide)  # which no world of one sign has: tested below


@pytest.mark.parametrize(("sign", "word"), [(1, "shown"), (-1, "reversed"), (0, "not separable")])
@pytest.mark.parametrize(
    "claim", [claim for claim in CLAIMS if claim.judge not in OF_LANGUAGES], ids=lambda claim: claim.claim[:40]
)
def test_every_claim_is_judged_by_what_it_says(claim: Claim, sign: int, word: str) -> None:
    text = claim.judge(Made(sign))
    assert words_of(text) == {word}, text


def words_of(text: str) -> set[str]:
    return {*re.findall(r"\*\*(.+?)\*\*", text)}


def of_languages(order: Sequence[float], cut: float = 0) -> Any:
    """Languages with these ranks: of the speed-up, of α and of AR's accuracy."""

    def made(rank: float) -> Any:
        metrics = {key: estimate(rank, 0.1) for key in ("speedup", "acceptance_rate", "accuracy")}
        return made_row(metrics=metrics | {"share_cut_by_length": Estimate(value=cut)}, quality="accuracy", n=48)

    rows = {language: made(rank) for language, rank in zip(LANGUAGES, order, strict=True)}
    return SimpleNamespace(by_subset=lambda name, method: rows, row=lambda name, method: made(1))


@pytest.mark.parametrize(
    ("order", "word"),
    [((6, 5, 4, 1, 3, 2), "shown"), ((1, 5, 4, 6, 3, 2), "reversed"), ((6, 6, 4, 1, 3, 1), "not separable")],
)
def test_the_first_and_the_last_language(order: Sequence[float], word: str) -> None:
    """English is the first of LANGUAGES, Japanese the fourth."""
    assert words_of(english_is_fastest(of_languages(order))) == {word}


def test_accuracy_says_nothing_where_answers_are_cut() -> None:
    text = accuracy_and_gain_coincide(of_languages((6, 5, 4, 1, 3, 2)))
    assert words_of(text) == {"shown"} and "accuracy with α 1.00 over 6 languages" in text
    text = accuracy_and_gain_coincide(of_languages((6, 5, 4, 1, 3, 2), cut=0.75))
    assert text == "**not judged**: the limit on new tokens ends 36 of AR's 48 answers"


def test_fitness_is_not_compared_with_the_acceptance_of_its_own_passes() -> None:
    """A report of an earlier version has no other one over prompts."""
    made = Made(1)
    report = made.fairness(FAIR)
    report.drafters[0].family.correlations = SimpleNamespace(
        fitness_and_measured_over_prompts=None, fitness_and_acceptance_over_prompts=0.94
    )
    for place, group in enumerate(report.drafters[0].groups.values()):
        group.forced.draft_misfit = Estimate(value=place / 10)
    made.fairness = lambda name: report  # type: ignore[method-assign]
    text = fitness_over_prompts(made)
    assert "over prompts **not judged**" in text and "(ρ = 0.94) shows nothing" in text
    assert text.endswith(
        "**shown**: ρ of the fitness with the decoded α 1.00 over 6 languages (p = 0.0028, all orders)"
    )


def changed(**metrics: Mapping[str, float]) -> Made:
    """Cells with numbers that say what the claims do, but for these of methods of gsm8k-chains."""
    made = Made(1)
    numbers = {key: dict(value) for key, value in made.numbers.items()}
    for method, values in metrics.items():
        numbers["gsm8k-chains", method.replace("_", "-")] |= values
    object.__setattr__(made, "numbers", numbers)
    return made


def test_speeds_of_answers_that_run_on_do_not_compare() -> None:
    """Also where those of both methods run on, and AR's do not; then their scores say nothing either."""
    cut = {"share_cut_by_length": 1.0}
    made = changed(fsd_low=cut)
    text = faster("gsm8k-chains", "sd", "fsd-low")(made)
    assert words_of(text) == {"not comparable"} and "ends 0 % of ar, 0 % of sd, 100 % of fsd-low" in text
    assert words_of(score_kept("gsm8k-chains", "sd", "fsd-low")(made)) == {"not judged"}
    made = changed(fsd_low=cut, fsd_high=cut)
    assert words_of(faster("gsm8k-chains", "fsd-low", "fsd-high")(made)) == {"not comparable"}
    assert words_of(faster("humaneval-chains", "fsd-low", "fsd-high")(made)) == {"shown"}


def test_two_ways_below_ar_show_only_their_order() -> None:
    """Papers report gains."""
    both = faster("gsm8k-chains", "sd", "fsd-low")
    text = both(changed(sd={"speedup": 0.7}, fsd_low={"speedup": 0.81}))
    assert words_of(text) == {"order shown"} and text.endswith("; sd 0.70 and fsd-low 0.81, both below AR")
    text = both(changed(sd={"speedup": 0.7}, fsd_low={"speedup": 1.2}))
    assert words_of(text) == {"order shown"} and text.endswith("; sd 0.70 (below AR) and fsd-low 1.20 (above AR)")
    text = both(changed(sd={"speedup": 1.1}, fsd_low={"speedup": 1.2}))
    assert words_of(text) == {"shown"} and text.endswith("both above AR")
    both_lose = {"sd": estimate(0.7, 0.1), "pld": estimate(0.6, 0.1)}
    assert beside_ar("reversed", both_lose) == ("reversed", "sd 0.70 and pld 0.60, both below AR")


def test_a_claim_without_numbers_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Made, "fairness", lambda self, name: None)
    for claim in CLAIMS:
        if claim.cells[0] in (FAIR, "mgsm-scdf") and claim.judge not in OF_LANGUAGES:
            assert claim.judge(Made(1)) == "no number"


def test_a_claim_is_tested_or_has_a_reason_why_not() -> None:
    assert {paper for paper, _, _ in UNTESTED} == {claim.paper for claim in CLAIMS}
    assert all(claim and reason for _, claim, reason in UNTESTED)


def table_row(method: str, **metrics: float) -> Any:
    fields = {"n": 30, "quality": "accuracy", "method": f"{method}@1:0123456789ab"}
    return made_row(**fields, metrics={name: Estimate(value=value) for name, value in metrics.items()})


def test_below_a_table_stands_what_its_numbers_do_not_mean() -> None:
    cell = next(cell for cell in CELLS if cell.name == "gsm8k-chains")
    rows = [
        table_row("ar", share_cut_by_length=0, new_tokens=3000, accuracy=0.4),
        table_row("fsd-low", share_cut_by_length=1, new_tokens=6000, share_looping=0.2, speedup=1.6,
                  speedup_without_loops=1.5, mean_acceptance_length=5, mean_acceptance_length_without_loops=4.5),
        table_row("ngram-general", share_cut_by_length=0.1, speedup=1.1),
    ]  # fmt: skip
    found: Any = SimpleNamespace(whole=lambda cell: rows, row=lambda name, method: rows[0])
    text = notes.below(found, [(cell, row) for row in rows])
    assert "‡ gsm8k-chains: the answers of fsd-low run on: 100 % of their answers go on to the limit of 200" in text
    assert "(200 on average), but 0 % of AR's (100)" in text
    assert (
        "*In-domain corpus* (in the records `ngram-general`): it has questions" in text
        and "GSM8K, HumanEval; row 31 and later" in text
    )
    assert "| gsm8k-chains | fsd-low | 5.00 | 4.50 | 1.60 | 1.50 |" in text
    assert "mean nothing" not in text and text.count("| gsm8k-chains |") == 1
    assert page.marked_speedup(rows[1], rows[0]) == "1.60 ‡" and page.marked_speedup(rows[2], rows[0]) == "1.10"
    rows[0] = table_row("ar", share_cut_by_length=0.8, accuracy=0.04)
    text = notes.below(found, [(cell, row) for row in rows])
    assert (
        "**Scores mean nothing**" in text and "gsm8k-chains 24 of 30 at 200 tokens (80 %; methods 10 to 100 %" in text
    )
    assert "of AR 4.0)" in text and "run on" not in text
    assert page.scores(rows[1], rows[0]) == ("–", "–")


def test_rows_with_a_mark_are_listed_by_cell() -> None:
    """No name of a list has a comma. What loops change has a table, which shows it whichever method loops."""
    warnings = {code: {"code": code, "text": text} for code, text in {
        "busy": "it was noisy (9 s): measure again", "loops": "0% of its answers and 0% of ar's repeat themselves",
    }.items()}  # fmt: skip
    first, second = CELLS[:2]

    def row(method: str, *codes: str, **metrics: float) -> Any:
        return table_row(method, **metrics).model_copy(
            update={"warnings": tuple(RowWarning(**warnings[code]) for code in codes)}
        )

    without = {"speedup": 1.2, "speedup_without_loops": 1.1, "mean_acceptance_length": 2.0,
               "mean_acceptance_length_without_loops": 2.0}  # fmt: skip
    rows = [row("ar"), row("sd", "busy", "loops", **without), row("rest-general", "busy"),
            row("pld", share_looping=0.1, speedup=1.2, speedup_without_loops=1.201)]  # fmt: skip
    pairs = [(first, each) for each in rows] + [(second, row("pld", "busy"))]
    found: Any = SimpleNamespace(whole=lambda cell: rows if cell == first else rows[:1], row=lambda *names: rows[0])
    text = notes.below(found, pairs)
    assert (
        "† gsm8k-chains: sd: it was noisy (9 s). Each of these, too: gsm8k-chains: rest (in-domain corpus); "
        "humaneval-chains: pld." in text
    )
    assert "0%" not in text and "| gsm8k-chains | sd | 2.00 | 2.00 | 1.20 | 1.10 |" in text
    assert text.count("| gsm8k-chains |") == 1
    assert not any("," in label(name) for cell in CELLS for name in cell.methods)


def test_a_difference_of_few_scores_has_no_interval() -> None:
    change = {"accuracy_difference": Estimate(value=-0.2, low=-0.8, high=0.426)}
    few, enough = (made_row(n=n, quality="accuracy", metrics=change) for n in (page.LEAST - 1, page.LEAST))
    assert page.difference(few) == "-20.0" and page.difference(enough) == "-20.0 [-80.0, +42.6]"


def test_the_page_says_which_cells_went_on_behind_an_end_token() -> None:
    """The end of an answer is not behind it."""
    assert CELLS[0].target.unnamed_end is not None
    end, text_of_end = CELLS[0].target.unnamed_end

    def run(*answers: Sequence[int]) -> Any:
        records = {place: SimpleNamespace(methods={"ar": SimpleNamespace(token_ids=np.array(ids))})
                   for place, ids in enumerate(answers)}  # fmt: skip
        return SimpleNamespace(records=records)

    runs = {"gsm8k-chains": run([5, end, 7], [5, 6], [5, end], [5]), "humaneval-chains": run([5, end])}
    rows = {"gsm8k-chains": made_row(versions={"torch": "1"}), "humaneval-chains": made_row(versions={"torch": "2"})}
    found: Any = SimpleNamespace(run=runs.__getitem__, row=lambda name, method: rows[name])
    text = page.conditions(found, [cell for cell in CELLS if cell.name in runs])
    assert f"also ends answers at {text_of_end} ({end}), which its folder here does not name" in text
    assert text.endswith("in part of that text: gsm8k-chains (25 %).")
    assert "Otherwise in humaneval-chains: torch 2, without torch 1." in text


def test_the_first_sentences_are_computed_from_the_rows() -> None:
    def row(method: str, gain: float, half: float, tokens: float = 10, lossless: bool = True) -> Any:
        metrics = {"speedup": estimate(gain, half), "tokens_per_second": estimate(tokens, 1),
                   "accuracy": estimate(0.5, 0.1), "accuracy_ar": estimate(0.6, 0.1)}  # fmt: skip
        return made_row(method=f"{method}@1:0123456789ab", metrics=metrics, quality="accuracy", lossless=lossless)

    cells = {"gsm8k-chains": [row("ar", 1, 0), row("sd", 1.3, 0.1), row("pld", 1.05, 0.1),
                              row("fsd-low", 1.6, 0.1, 16, False)],
             "gsm8k-trees": [row("ar", 1, 0), row("sd-tree", 0.9, 0.05)],
             "gsm8k-int8": [row("ar", 1, 0, 20), row("sd", 0.8, 0.1)],
             "gsm8k-q4": [row("ar", 1, 0, 30), row("sd", 0.5, 0.1)]}  # fmt: skip
    found: Any = SimpleNamespace(
        has=cells.__contains__, whole=lambda cell: cells[cell.name],
        row=lambda name, method: next(each for each in cells[name] if each.method_name == method),
    )  # fmt: skip
    assert list(results.results(found)) == [
        "**GSM8K**, methods that keep AR's answers: 1 faster than AR (sd); 1 slower (sd-tree); 1 not separable from it "
        "(pld). The fastest is sd: 1.30 [1.20, 1.40] × AR; with other answers fsd-low: 1.60 [1.50, 1.70], accuracy % "
        "60.0 → 50.0.",
        "**GSM8K, precisions**: AR writes 10.0 in bfloat16, 20.0 in int8, 30.0 in Q4_K_M tok/s; the fastest method in "
        "bfloat16, fsd-low, 16.0. sd is 1.30 in bfloat16, 0.80 in int8, 0.50 in Q4_K_M × AR.",
    ]


def test_columns_without_a_number_are_left_out() -> None:
    assert page.filled(["a", "b", "c"], [["1", "–", "2"], ["3", "", "4"]]) == page.table(["a", "c"], ["12", "34"])


def test_answers_that_differ_are_counted_with_those_decoded_again() -> None:
    def row(subset: str, answers: int, near_ties: int | None, again: int | None = None) -> Any:
        differences = {"answers": answers, "compared": 30, "near_ties": near_ties, "decoded_again": again}
        return made_row(subset=subset, differences=differences)

    parts = {"en": row("en", 12, 10), "de": row("de", 3, 3)}
    found = Measured({})
    object.__setattr__(found, "by_subset", lambda name, method: parts)
    assert found.decoded_again("x", row("all", 15, 13)) == 2 + 8 + 3  # by the rule: eight near-ties of a subset
    assert found.decoded_again("x", row("all", 15, 13, 14)) == 14
    assert found.decoded_again("x", row("default", 14, 14)) == 8
    assert found.decoded_again("x", row("default", 30, None)) is None  # a lossy rule
    cell = CELLS[0]
    assert page.differing(found, cell, row("default", 14, 14)) == "14 of 30 (8)"
    assert page.differing(found, cell, row("default", 30, None)) == "30 of 30"
    assert page.differing(found, cell, made_row(method="sd@1:0123456789ab")) == "–"


def test_a_panel_is_of_one_run_as_far_as_it_can_be() -> None:
    """Most methods are of the second run, so that sd is of it, too; a run of fewer prompts comes last."""
    drawn = replace(
        picture.REAL, tasks={"gsm8k": "math"}, methods=("sd", "fsd-low", "fsd-high", "pld", "slem"), target=None
    )

    def row(run: str, method: str, n: int = 30) -> Any:
        return made_row(task="gsm8k@1:0123456789ab", subset="default", method=f"{method}@1:0123456789ab", n=n,
                        run=f"real/{run}", dtype="bfloat16", metrics={"speedup": estimate(1, 0.1)})  # fmt: skip

    runs = {
        "gsm8k-chains": ("sd", "pld"),
        "gsm8k-levels": ("ar", "sd", "fsd-low", "fsd-high"),
        "gsm8k-short": ("sd", "slem"),
    }
    rows = [row(run, method, 12 if run == "gsm8k-short" else 30) for run, names in runs.items() for method in names]
    panel = drawn.panels(rows)["gsm8k"]
    assert {name: each.run for name, each in panel.items() if name != "ar"} == {
        "sd": "real/gsm8k-levels", "fsd-low": "real/gsm8k-levels", "fsd-high": "real/gsm8k-levels",
        "pld": "real/gsm8k-chains", "slem": "real/gsm8k-short",
    }  # fmt: skip
    why, line = picture.captions_of({"gsm8k": panel}, drawn.methods)
    assert "Dots compare within a run" in why
    assert line == "gsm8k: levels has sd, fsd-low, fsd-high; chains has pld; short has slem"
    assert picture.captions_of({"gsm8k": {name: panel[name] for name in ("sd", "fsd-low")}}, drawn.methods) == []


def test_the_picture_has_the_marks_of_the_page_and_the_readme_its_methods_and_its_rows() -> None:
    readme = picture.README.read_text(encoding="utf-8")
    assert picture.with_table(picture.with_title(readme)) == readme
    stale = readme.replace("| near-tie only |", "| greedy equal |")
    assert stale != readme == picture.with_table(stale)
    drawn = picture.picture(picture.REAL)
    assert drawn == picture.REAL.file.read_text(encoding="utf-8")
    panels = picture.REAL.panels(load(picture.REAL.board))
    shown = [row for panel in panels.values() for row in panel.values() if not row.is_baseline]
    doubted = [row for row in shown if {each.code for each in row.warnings} - {"few_prompts"}]
    assert len(re.findall(r'text-anchor="start" font-size="11">†', drawn)) == len(doubted) > 0
    methods = picture.REAL.shown(panels)
    assert {"ngram-general", "fsd-med"} <= {*methods} and "in-domain corpus" in drawn and "ngram-general" not in drawn
    spec_bench = panels["spec_bench"]
    assert spec_bench["sd"].run == spec_bench["fsd-low"].run == spec_bench["fsd-high"].run


def test_the_drafter_of_scdf_is_trained_on_rows_that_no_cell_measures(
    tool: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, model in {"QWEN": TARGET, "QWEN_DRAFTER": DRAFTER}.items():
        monkeypatch.setattr(workplace, name, model)
    tiny = ("--num-steps", "1", *(word for key in ("gradient_accumulation=1", "scdf.prompts_per_language=1",
            "scdf.languages_per_pass=2", "max_new_tokens=4") for word in ("--set", key)))  # fmt: skip
    monkeypatch.setattr(workplace, "TRAINING", tiny)
    monkeypatch.setattr("tools.real.cells.CELLS", ())
    with pytest.raises(SystemExit, match="--train needs --data DIR"):
        tool.call("--train")
    data = tmp_path / "rows" / "mgsm"
    data.mkdir(parents=True)
    for language in LANGUAGES:
        lines = [f"question {number}\t{number}\n" for number in range(workplace.NUM_MEASURED + 2)]
        (data / f"mgsm_{language}.tsv").write_text("".join(lines), encoding="utf-8")
    tool.call("--train", "--data", str(data.parent))
    (words,) = tool.commands
    assert words[:2] == ["train", "scdf"] and words[words.index("--subset") + 1] == ",".join(LANGUAGES)
    used = (tmp_path / "work" / workplace.TRAINING_ROWS / "mgsm_ja.tsv").read_text(encoding="utf-8")
    assert used == "question 30\t30\nquestion 31\t31\n"
    assert max(cell.data.limit for cell in CELLS if cell.data.task == "mgsm") <= workplace.NUM_MEASURED
    trained = tmp_path / "work" / workplace.TRAINED
    assert (trained / "training.json").is_file()
    place = workplace.Workplace(tmp_path / "work", tmp_path / "given", None, trained, 1)
    assert place.missing(replace(tool.cells[0], needs_trained=True)) is None


def test_the_command_of_the_training_is_documented() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8").replace("\\\n", " ")
    documented = [shlex.split(line) for line in text.splitlines() if line.startswith("specbench train scdf")]
    assert documented == [["specbench", *workplace.training_words(2)]]


@pytest.fixture
def tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, specbench: Callable[..., tuple[int, str, str]]
) -> SimpleNamespace:
    """The program on two tiny cells of the embedded pair. `commands`: what it ran; `codes`: exit codes that replace
    the next commands."""
    found = SimpleNamespace(commands=[], codes=[], board=tmp_path / "boards" / "real.json", page=tmp_path / "real.md")
    (tmp_path / "given").mkdir()
    for model in (TARGET, DRAFTER):
        (tmp_path / "given" / model.folder).symlink_to(member_path(model.hub.removeprefix(EMBEDDED)))
    cells = (
        Cell("first", "main", TINY, ("sd", "fsd-js-0.5"), 1, TARGET, DRAFTER),
        Cell("second", "vocabulary", TINY, ("slem", "tli"), 1, TARGET, DRAFTER),
    )

    def run(command: list[str], *, cwd: Path, stdout: Any, **options: Any) -> SimpleNamespace:
        words = command[command.index("specbench") + 1 :]
        found.commands.append(words)
        if found.codes:
            return SimpleNamespace(returncode=found.codes.pop(0))
        monkeypatch.chdir(cwd)
        code, out, err = specbench(*words)
        assert code == 0, err
        stdout.write(out)
        return SimpleNamespace(returncode=code)

    def use(cells: Sequence[Cell]) -> None:
        for module in (program, page, drafting):
            monkeypatch.setattr(module, "CELLS", cells)
        monkeypatch.setattr("tools.real.cells.CELLS", cells)
        found.cells = cells

    use(cells)
    monkeypatch.setattr(workplace, "MODELS", (TARGET, DRAFTER))
    monkeypatch.setattr("tools.commands.subprocess", SimpleNamespace(run=run))

    def call(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", [
            "real", str(tmp_path / "given"), "--threads", "1", "--work", str(tmp_path / "work"),
            "--board", str(found.board), "--page", str(found.page), *words,
        ])  # fmt: skip
        program.main()

    found.call, found.use = call, use
    return found


def measured(tool: SimpleNamespace) -> Measured:
    archives = Archives(tool.board)
    return Measured({cell.name: archives.unpacked(cell) for cell in archives.measured(tool.cells)})


def test_cells_are_measured_once_and_archived(tool: SimpleNamespace, tmp_path: Path) -> None:
    tool.codes = [1]  # the first cell ends with an error
    with pytest.raises(SystemExit, match="not measured: first"):
        tool.call()
    text = tool.page.read_text(encoding="utf-8")
    assert "| second (n = 2) | first |" in text and "Not measured yet." in text  # true with only some of the cells
    tool.call()
    assert [words[words.index("--output") + 1] for words in tool.commands] == [
        "cells/first",
        "cells/second",
        "cells/first",
    ]
    rows = load(tool.board)
    assert {row.run for row in rows} == {"real/first", "real/second"}
    assert {row.target for row in rows} == {"models/target-dequantized-from-nothing"}
    assert not validate(tool.board, True, [], lambda *_: None).problems
    assert str(tmp_path) not in tool.board.read_text() + tool.page.read_text()
    before = tool.board.read_bytes(), tool.page.read_bytes()
    for folder in [tmp_path / "work", *(Archives(tool.board).unpacked(cell) for cell in tool.cells)]:
        for file in sorted(folder.rglob("*"), reverse=True):
            file.unlink() if file.is_symlink() or file.is_file() else file.rmdir()
    tool.board.unlink()
    tool.call()  # as in a fresh checkout: the archives are all that is left
    tool.call("--page-only")
    assert len(tool.commands) == 3
    assert (tool.board.read_bytes(), tool.page.read_bytes()) == before


def test_an_interrupted_cell_goes_on_unless_another_version_began_it(
    tool: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool.call("--only", "first")
    tool.board.with_suffix("").joinpath("first.tar.xz").unlink()
    folder = tmp_path / "work" / "cells" / "first"
    tool.call("--only", "first")  # stopped between the end of the run and its archive: nothing is measured again
    assert len(tool.commands) == 1
    tool.board.with_suffix("").joinpath("first.tar.xz").unlink()
    (folder / "leaderboard.json").unlink()
    records = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "records.jsonl").write_text(records[0], encoding="utf-8")  # as after kill -9
    tool.call("--only", "first")
    assert (folder / "records.jsonl").read_text(encoding="utf-8").startswith(records[0])
    tool.board.with_suffix("").joinpath("first.tar.xz").unlink()
    (folder / "leaderboard.json").unlink()
    identity = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    identity["environment"]["commit"] = "0123456"
    (folder / "run.json").write_text(json.dumps(identity), encoding="utf-8")
    capsys.readouterr()
    tool.call("--only", "first")
    assert (folder.with_name("first.of-0123456") / "records.jsonl").is_file()
    assert not (folder / "records.jsonl").read_text(encoding="utf-8").startswith(records[0])


def test_the_page_and_the_claims_are_of_the_rows(tool: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [Claim("x", "pays", "", ("first",), pays("first", "sd")),
              Claim("x", "rates", "", ("second",), rates("second", "slem", "tli")),
              Claim("x", "missing", "", ("third",), corrected)]  # fmt: skip
    monkeypatch.setattr("tools.real.claims.CLAIMS", claims)
    tool.call()
    text = tool.page.read_text(encoding="utf-8")
    found = measured(tool)
    sd = found.row("first", "sd")
    assert f"{sd.value('mean_acceptance_length'):.2f} | " in text
    assert "| arXiv:x | missing |  | not measured yet |  |" in text
    assert f"τ {sd.value('mean_acceptance_length'):.2f}, {sd.verdict}" in text
    change = found.change("second", "slem", "tli", "acceptance_rate").value
    assert change is not None and f"α of tli − slem {change:+.3f}" in text
    assert "specbench run --task mgsm --method sd,methods/fsd-js-0.5.yaml" in text


def test_a_cell_that_cannot_run_here_is_left_out_with_its_reason(tmp_path: Path) -> None:
    for model in MODELS:
        (tmp_path / model.folder).touch()
    place = workplace.Workplace(tmp_path / "work", tmp_path, None, None, 1)
    reasons = {cell.name: place.missing(cell) for cell in CELLS}
    assert "--trained" in (reasons["mgsm-scdf"] or "")
    assert all("--data" in (reasons[name] or "") for name in ("low-resource", "tatoeba-chains"))
    assert reasons["gsm8k-chains"] is None
    assert reasons["drafting-humaneval-cold"] is None
    assert reasons["drafting-trace-warm"] == "it reads the records of drafting-trace-cold: measure that first"
    assert "--data" in (reasons["drafting-mt-bench-cold"] or "")
    (tmp_path / "qwen-coder-1.5b.gguf").unlink()
    assert "qwen-coder-1.5b.gguf is missing" in (
        place.missing(next(cell for cell in CELLS if cell.name == "drafting-humaneval-gguf")) or ""
    )
    (tmp_path / CELLS[0].target.folder).unlink()
    assert str(tmp_path / CELLS[0].target.folder) in (place.missing(CELLS[0]) or "")


def test_made_rows_are_of_all_categories_or_behind_the_measured_ones(tmp_path: Path) -> None:
    for name in ("humaneval", "wmt22", "spec_bench"):
        (tmp_path / name).mkdir()
    code = [{"task_id": f"HumanEval/{number}", "prompt": "def"} for number in range(workplace.NUM_MEASURED + 2)]
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in code).encode())
    (tmp_path / "humaneval" / "HumanEval.jsonl.gz").write_bytes(packed)
    texts = [{"translation": {"de": f"Satz {number}"}} for number in range(workplace.NUM_MEASURED + 1)]
    (tmp_path / "wmt22" / "test.de-en_head200.json").write_text(json.dumps(texts), encoding="utf-8")
    questions = [
        {"question_id": number, "category": category, "turns": [f"first {number}", "second"], "reference": ["1", "2"]}
        for number, category in enumerate(["rag", *(name for name in CATEGORIES for _ in range(2))])
    ]
    lines = "".join(json.dumps(row) + "\n" for row in questions)
    (tmp_path / "spec_bench" / "question.jsonl").write_text(lines, encoding="utf-8")
    place = workplace.Workplace(tmp_path / "work", tmp_path, tmp_path, None, 1)
    files = {}
    for name in workplace.MADE_ROWS:
        place.make_rows(name)
        (file,) = (tmp_path / "work" / "rows" / name).iterdir()
        files[name] = file
    assert [row["task_id"] for row in workplace.rows(files["humaneval-behind"])] == ["HumanEval/30", "HumanEval/31"]
    assert json.loads(files["wmt22-behind"].read_text(encoding="utf-8")) == [{"translation": {"de": "Satz 30"}}]
    rows = workplace.rows(files["mt-bench-first-turns"])
    assert [row["category"] for row in rows] == [*CATEGORIES, *CATEGORIES]
    assert rows[0]["turns"] == ["first 1"] and rows[8]["turns"] == ["first 2"]
    examples = load_examples(
        load_task("spec_bench"), "mt_bench", data=str(files["mt-bench-first-turns"].parent), use_sample=False, limit=9,
        num_subsets=1,
    ).examples  # fmt: skip
    assert [len(example.turns) for example in examples] == [1] * 9


def test_corpora_have_no_measured_row(tmp_path: Path) -> None:
    """The first rows of a file are measured, so a corpus begins behind them."""
    for name in ("gsm8k", "humaneval", "qmsum"):
        (tmp_path / name).mkdir()
    questions = [{"question": f"question {number:03}", "answer": "1"} for number in range(workplace.NUM_MEASURED + 1)]
    (tmp_path / "gsm8k" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    code = [{"prompt": f"code {number:03}", "canonical_solution": ""} for number in range(workplace.NUM_MEASURED + 1)]
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in code).encode())
    (tmp_path / "humaneval" / "HumanEval.jsonl.gz").write_bytes(packed)
    (tmp_path / "qmsum" / "val.jsonl").write_text('{"meeting_transcripts": [{"speaker": "A", "content": "B"}]}\n')
    texts = [text for text in workplace.general(tmp_path) if len(text) < 40]
    assert [text.splitlines()[0] for text in texts][-3:] == ["question 030", "code 030", "A: B"]
    assert max(cell.data.limit for cell in CELLS if cell.data.task in ("gsm8k", "humaneval")) == workplace.NUM_MEASURED


@pytest.mark.parametrize(("name", "cells"), [("real.md", page.own_cells()), (drafting.PAGE, drafting.own_cells())])
def test_the_committed_pages_name_every_cell_as_measured_or_not(name: str, cells: Sequence[Cell]) -> None:
    text = (ROOT / "docs" / "measured" / name).read_text(encoding="utf-8")
    archives = Archives(ROOT / "leaderboards" / "real.json")
    line = text.split("| measured | not measured yet |\n| --- | --- |\n| ")[1].partition(" |\n")[0]
    done, left = (set(part.split(", ")) - {"–"} for part in line.split(" | "))
    archived = {cell.name for cell in cells if archives.archive(cell).is_file()}
    assert {word.partition(" (n = ")[0] for word in done} == archived
    assert left == {cell.name for cell in cells} - archived
    in_archives = {file.name.removesuffix(".tar.xz") for file in archives.board.with_suffix("").glob("*.tar.xz")}
    assert {row.run for row in load(archives.board)} <= {f"real/{name}" for name in in_archives}


@pytest.mark.slow
def test_memories_and_lengths_from_their_cells_to_the_page(
    tool: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells of drafting on the embedded pair: a warm memory and chosen lengths read the archives of other cells."""
    pair: dict[str, Any] = {"target": TARGET, "drafter": DRAFTER}
    en, de = (Data("mgsm", "mgsm", 2, 24, (subset,)) for subset in ("en", "de"))
    calibration = [
        Cell(name, DRAFTING, data, ("sd-recorded", "sd-1", "sd-3", "sd-6"), 1, **pair)
        for name, data in zip(CALIBRATION, (en, de), strict=True)
    ]
    cold = Cell("drafting-humaneval-cold", DRAFTING, en, ("pld", "suffix"), 1, TARGET, None)
    warm = replace(cold, name="drafting-humaneval-warm", methods=("suffix",), after=(cold.name,),
                   settings=(f"drafter.memory=cells/{cold.name}",))  # fmt: skip
    orders = replace(cold, name="drafting-humaneval-orders", methods=("suffix",), repeats=2,
                     settings=("drafter.memory=run",))  # fmt: skip
    own = Cell("drafting-humaneval-self", DRAFTING, en, ("self-quantized", "jacobi", "cascade"), 1, **pair)
    lengths = [
        Cell(f"drafting-{task}-lengths", DRAFTING, data, LENGTHS, 1, after=CALIBRATION, **pair)
        for task, data in (("humaneval", en), ("wmt", de))
    ]
    other = replace(cold, name="main-cell", group="main", methods=("pld",))
    tool.use((other, warm, *lengths, cold, orders, own, *calibration))
    tool.call("--only", warm.name, *(cell.name for cell in lengths))
    assert not tool.commands and "it reads the records of drafting-humaneval-cold: measure that first" in (
        capsys.readouterr().out
    )
    tool.call("--only", cold.name, orders.name, own.name, *(cell.name for cell in calibration))
    for folder in (cold.name, *CALIBRATION):  # as in a fresh checkout
        shutil.rmtree(tool.page.parent / "work" / "cells" / folder)
    tool.call()
    found = measured(tool)
    assert [found.row(name, "suffix").memory for name in (cold.name, warm.name, orders.name)] == [
        "cold", "warm", "shuffled",
    ]  # fmt: skip
    assert not validate(tool.board, True, [], lambda *_: None).problems
    (pld,) = (row for row in load(tool.board) if row.method_name == "pld")
    assert pld.run == f"real/{other.name}"  # which the page of real pairs shows
    text = tool.page.with_name(drafting.PAGE).read_text(encoding="utf-8")
    # 1. The questions, each with its number.
    ratio = found.change(cold.name, "pld", "suffix", "tokens_per_second").value
    assert ratio is not None and f"`suffix` ÷ `pld`, both cold: HumanEval {ratio:.3f}" in text
    assert "HumanEval and WMT22, German to English together: " in text and "the best on other prompts, with " in text
    assert re.search(r"`self-quantized`, int8, against AR: HumanEval \d\.\d\d.* by costs\)", text)
    # 2. The tables.
    memory = next(line for line in text.splitlines() if line.startswith("| HumanEval | suffix | "))
    speedups = [found.row(name, "suffix").value("speedup") for name in (cold.name, warm.name, orders.name)]
    assert all(f"{value:.2f}" in memory for value in speedups) and "(2 orders only)" in memory
    line = next(line for line in text.splitlines() if line.startswith("| length | sd-confidence-chosen: confidence 0."))
    row = found.row(lengths[0].name, "sd-confidence-chosen")
    assert f" {row.value('mean_acceptance_length'):.2f} | {row.value('cost_ratio'):.2f} | " in line
    assert "### HumanEval and WMT22, German to English" in text and "Alone, it is that of sd-" in text
    assert "specbench run --task mgsm --method suffix" in text
    assert f"{DRAFTING}-" not in tool.page.read_text(encoding="utf-8")  # none of its cells
