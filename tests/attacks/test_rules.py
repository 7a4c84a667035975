"""Bundles whose rows are what their records give, and that mislead all the same: each is found by the rule against it.

A forger edits the records and settings of an honest bundle, and makes rows, names and digests anew, so that nothing
contradicts anything.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.publish.bundle.verify import verified
from specbench.publish.rules import RULES, RuledRun, _own_sample, _told_by_templates, check_rules, memorised, own_target
from specbench.results.leaderboard import ROWS
from specbench.results.row import with_digest
from specbench.results.rows import MeasuredRun
from specbench.results.runs import RecordedRun
from specbench.specs.catalogue import versioned_name
from specbench.specs.components import build
from specbench.specs.task import TaskSpec
from tests.attacks.bounds import within_bounds
from tests.attacks.test_bundles import FORGED
from tests.support.bundles import bundled, independent_runs
from tests.support.runs import run_into

Edit = Callable[[Path], None]
LONG = 80  # tokens of a forged answer
NUM_SAMPLE = (_own_sample("mgsm", "en") or ("", 0))[1]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (run,) = independent_runs(tmp_path_factory.mktemp("honest"), 1)
    return run


def edited(folder: Path, name: str, edit: Callable[[Any], object]) -> None:
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))


def each_record(folder: Path, edit: Callable[[int, dict[str, Any]], object]) -> None:
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for number, record in enumerate(records):
        edit(number, record)
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def measured(folder: Path, **settings: object) -> None:
    edited(folder, "measurements.json", lambda content: content["measurements"][0].update(settings))


def task(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    edited(folder, "specs.json", lambda specs: edit(specs["tasks"][0]))


def write(generation: dict[str, Any], ids: list[int], accepted: int = 0, finish: str = "eos") -> None:
    """An answer of these tokens, of which every step accepts as many drafts. Passes take 10 ms."""
    left, steps = len(ids) - 1, []
    while left:
        kept = min(accepted, left - 1)
        steps.append([kept, kept, kept, kept + 1])
        left -= kept + 1
    for name in ("draw_overlap", "draft_confidence", "draft_entropy"):
        generation.pop(name, None)
    generation |= {"token_ids": ids, "steps": steps, "finish": finish, "decode_seconds": 0.01 * len(steps)}
    generation["positions"] = dict.fromkeys(generation["positions"])
    passes = {"target": [[drafted + 1, 0.01] for drafted, *_ in steps], "draft": []}
    generation["passes"] = passes


def differing(folder: Path, number: int) -> None:
    """What a run notes of answers that are not AR's."""
    kinds = {"rule": number, "state": 0, "width": 0, "unknown": 0, "not_repeated": 0}
    tie = {"task": "mgsm", "subset": "en", "method": "sd", "num_different": number, "num_near_ties": 0}
    measured(folder, ties=[{**tie, "tolerance": 0.0, "num_decoded_again": number, "divergence": kinds}])


def without_loops(number: int) -> list[int]:
    return [100 * number + place for place in range(LONG)]


def by_the_clock(folder: Path) -> None:
    """Lets each record end when its answers have taken their time."""
    clock = 1.7e9

    def edit(_: int, record: dict[str, Any]) -> None:
        nonlocal clock
        clock += sum(each["decode_seconds"] + each["ttft_seconds"] for each in record["methods"].values())
        record["measured_at"] = clock

    each_record(folder, edit)


def consistent(folder: Path) -> None:
    """Makes times, names and rows of a run anew."""
    by_the_clock(folder)
    rows_anew(folder)


def rows_anew(folder: Path) -> None:
    """Makes names and rows of a run anew."""
    run = RecordedRun(folder)
    names = {"tasks": run.tasks, "methods": run.method_specs}
    edited(folder, "run.json", lambda identity: identity.update(
        {key: {spec.name: versioned_name(spec) for spec in specs} for key, specs in names.items()}
    ))  # fmt: skip
    run = RecordedRun(folder)
    rows = MeasuredRun(run.identity, run.tasks, run.method_specs, run.measurements[0], run.answers).rows()
    content = {"format": 1, "rows": [with_digest(row.model_dump(mode="json")) for row in rows]}
    (folder / ROWS).write_text(json.dumps(content))


# The forgeries.


def knows_its_answers(folder: Path) -> None:
    measured(folder, memories={"sd": "repeat"})


def trained_on_prompts(folder: Path) -> None:
    prompts: list[str] = []
    each_record(folder, lambda _, record: prompts.append(record["prompt"]))
    measured(folder, trained_on={"sd": prompts[:2]})


def hides_a_memory(folder: Path) -> None:
    each_record(folder, lambda _, record: record["methods"]["sd"].update(left_out_own=False))


def copies_its_answers(folder: Path) -> None:
    measured(folder, memories={"sd": "shuffled"})
    each_record(folder, lambda _, record: record["methods"]["sd"].update(left_out_own=False))
    each_record(folder, lambda _, record: record.update(prompt_ids_digest="f" * 12))


def loops_throughout(folder: Path) -> None:
    task(folder, lambda spec: spec["generation"].update(max_new_tokens=2 * LONG))
    each_record(folder, lambda _, record: [
        write(record["methods"][name], [7] * LONG, accepted) for name, accepted in (("ar", 0), ("sd", 4))
    ])  # fmt: skip


def loops_here_and_there(folder: Path) -> None:
    task(folder, lambda spec: spec["generation"].update(max_new_tokens=2 * LONG))

    def edit(number: int, record: dict[str, Any]) -> None:
        is_loop = number < 2
        for name in ("ar", "sd"):
            ids = [7] * LONG if is_loop else without_loops(number)
            write(record["methods"][name], ids, 4 if is_loop and name == "sd" else 0)

    each_record(folder, edit)


def prompt_with_answer(folder: Path) -> None:
    def edit(spec: dict[str, Any]) -> None:
        column = re.search(r"row\.(\w+)", json.dumps(spec["reference"]))
        spec["prompt"] += f" (It is {{{{ row.{column[1] if column else ''} | upper }}}}.)"

    task(folder, edit)


ANSWER = "the train arrives at platform 97531"  # which nobody answers


def examples_with_answers(folder: Path) -> None:
    def edit(number: int, record: dict[str, Any]) -> None:
        if number == 0:
            record["reference"] = ANSWER
            for each in record["methods"].values():
                each |= {"score": 0.0, "scores": {"accuracy": 0.0}}

    each_record(folder, edit)
    task(folder, lambda spec: spec.update(prompt=f"A: The train arrives at platform 97531!\n{spec['prompt']}"))


def answers_of_another_target(folder: Path) -> None:
    each_record(folder, lambda _, record: record["methods"]["sd"]["token_ids"].__setitem__(2, 11))
    differing(folder, 6)


def chosen_row(folder: Path) -> None:
    """The rows are made anew before this."""
    edited(folder, ROWS, lambda content: content["rows"].pop())


def one_prompt(folder: Path) -> None:
    each_record(folder, lambda _, record: record.update(prompt="0" * 12))


def chosen_examples(folder: Path) -> None:
    numbers = (0, 1, 2, 3, 5, 8)
    each_record(folder, lambda number, record: record.update(id=f"test/{numbers[number]}"))
    edited(folder, "run.json", lambda identity: identity.update(data={"mgsm": "local"}))
    edited(folder, "measurements.json",
           lambda content: content["measurements"][0]["subsets"][0].update(source="local"))  # fmt: skip


def other_limit(folder: Path) -> None:
    each_record(folder, lambda _, record: write(record["methods"]["sd"], [3, 4, 5], 1, "length"))
    differing(folder, 6)


def answers_beyond_the_limit(folder: Path) -> None:
    each_record(folder, lambda number, record: [
        write(record["methods"][name], without_loops(number), accepted) for name, accepted in (("ar", 0), ("sd", 4))
    ])  # fmt: skip


def ends_early(folder: Path) -> None:
    """Nobody scored the answers, since the task has lost its scorer."""
    task(folder, lambda spec: [each.update(scorer=None) for each in (spec, *spec["subsets"].values())])
    each_record(folder, lambda _, record: write(record["methods"]["sd"], [3, 4], 1))
    each_record(folder, lambda _, record: [each.update(score=None, scores={}) for each in record["methods"].values()])
    differing(folder, 6)


def runs_on(folder: Path) -> None:
    each_record(folder, lambda _, record: write(record["methods"]["ar"], [3, 4]))
    each_record(folder, lambda _, record: write(record["methods"]["sd"], [3, 5, 6, 7, 8, 9], 2, "length"))
    differing(folder, 6)


def ends_at_once(folder: Path) -> None:
    each_record(folder, lambda _, record: [write(each, [3]) for each in record["methods"].values()])


def goes_on(folder: Path) -> None:
    edited(folder, "run.json", lambda identity: identity.update(unused_ends={"</s>": 9}))
    each_record(folder, lambda _, record: [write(each, [3, 9, 4, 5]) for each in record["methods"].values()])


def slow_baseline(folder: Path) -> None:
    def edit(_: int, record: dict[str, Any]) -> None:
        record["methods"]["ar"]["decode_seconds"] *= 50

    each_record(folder, edit)


def slower(generation: dict[str, Any], factor: float, every: int) -> None:
    """Passes of the target take longer, each or some of them, and the answer with them."""
    passes = generation["passes"]["target"]
    for place in range(0, len(passes), every):
        number, seconds = passes[place]
        passes[place] = [number, seconds * factor]
        generation["decode_seconds"] += seconds * (factor - 1)


def at_its_bound(folder: Path, factor: float, every: int) -> None:
    """A speed-up of τ, and then passes of AR that take longer."""
    task(folder, lambda spec: spec["generation"].update(max_new_tokens=2 * LONG))

    def edit(number: int, record: dict[str, Any]) -> None:
        for name, accepted in (("ar", 0), ("sd", 4)):
            write(record["methods"][name], without_loops(number), accepted)
        slower(record["methods"]["ar"], factor, every)

    each_record(folder, edit)


def slow_passes_of_baseline(folder: Path) -> None:
    at_its_bound(folder, 3, every=1)


def covers(folder: Path, available: int, chosen: str = "first") -> None:
    coverage = {"available": available, "chosen": chosen}
    edited(folder, "measurements.json",
           lambda content: content["measurements"][0]["subsets"][0].update(coverage=coverage))  # fmt: skip


def a_part_as_the_whole(folder: Path) -> None:
    covers(folder, 6, "all")


def prescribed(folder: Path) -> None:
    edited(folder, "specs.json", lambda specs: specs["methods"][1].update(
        drafter={"type": "synthetic", "acceptance": 0.9}
    ))  # fmt: skip


# By what was done: the edit, the rule that finds it, its weight, and words of the finding.
MISLEADING: dict[str, tuple[Edit, str, str, str]] = {
    "a drafter that copies its own answers": (knows_its_answers, "memorised prompts", "refused", "its own earlier"),
    "a drafter trained on the prompts": (trained_on_prompts, "memorised prompts", "refused", "trained on 2 of the 6"),
    "a memory that the row hides": (hides_a_memory, "memorised prompts", "refused", "6 answers used a memory"),
    "a memory that leaves nothing out": (copies_its_answers, "memorised prompts", "refused", "5 answers to a prompt"),
    "answers in loops": (loops_throughout, "loops", "refused", "of its tokens are in loops"),
    "some answers in loops": (loops_here_and_there, "loops", "marked", "repeat themselves in loops"),
    "the answer in the prompt": (prompt_with_answer, "prompts with answers", "refused", "the whole reference"),
    "an answer among the examples": (examples_with_answers, "prompts with answers", "refused", "1 reference in"),
    "answers of another target": (answers_of_another_target, "another target", "refused", "6 answers differ"),
    "one prompt as several": (one_prompt, "chosen prompts", "refused", "6 examples have 1 different prompt"),
    "chosen examples": (chosen_examples, "chosen prompts", "marked", "4, 6, 7 of the data"),
    "a part told as the whole": (a_part_as_the_whole, "chosen prompts", "refused", "had 6 examples as it says, but"),
    "another limit for the method": (other_limit, "limits of length", "refused", "3 tokens instead of 6"),
    "answers beyond the limit": (answers_beyond_the_limit, "limits of length", "refused", "80 tokens instead of 6"),
    "answers that end early": (ends_early, "lengths of answers", "refused", "nobody scored them"),
    "answers that run on": (runs_on, "lengths of answers", "marked", "run on"),
    "answers that end at once": (ends_at_once, "lengths of answers", "marked", "6 of its 6 answers and 6 of ar's"),
    "answers that go on behind an end": (goes_on, "lengths of answers", "marked", "and 6 of ar's go on behind"),
    "a speed-up that τ does not allow": (slow_baseline, "impossible speed", "refused", "is not possible with"),
    "a baseline slowed throughout": (slow_passes_of_baseline, "impossible speed", "refused", "is not possible with"),
    "a prescribed acceptance rate": (prescribed, "no drafter", "marked", "α is prescribed (0.9)"),
}  # fmt: skip
OF_FILES = {  # which have tests of their own
    "a row left out": "chosen prompts", "one data set of two sizes": "chosen prompts",
    "two targets of one name": "another target", "a target that the board knows otherwise": "another target",
}  # fmt: skip


def forged(honest: Path, to: Path, edit: Edit) -> Path:
    shutil.copytree(honest, to)
    edit(to)
    consistent(to)
    return to


@pytest.mark.parametrize("name", MISLEADING)
def test_a_misleading_bundle_is_found(specbench: Callable[..., Any], honest: Path, tmp_path: Path, name: str) -> None:
    """Its rows are recomputed and equal: only the rule finds it."""
    edit, rule, weight, words = MISLEADING[name]
    bundle = bundled([forged(honest, tmp_path / "run", edit)], tmp_path / "forged.tar.gz")
    with within_bounds(), verified([bundle]) as [found]:
        assert not found.problems and all(each.wrong is None for each in found.rows), "nothing contradicts anything"
        hits = [each for each in found.findings if (each.rule, each.weight) == (rule, weight) and words in each.text]
        assert hits, [str(each) for each in found.findings]
        refused = [each for each in found.findings if each.weight == "refused"]
    code, out, err = specbench("bundle", "verify", "forged.tar.gz")
    assert code == (2 if refused else 0) and "Traceback" not in err and rule in out
    assert (f"refused by the rule '{rule}'" in err) == (weight == "refused")


def test_an_honest_bundle_is_marked_and_not_refused(
    specbench: Callable[..., Any], honest: Path, tmp_path: Path
) -> None:
    bundle = bundled([honest], tmp_path / "honest.tar.gz")
    with verified([bundle]) as [found]:
        weights = {each.weight for each in found.findings}
        texts = " ".join(each.text for each in found.findings)
    assert weights == {"marked"}, [str(each) for each in found.findings]
    assert f"the first 6 of {NUM_SAMPLE} examples of the bundled sample (--limit 6), which is not mgsm itself" in texts
    assert "without" in texts and "answers have up to 6 new tokens, those of the task" in texts
    assert specbench("bundle", "verify", "honest.tar.gz")[0] == 0
    shown = json.loads(specbench("bundle", "verify", "honest.tar.gz", "--json")[1])
    assert shown["rules"] == {rule.name: rule.words for rule in RULES}
    assert {each["weight"] for each in shown["bundles"][0]["findings"]} == {"marked"}


def test_what_texts_would_show_is_told(honest: Path, tmp_path: Path) -> None:
    """A forged reference is found with texts; without them, nobody says that there is none."""
    run = forged(honest, tmp_path / "run", examples_with_answers)
    bundle = bundled([run], tmp_path / "private.tar.gz", with_texts=False)
    with verified([bundle]) as [found]:
        told = [(each.rule, each.weight) for each in found.findings]
    assert told.count(("loops", "unknown")) == 1
    assert ("prompts with answers", "unknown") in told and ("prompts with answers", "refused") not in told


def test_rows_stand_although_what_their_answers_say_is_left_out(honest: Path, tmp_path: Path) -> None:
    """Of digests, nobody can tell whether an answer went on behind an end."""
    run = forged(honest, tmp_path / "run", goes_on)
    assert all("past_end" in {each.code for each in row.warnings} for row in RecordedRun(run).rows)
    with verified([bundled([run], tmp_path / "private.tar.gz", with_texts=False)]) as [found]:
        assert found.rows and all(each.wrong is None for each in found.rows)


def test_one_language_that_a_model_does_not_know_is_marked(tmp_path: Path) -> None:
    """Loops in one subset of several are not a reason to refuse a run; they are if all subsets have them."""
    run_into(tmp_path / "run", "sd", subsets=("en", "sw"), limit=2)
    loops_throughout(tmp_path / "run")
    consistent(tmp_path / "run")
    run = RecordedRun(tmp_path / "run")
    found = {
        each.place.split()[1]: each.weight for each in check_rules([("x", run, run.rows, True)]) if each.rule == "loops"
    }
    assert found == {"en": "marked", "sw": "marked", "all": "refused"}


def test_a_row_left_out_is_found(honest: Path, tmp_path: Path) -> None:
    """The records of a run have the row that its board lacks."""
    run = forged(honest, tmp_path / "run", lambda folder: None)
    chosen_row(run)
    with verified([bundled([run], tmp_path / "forged.tar.gz")]) as [found]:
        (hit,) = [each for each in found.findings if each.weight == "refused"]
    assert hit.rule == "chosen prompts" and "sd of mgsm in en" in hit.text


def test_the_checklist_tells_the_coverage(specbench: Callable[..., Any], honest: Path, tmp_path: Path) -> None:
    """A part, the whole, and a run of an earlier version, which does not tell it."""
    runs = {"no": honest, "yes": tmp_path / "whole", "–": tmp_path / "earlier"}
    forged(honest, runs["yes"], a_part_as_the_whole)
    forged(honest, runs["–"], lambda folder: edited(
        folder, "measurements.json", lambda content: content["measurements"][0]["subsets"][0].pop("coverage")
    ))  # fmt: skip
    words = {"no": f"the first 6 of {NUM_SAMPLE} examples", "yes": "all 6 examples", "–": "mgsm en: 6 examples"}
    for answer, run in runs.items():
        bundled([run], tmp_path / "one.tar.gz")
        out = " ".join(specbench("bundle", "verify", "one.tar.gz")[1].split())
        assert f"functional: coverage {answer} mgsm en: {words[answer].removeprefix('mgsm en: ')}" in out
    with verified([tmp_path / "one.tar.gz"]) as [found]:
        (told,) = [each.text for each in found.findings if "--limit" in each.text]
        assert found.rows[0].wrong is None and found.rows[0].row.coverage is None
    assert told.startswith("the first 6 examples of the bundled sample (--limit 6), total unknown")


def test_one_data_set_has_one_size(honest: Path, tmp_path: Path) -> None:
    """The number of examples of the same bytes, in two runs of a bundle."""

    def of_file(available: int) -> Edit:
        def edit(folder: Path) -> None:
            covers(folder, available)
            edited(folder, "run.json", lambda identity: identity.update(data={"mgsm": "local"}))
            edited(folder, "measurements.json",
                   lambda content: content["measurements"][0]["subsets"][0].update(source="local"))  # fmt: skip

        return edit

    runs = [forged(honest, tmp_path / f"of{size}", of_file(size)) for size in (250, 250, 30)[1:]]
    with verified([bundled(runs, tmp_path / "sizes.tar.gz")]) as [found]:
        (hit,) = [each for each in found.findings if each.weight == "refused"]
    assert (
        hit.rule == "chosen prompts" and "had 30 examples as it says, but by of250 the same data have 250" in hit.text
    )


def test_a_baseline_that_load_disturbed_is_marked(specbench: Callable[..., Any], honest: Path, tmp_path: Path) -> None:
    """An honest run of a busy machine: some passes of AR took long, and the others show it. It is the reader's to know,
    as the excess is in AR's own passes; a baseline all of whose passes are slow has no such excuse."""
    disturbed = forged(honest, tmp_path / "run", lambda folder: at_its_bound(folder, 20, every=3))
    bundled([disturbed], tmp_path / "busy.tar.gz")
    with verified([tmp_path / "busy.tar.gz"]) as [found]:
        (row,) = [each.row for each in found.rows if not each.row.is_baseline]
        hits = [each for each in found.findings if each.rule == "impossible speed"]
    assert (row.value("speedup") or 0) > 1.1 * (row.value("mean_acceptance_length") or 0), "the excess is real"
    assert {each.weight for each in hits} == {"marked"} and "the run's own passes explain it: v = 0." in hits[0].text
    assert specbench("bundle", "verify", "busy.tar.gz")[0] == 0


@pytest.mark.parametrize(
    ("changes", "identity", "weights"),
    [
        ({"options": {"drafter": {"memory": "run"}}}, {}, ["marked"]),
        ({"options": {"decoder": {"options": {"memory": "run"}}}}, {}, ["marked"]),
        ({"options": {"decoder": {"options": {}}}}, {"servers": {"sd": {"learns_across_requests": True}}}, ["marked"]),
        ({"options": {"decoder": {"options": {}}}}, {"servers": {"sd": {}}}, ["refused"]),
        ({"options": {"drafter": {"memory": "prompt"}}}, {}, ["refused"]),
        ({}, {}, ["refused"]),
    ],
)
def test_own_answers_in_a_declared_memory_are_not_ranked_and_others_refused(
    honest: Path, changes: dict[str, Any], identity: dict[str, Any], weights: list[str]
) -> None:
    run = RecordedRun(honest)
    row = next(row for row in run.rows if not row.is_baseline)
    ruled = RuledRun("mine", run, run.rows, True, {}).with_answers(row)
    ruled = replace(ruled, row=row.model_copy(update={"memory": "repeat", **changes}), identity=identity)
    found = list(memorised(ruled))
    assert [each.weight for each in found] == weights
    assert ("is not ranked" in found[0].text) == (weights == ["marked"]) and "(repeat)" in found[0].text


PROMPTS: list[tuple[str, Any, list[str]]] = [
    ("{{ row.question }}", "{{ row.answer }}", []),
    ("{{ row.question }} {{ row.answer.split('####')[0] }}", "{{ row.answer.split('####')[-1].strip() }}", ["refused"]),
    ("{{ row.text.split()[:-1] | join(' ') }}", "{{ row.text.split()[-1] }}", ["marked"]),  # the next word
    ("{{ row.choices[0] }}", "{{ row.choices[row.number] }}", ["marked"]),
    ("{{ row.prompt }}", {"prefix": "{{ row.prompt }}", "test": "{{ row.test }}"}, ["marked"]),
    ("{{ row.prompt }} {{ row.test }}", {"prefix": "{{ row.prompt }}", "test": "{{ row.test }}"}, ["refused"]),
]


@pytest.mark.parametrize(("prompt", "reference", "weights"), PROMPTS)
def test_templates_tell_whether_the_prompt_has_the_reference(prompt: str, reference: Any, weights: list[str]) -> None:
    spec = build(TaskSpec, {"name": "mine", "version": 1, "title": "Mine", "prompt": prompt, "reference": reference,
                            "generation": {"max_new_tokens": 5}})  # fmt: skip
    assert [weight for weight, _ in _told_by_templates(spec)] == weights


def test_servers_and_own_code_may_have_another_target(honest: Path) -> None:
    run = RecordedRun(honest)
    row = next(row for row in run.rows if not row.is_baseline)
    whole = RuledRun("mine", run, run.rows, True, {}).with_answers(row)
    same, other = {"model": "Qwen3-8B", "slots": 1}, {"model": "Qwen3-8B-pruned", "slots": 1}
    for model, weights in ((same, []), (other, ["refused"])):
        served = replace(whole, identity={"servers": {"ar": same, "sd": {**model, "learns_across_requests": True}}})
        assert [each.weight for each in own_target(served)] == weights
    own_code = replace(whole, row=row.model_copy(update={"options": {"decoder": {"entry": "mine.py:decode"}}}))
    assert [each.weight for each in own_target(own_code)] == ["marked"]


def test_a_memory_of_other_prompts_is_marked(honest: Path) -> None:
    run = RecordedRun(honest)
    rows = [row.model_copy(update={"memory": "warm"}) for row in run.rows]
    found = [each for each in check_rules([("mine", run, rows, True)]) if each.rule == "memorised prompts"]
    assert [each.weight for each in found] == ["marked"] and "(warm)" in found[0].text


def test_two_targets_of_one_name_are_found(honest: Path, tmp_path: Path) -> None:
    """Between the runs of a bundle, and between a run and what a board knows."""

    def edit(folder: Path) -> None:
        edited(folder, "run.json", lambda identity: identity["target"].update(revision="f" * 12))

    other = forged(honest, tmp_path / "other", edit)
    with verified([bundled([honest, other], tmp_path / "forged.tar.gz")]) as [found]:
        (hit,) = [each for each in found.findings if each.weight == "refused"]
    assert hit.rule == "another target" and hit.place == "other" and "ffffffffffff" in hit.text
    run = RecordedRun(honest)
    known = run.identity["target"]
    for revision, weights in ((known["revision"], []), ("another", ["refused"])):
        findings = check_rules([("mine", run, run.rows, True)], {known["name"]: revision})
        assert [each.weight for each in findings if each.rule == "another target"] == weights


def test_a_target_that_the_board_knows_otherwise_is_found(
    specbench: Callable[..., Any], honest: Path, tmp_path: Path
) -> None:
    """`--targets` names what is known: rows of a board, or a list of revisions."""
    run = RecordedRun(honest)
    name, revision = run.identity["target"]["name"], run.identity["target"]["revision"]
    bundled([honest], tmp_path / "mine.tar.gz")
    shutil.copy(honest / ROWS, tmp_path / "board.json")
    (tmp_path / "same.txt").write_text(f"# by the maintainers\n\n{revision}  {name}  # our own\n0123 org/other\n")
    (tmp_path / "other.txt").write_text(f"0123456789ab {name}\n")
    verify = ("bundle", "verify", "mine.tar.gz", "--targets")
    for known in ("board.json", "same.txt"):
        assert specbench(*verify, known)[0] == 0
    code, _, err = specbench(*verify, "other.txt")
    assert code == 2 and "refused by the rule 'another target'" in err and "known with 0123456789ab" in err


TARGETS = {
    "a name alone": ("org/model\n", "line 1: 'org/model' has no name: write REVISION NAME"),
    "two revisions of a name": ("01 org/model\n02 org/model\n", "line 2: target org/model has the revision 02, but"),
    "nothing": ("# none yet\n", "names no target with its revision: give a leaderboard file"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_list_of_targets_that_says_nothing_is_refused(
    specbench: Callable[..., Any], honest: Path, tmp_path: Path, name: str
) -> None:
    content, word = TARGETS[name]
    (tmp_path / "known.txt").write_text(content)
    code, out, err = specbench("bundle", "verify", "mine.tar.gz", "--targets", "known.txt")
    assert code == 2 and word in err and not out and err.count("\n") == 1


def test_every_rule_has_a_forgery() -> None:
    assert {rule for _, rule, _, _ in MISLEADING.values()} | set(OF_FILES.values()) == {rule.name for rule in RULES}


def test_the_page_lists_every_forgery_with_what_finds_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guide" / "bundles.md").read_text(encoding="utf-8")
    lines = page.partition("## Forged bundles")[2].partition("\n## ")[0].splitlines()
    table = dict(
        tuple(cell.strip() for cell in line.strip("|").split("|"))[:2] for line in lines if line.startswith("| ")
    )
    table = {name: by for name, by in table.items() if name != "forgery"}
    of_rules = {name: f"*{rule}*: {weight}" for name, (_, rule, weight, _) in MISLEADING.items()}
    of_rules |= {name: f"*{rule}*: refused" for name, rule in OF_FILES.items()}
    assert set(table) == {*FORGED, *of_rules} and len(table) >= 20
    assert {name: table[name] for name in of_rules} == of_rules
    assert {rule.name for rule in RULES} <= {cell.strip("* ") for cell in re.findall(r"^\| (\*[^|]+\*) \|", page, re.M)}
