"""Warnings of a row: when there are any, what they say to do, and that every table with a speed-up shows them."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from specbench.cli import make_app
from specbench.gate.check import check
from specbench.records.folder import unused_ends_of
from specbench.records.generation import Generation
from specbench.report.breakdown import breakdown_table
from specbench.report.captions import MARK, marked_warnings
from specbench.report.ranking import ranking_tables
from specbench.report.tables import comparison_table, overview_table, run_table
from specbench.results.answers import Answer, record_fields
from specbench.results.leaderboard import load, write
from specbench.results.leaderboard_files import compare_with_run, validate
from specbench.results.row import Row, RowWarmUp, RowWarning
from specbench.results.runs import RecordedRun, RecordedRuns
from specbench.results.warnings import WIDE, fact_of, warm_up_of, warnings_of
from specbench.statistics.bootstrap import Estimate
from tests.support.records import autoregressive, generation, record
from tests.support.rows import row

SOUND = Estimate(value=1.5, low=1.45, high=1.55)
Call = Callable[..., Any]


def measured(n: int = 100, **metrics: Estimate) -> Row:
    made: Row = row(n=n, metrics={"speedup": SOUND, **metrics})
    return made


def answer(of: Generation | None = None, **fields: Any) -> Answer:
    return Answer.of(generation() if of is None else of, of_record=record_fields(record({}, **fields)))


def codes(of: Row) -> list[str]:
    return [each.code for each in warnings_of(of, [], [])]


def text_of(of: Row, *processes: str) -> str:
    (found,) = warnings_of(of, [answer(process=name) for name in processes], [])
    assert "\n" not in found.text and not found.text.endswith(".")
    return found.text


def test_a_sound_row_has_none() -> None:
    assert codes(measured(ar_drift=Estimate(value=1.0, low=0.97, high=1.03))) == []
    slow = Estimate(value=0.5, low=0.4, high=0.6)
    assert codes(measured(speedup=Estimate(value=1.0), ar_drift=slow)) == [], "the baseline beside itself"


def test_loops_that_change_the_speed_up_or_the_acceptance_length_say_so() -> None:
    def of(**values: float) -> Row:
        return measured(share_looping=Estimate(value=0.25), **{name: Estimate(value=v) for name, v in values.items()})

    small = {"speedup_without_loops": 1.45, "mean_acceptance_length": 2.0, "mean_acceptance_length_without_loops": 2.05}
    assert codes(of(**small)) == []
    text = text_of(of(**small | {"speedup_without_loops": 1.2}))
    assert "25%" in text and "speed-up of 1.20 instead of 1.50" in text and "τ" not in text
    assert "τ of 1.50 instead of 2.00" in text_of(of(**small | {"mean_acceptance_length_without_loops": 1.5}))
    assert marked_warnings(of().model_copy(update={"warnings": warnings_of(of(speedup_without_loops=1.2), [], [])}))


def test_loops_at_every_prompt_are_told_although_nothing_is_without() -> None:
    shares = {f"share_looping{side}": Estimate(value=1.0) for side in ("", "_ar")}
    nothing = {f"{name}_without_loops": Estimate() for name in ("speedup", "mean_acceptance_length")}
    text = text_of(measured(**shares, **nothing))
    assert (
        text.startswith("100% of its answers and 100% of ar's") and "at every prompt one of the methods loops" in text
    )


def test_loops_of_another_method_alone_are_told_as_its_own() -> None:
    """A row without a loop changes without the prompts at which another method of the run has one. Rows of earlier
    versions keep their words for it, and no other ones."""
    none = {f"share_looping{side}": Estimate(value=0.0) for side in ("", "_ar")}
    now = measured(speedup_without_loops=Estimate(value=1.2), **none)
    text = text_of(now)
    assert text.startswith("none of its answers and none of ar's repeat themselves in loops, but those of another")
    now = now.model_copy(update={"warnings": (RowWarning(code="loops", text=text),)})
    run = cast(RecordedRun, SimpleNamespace(recompute_row=lambda _: now))

    def with_text(words: str) -> Row:
        told = f"{words}; the prompts{text.partition('; the prompts')[2]}"
        return now.model_copy(update={"warnings": (RowWarning(code="loops", text=told),)})

    kept = with_text("0% of its answers and 0% of ar's repeat themselves in loops")
    for each, differ in ((now, []), (kept, []), (with_text("1% of its answers repeat themselves"), ["warnings"])):
        assert [found.field for found in compare_with_run(each, run, Path("board.json"))[0]] == differ


def test_answers_that_mostly_end_with_their_first_token_are_told() -> None:
    def answers(*nums: int, finish: str = "stop") -> list[Answer]:
        return [answer(autoregressive(num, finish=finish)) for num in nums]

    def found(own: list[Answer], baseline: list[Answer], method: str = "sd") -> list[str]:
        made = measured().model_copy(update={"method": f"{method}@1:0"})
        return [each.text for each in warnings_of(made, own, baseline) if each.code == "ends_at_once"]

    long, short = answers(9, 9, 9, 1), answers(1, 1, 9, 1)
    (text,) = found(short, long)
    assert text.startswith("3 of its 4 answers and 1 of ar's end with their first token, a stop string or an end token")
    assert found(long, short) and not found(long, long) and not found([], [])
    (text,) = found(short, short, "ar")
    assert text.startswith("3 of its 4 answers end with")
    assert not found(answers(1, 1, finish="length"), long), "a choice of one token was asked for"


def test_a_wide_interval_says_how_many_prompts_it_takes() -> None:
    """Twice as wide on the scale of logs takes four times as many."""
    twice = Estimate(value=1.25, low=1.0, high=WIDE**2)
    text = text_of(measured(speedup=twice))
    assert "1.00 to 1.56 (× 1.56)" in text and "for × 1.25 measure about 400 prompts instead of 100" in text
    assert "about 200 prompts instead of 50" in text_of(measured(speedup=twice, num_prompts_timed=Estimate(value=50)))
    assert codes(measured(speedup=Estimate(value=1.1, low=1.0, high=WIDE))) == []


def warmed(of: RowWarmUp | None) -> list[Answer]:
    return [] if of is None else [answer(generation(warm_up=of.model_dump()))]


UNSTEADY, STEADY, SHORT = (RowWarmUp(blocks=n, seconds=n / 2, steady=s) for n, s in ((16, False), (9, True), (1, None)))


@pytest.mark.parametrize(
    ("method", "own", "baseline", "text"),
    [
        ("sd", UNSTEADY, STEADY, "the speed was not steady after the warm-up (16 blocks, 8 s): measure again"),
        ("sd", STEADY, UNSTEADY, "the speed of ar was not steady after the warm-up (16 blocks, 8 s): measure again"),
        ("ar", UNSTEADY, UNSTEADY, "the speed was not steady after the warm-up (16 blocks, 8 s): measure again"),
        ("sd", STEADY, STEADY, None),
        ("sd", SHORT, SHORT, None),
        ("ar", SHORT, SHORT, None),
        ("sd", None, None, None),
    ],
)
def test_a_speed_that_was_not_steady(
    method: str, own: RowWarmUp | None, baseline: RowWarmUp | None, text: str | None
) -> None:
    """The method's own or its baseline's; the baseline's row has it, too. Too few blocks to tell are not a warning."""
    made = measured().model_copy(update={"method": f"{method}@1:0", "warm_up": own})
    found = [each.text for each in warnings_of(made, [], warmed(baseline)) if each.code == "not_steady"]
    assert [line.partition(", into")[0] for line in found] == ([] if text is None else [text])


def test_the_warm_up_of_a_row_is_that_of_the_method_in_the_process_with_the_fewest_blocks() -> None:
    """Two subsets in the first process, of which one was resumed in a second."""

    def warmed(subset: str, process: str, blocks: int, steady: bool | None = True) -> Answer:
        warm_up = {"blocks": blocks, "seconds": 2.0 * blocks, "steady": steady}
        return answer(generation(warm_up=warm_up), subset=subset, process=process)

    own = [warmed("en", "a", 9), warmed("en", "a", 9), warmed("de", "a", 1), warmed("de", "b", 8, None)]
    assert warm_up_of(own) == RowWarmUp(blocks=8, seconds=16.0, steady=None)
    assert warm_up_of(own[:3]) == RowWarmUp(blocks=10, seconds=20.0, steady=True)
    assert warm_up_of([*own, warmed("en", "b", 9, False)]) == RowWarmUp(blocks=10, seconds=20.0, steady=False)
    assert warm_up_of([*own, answer()]) is None


def test_a_speed_up_that_the_tokens_per_pass_do_not_allow() -> None:
    """One prompt on a real model: α 0, and 13.58 times AR, whose first passes took seconds."""
    tau = {"mean_acceptance_length": Estimate(value=1.0)}
    (text,) = [each.text for each in warnings_of(measured(1, speedup=Estimate(value=13.58), **tau), [], [])
               if each.code == "implausible"]  # fmt: skip
    assert text.startswith("a speed-up of 13.58 or more is not possible with 1.00 tokens per target pass")
    for allowed in (
        measured(speedup=Estimate(value=1.3, low=1.09, high=1.35), **tau),
        measured(speedup=Estimate(value=2.0, low=1.95, high=2.1)),
        measured(speedup=Estimate(value=9.0, low=8.9, high=9.1), **tau).model_copy(update={"options": {"decoder": {}}}),
    ):
        assert "implausible" not in codes(allowed)


def test_few_prompts_are_those_of_the_captions() -> None:
    assert codes(measured(29)) == ["few_prompts"] and codes(measured(30)) == []
    assert text_of(measured(29)).startswith(
        "the speed-up's interval rests on 29 prompts and may be too narrow: measure"
    )
    for num, prompts in ((1, "1 prompt"), (4, "4 prompts")):
        without = measured(num, speedup=Estimate(value=1.5))
        assert text_of(without) == f"the speed-up rests on {prompts} and has no interval: measure 30 or more"
        assert codes(without.model_copy(update={"method": "ar@1:0"})) == [], "beside itself it is exact"
    assert codes(measured(4, speedup=Estimate())) == [], "there is nothing to doubt"


def with_passes(
    verifying: float, draft: Sequence[float] = (), n: int = 8
) -> tuple[Row, list[Answer], list[Answer], dict[str, str]]:
    """A row of n prompts, its answers and AR's, and its warnings by code: passes of AR take 1 s over one token, those
    of the method `verifying` seconds over four, a little different in each prompt."""
    own, plain = [], []
    for place in range(n):
        noise = 1 + 0.01 * (place % 3 - 1)
        of_method = generation([[3, 3, 3, 4]] * 5, target=[(4, verifying * noise)] * 5, draft=[(1, s) for s in draft])
        of_ar = generation([[0, 0, 0, 1]] * 20, target=[(1, 1.0)] * 20)
        own.append(Answer.of(of_method, of_record=record_fields(record({}, example=place))))
        plain.append(Answer.of(of_ar, of_record=record_fields(record({}, example=place)), is_baseline=True))
    cost = {"cost_ratio": Estimate(value=float(np.median(draft)))} if draft else {}
    made = measured(**cost)
    found = {each.code: each.text for each in warnings_of(made, own, plain)}
    return made, own, plain, found


@pytest.mark.parametrize(("memory", "repeats", "is_told"), [
    ("shuffled", 1, True), ("shuffled", 4, True), ("shuffled", 5, False), ("cold", 1, False), ("warm", 1, False),
    (None, 1, False),
])  # fmt: skip
def test_a_shuffled_row_of_few_orders_is_told(memory: str | None, repeats: int, is_told: bool) -> None:
    found = measured().model_copy(update={"memory": memory, "repeats": repeats})
    assert codes(found) == ["few_orders"] * is_told
    if is_told:
        orders = "1 order" if repeats == 1 else "4 orders"
        assert f"only {orders} of the prompts" in text_of(found) and "--repeats 5" in text_of(found)


def test_a_wider_pass_that_is_cheaper_than_one_token_is_told() -> None:
    made, own, plain, found = with_passes(0.9)
    assert found["cheap_passes"].startswith("v = 0.90 [0.89, 0.91]: a verifying pass took less time than AR's pass")
    assert "cheap_passes" not in with_passes(1.2)[3] and "cheap_passes" not in with_passes(0.999)[3]
    assert "cheap_passes" not in with_passes(0.96, n=3)[3], "without an interval it may be 1"
    assert "cheap_passes" in with_passes(0.9, n=3)[3]
    for changes in ({"method": "ar@1:0"}, {"options": {"decoder": {}}}):
        assert warnings_of(made.model_copy(update=changes), own, plain) == ()


def test_a_draft_cost_that_is_not_what_drafts_cost_is_told() -> None:
    even, one_slow, cheap = [0.1] * 10, [0.1] * 9 + [2.0], [0.001] * 9 + [0.02]
    assert with_passes(1.1, even)[3] == {} and with_passes(1.1, cheap)[3] == {}
    text = with_passes(1.1, one_slow)[3]["uneven_drafts"]
    assert text.startswith("c = 0.100 is a ratio of medians, but a draft pass took 0.290 target passes on average")


def test_c_and_v_are_marked_where_they_stand() -> None:
    texts = {"cheap_passes": "v is low", "uneven_drafts": "c is uneven"}
    found = {"cost_ratio": Estimate(value=0.1), "verify_seconds": Estimate(value=9.0)}
    plain = row(method="ar@1:0", metrics={"verify_seconds": Estimate(value=10.0)}, accepted_tokens_per_step=(10,))
    for code, text in texts.items():
        warned = measured(**found).model_copy(
            update={"warnings": (RowWarning(code=code, text=text),), "accepted_tokens_per_step": (0, 10)}
        )
        table = breakdown_table([plain, warned])
        cells = dict(zip([each.heading for each in table.columns], table.rows[1], strict=True))
        marks = {name: "†" in cells[name] for name in ("draft\ncost c", "verify\ncost v")}
        assert marks == {"draft\ncost c": code == "uneven_drafts", "verify\ncost v": code == "cheap_passes"}
        assert any("† at c or v" in line for line in table.caption)
    assert not any("†" in line for line in breakdown_table([plain, measured(**found)]).caption)


@pytest.mark.parametrize("kind", ["eagle", "eagle_tree", "block", "medusa", "mtp"])
def test_a_head_that_is_rarely_accepted_may_be_misread(kind: str) -> None:
    """Only drafters with a head, only steps with a draft, and only where there are enough of them."""
    head = measured().model_copy(update={"method": "head@1:0", "options": {"drafter": {"type": kind}}})

    def own(num_accepted: int, num_steps: int = 100) -> list[Answer]:
        steps = [[3, 1, int(number < num_accepted), 1] for number in range(num_steps)]
        return [answer(generation([*steps, *[[0, 0, 0, 1]] * 30]))]

    def found(row: Row, *given: int) -> list[str]:
        return [each.text for each in warnings_of(row, own(*given), []) if each.code == "misread_head"]

    (text,) = found(head, 29)
    assert text.startswith(
        "the first draft token of its head is accepted in only 29% of 100 steps, and heads usually reach 30%"
    )
    assert ("check drafter.path" in text) == (kind != "mtp") and "\n" not in text
    in_a_file = head.model_copy(update={"options": {"drafter": {"type": kind, "path": "my-head"}}})
    assert "check drafter.path" in found(in_a_file, 29)[0]
    assert found(head, 30) == [] and found(head, 0, 49) == [] and found(head, 0, 0) == []
    assert found(head.model_copy(update={"options": {"drafter": {"type": "ngram"}}}), 0) == []


def test_of_the_trees_of_a_head_only_first_children_count() -> None:
    """One of ten children is accepted in every step; ranks are added over the answers."""
    head = measured().model_copy(update={"method": "head@1:0", "options": {"drafter": {"type": "eagle_tree"}}})

    def found(*firsts: list[int]) -> list[str]:
        generations = [
            generation([[1, 1, 1, 2]] * num, tree_nodes=[10] * num, tree_ranks=[[num, first], [num, num - first]])
            for num, first in firsts
        ]
        empty = generation([[0, 0, 0, 1]], tree_nodes=[0], tree_ranks=[])
        own = list(map(answer, [*generations, empty]))
        return [each.text for each in warnings_of(head, own, []) if each.code == "misread_head"]

    (text,) = found([60, 2], [40, 27])
    assert text.startswith(
        "the first child of a node of its head is accepted in only 29% of 100 verified nodes, and heads"
    )
    assert found([60, 3], [40, 27]) == [] and found([49, 0]) == [] and found() == []


def test_a_drift_names_the_ratio_and_a_resumed_run() -> None:
    drifting = measured(ar_drift=Estimate(value=0.8, low=0.75, high=0.85))
    assert text_of(drifting, "a", "a").startswith(
        "in the last third of the run the baseline ran at 0.80 [0.75, 0.85] times"
    )
    resumed = ", 2 processes one after the other,"
    assert resumed in text_of(drifting, "a", "b") and resumed not in text_of(drifting, "a", "a")
    assert codes(measured(ar_drift=Estimate(value=1.2, low=1.1, high=1.3))) == ["ar_drift"]
    assert codes(measured(ar_drift=Estimate(value=0.8, low=0.6, high=1.0))) == []


def sessions(*speeds: tuple[str, str, float]) -> list[Answer]:
    """Answers of AR of 11 tokens each: process, subset and tokens per second."""
    return [
        answer(autoregressive(11, decode_seconds=10 / speed), process=process, subset=subset, example=number)
        for number, (process, subset, speed) in enumerate(speeds)
    ]  # fmt: skip


def test_a_resumed_run_whose_baseline_changed_its_speed_says_so_also_of_few_prompts() -> None:
    def found(*speeds: tuple[str, str, float], of: Row | None = None) -> list[str]:
        row = measured(n=6) if of is None else of
        return [each.text for each in warnings_of(row, [], sessions(*speeds)) if each.code == "uneven_sessions"]

    (text,) = found(("a", "en", 90), ("a", "en", 89), ("b", "en", 100), ("b", "en", 104), ("c", "en", 128))
    assert text.startswith(
        "of the 3 processes that measured it one after the other, the baseline ran in one at 1.43 ti"
    )
    steady = ("a", "en", 90), ("a", "en", 60), ("a", "en", 91), ("b", "en", 100), ("b", "en", 104)
    assert found(*steady) == [], "one slow answer, and a fifth"
    assert found(("a", "en", 90), ("a", "en", 130)) == [], "one process, of whose drift another warning tells"
    assert found(("a", "short", 90), ("b", "long", 30)) == [], "long prompts are slower"
    assert found(("a", "short", 90), ("a", "long", 30), ("b", "short", 60), ("b", "long", 20)) != []
    drifting = measured(ar_drift=Estimate(value=1.5, low=1.3, high=1.7))
    assert found(("a", "en", 60), ("b", "en", 90), of=drifting) == [], "told already"


def test_threads_that_waited_for_a_cpu_say_so() -> None:
    def found(own: float | None, baseline: float | None, of: Row | None = None) -> list[str]:
        sides = (
            [answer(autoregressive(3, cpu_wait_seconds=each, ttft_seconds=0.5, decode_seconds=1.5))]
            for each in (own, baseline)
        )
        row = measured() if of is None else of
        return [each.text for each in warnings_of(row, *sides) if each.code == "busy"]

    (text,) = found(0.9, 0.1)
    assert text.startswith(
        "its threads waited for a CPU, together 0.45 s in each second (ar's 0.05 s), as more of them"
    )
    assert found(0.1, 0.9) != [] and found(0.19, 0.19) == [] and found(None, None) == []
    (text,) = found(0.9, 0.9, row(method="ar@1:ba9876543210", device="Some CPU, 2 threads"))
    assert "(ar's" not in text and text.endswith("nothing else running, or with fewer --threads")
    (text,) = found(0.9, 0.9, row(device="Some CPU, 1 thread"))
    assert text.endswith("with nothing else running")


END, IMAGE = 90, 91  # special tokens, of which one ends texts by its name


def test_answers_that_go_on_behind_an_end_are_told_with_their_shares() -> None:
    def found(own: Sequence[Sequence[int]], baseline: Sequence[Sequence[int]], method: str = "sd") -> list[str]:
        sides = (
            [Answer.of(generation(token_ids=ids), unused_ends=(END, 95)) for ids in side] for side in (own, baseline)
        )
        made = measured().model_copy(update={"method": f"{method}@1:0"})
        identity = {"unused_ends": {"<|endoftext|>": END, "</s>": 95}}
        found = warnings_of(made, *sides, identity=identity)
        return [each.text for each in found if each.code == "past_end"]

    past, ended = [1, 2, END, 4, END, 6, 7, 8, 9, 10], [1, 2, END]
    (text,) = found([past, past, [1, 2, 3, 4, 5]], [[1, 2, END, 4], [1, 2, 3, 4], [1, 2]])
    assert text.startswith(
        "2 of its 3 answers and 1 of ar's go on behind a token that marks the end of a text and is no end token of "
        "this run (90 <|endoftext|>), with 56.0% of its tokens and 10.0% of ar's behind it, which count in"
    ), "14 of 25 tokens, and 1 of 10"
    assert "add it to the stop strings (--set 'generation.stop=[\"<|endoftext|>\"]', with the task's own)" in text
    (text,) = found([ended], [[1, 95, END, 1]])
    assert text.startswith("0 of its 1 answer and 1 of ar's") and "(95 </s>), with 0.0% of its tokens and 50.0%" in text
    (text,) = found([past], [past], "ar")
    assert text.startswith("1 of its 1 answer go on behind") and "ar's" not in text and "70.0% of its tokens" in text
    assert not found([ended], [ended]), "at the very end"
    assert not found([[1, IMAGE, 3]], [[IMAGE, IMAGE, 3]]), "a special token that ends no text"
    assert not found([], [])


def test_what_no_run_has_written_about_ends_warns_of_nothing() -> None:
    """Runs of earlier versions, and what else may stand in a file."""
    assert Answer.of(generation(token_ids=[1, END, 3])).end_passed is None
    alone = Answer.of(generation(token_ids=[1, END, 3]), "drafter", unused_ends=(END,))
    assert alone.end_passed is None, "these are the tokens of another model"
    for wrong in (None, [], "x", {"a": "b"}, {"a": True}, {"a": -1}, {"a": 2**40}, {"a": 1.5}):
        assert unused_ends_of({"unused_ends": wrong}) == {}
    assert unused_ends_of({"unused_ends": {"</s>": 2}}) == {2: "</s>"} and unused_ends_of({}) == {}


DOUBTS = (
    RowWarning(code="wide_interval", text="too wide: measure more"),
    RowWarning(code="few_prompts", text="too few"),
)


def shown(*found: Table) -> str:
    console = Console(width=200, record=True, quiet=True)
    console.quiet = False
    with console.capture() as captured:
        for table in found:
            console.print(table)
    return captured.get()


TABLES: dict[str, Callable[[Row], list[Table]]] = {
    "run": lambda each: [run_table([each])],
    "methods": lambda each: [comparison_table([each])],
    "tasks": lambda each: [overview_table([[each]])],
    "leaderboard": lambda each: ranking_tables({"1": RecordedRuns().with_records(each, Path("board.json"))}),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_with_a_speed_up_marks_it_and_says_why_below(name: str) -> None:
    sound = measured()
    text = shown(*TABLES[name](sound.model_copy(update={"warnings": DOUBTS})))
    assert "1.50 [1.45, 1.55] †" in text and "too wide: measure more" in text and "too few" not in text
    assert "†" not in shown(*TABLES[name](sound))


# By code: what a warning tells, and what to do, which a paper leaves out.
TOLD = {
    "wide_interval": (
        "the speed-up's interval is wide, 0.50 to 1.50 (× 3.00)",
        ": for × 1.25 measure about 90 prompts instead of 18, or on a quieter machine",
    ),
    "few_prompts": ("the speed-up rests on 3 prompts and has no interval", ": measure 30 or more"),
    "ar_drift": (
        "in the last third of the run the baseline ran at 0.80 [0.75, 0.85] times its speed in the first third, "
        "so load or clock changed",
        ": measure again into another folder, without a break",
    ),
    "not_steady": (
        "the speed was not steady after the warm-up (3 blocks, 9 s)",
        ": measure again, into another folder",
    ),
    "implausible": (
        "a speed-up of 9.00 or more is not possible with 3.10 tokens per target pass, so passes of ar were disturbed",
        ": measure again, with more prompts",
    ),
    "uneven_sessions": (
        "of the 2 processes that measured it one after the other, the baseline ran in one at 1.40 times its speed in "
        "another (medians), so load or clock changed",
        ": measure again into another folder, without a break and with nothing else running",
    ),
    "busy": (
        "its threads waited for a CPU, together 0.67 s in each second (ar's 0.60 s), as more of them and of other "
        "programs were ready than the machine has cores, so speeds are too low",
        ": measure again into another folder with nothing else running, or with fewer --threads",
    ),
    "trained_on_test": (
        "the drafter was trained on 2 of the 4 measured prompts, as its training.json says, so it may know "
        "them better than others",
        ": measure prompts that it was not trained on",
    ),
    "misread_head": (
        "its checkpoint may be of another target, or read wrongly",
        ": check drafter.path (docs/notes/heads.md)",
    ),
    "loops": (
        "90% of its answers repeat themselves in loops; the prompts at which no method does give a speed-up of 1.2 "
        "instead of 2.3",
        ": judge by these, or measure other prompts or fewer new tokens",
    ),
    "ends_at_once": (
        "5 of its 6 answers end with their first token, so only the others tell its speed",
        ": see the prompts with `specbench sample`, and change the template (--chat)",
    ),
    "past_end": (
        "5 of its 6 answers and 6 of ar's go on behind a token that marks the end of a text and is no end token of "
        "this run (90 <|endoftext|>), with 53.1% of its tokens and 2.0% of ar's behind it, which count in speed, "
        "acceptance and scores",
        ": add it to the stop strings (--set 'generation.stop=[\"<|endoftext|>\"]', with the task's own), or to "
        "eos_token_id in generation_config.json of the target's folder",
    ),
    "cheap_passes": (
        "v = 0.80: a verifying pass took less time than AR's pass over one token, and the speed-up is not of "
        "drafts alone",
        ": measure again with nothing else running, or take an --engine",
    ),
    "uneven_drafts": ("c = 0.017 is a ratio of medians: drafts cost what the average says", ""),
    "few_orders": (
        "its drafter was measured in only 1 order of the prompts, and the interval knows nothing of others",
        ": measure with --repeats 5 or more",
    ),
    "baseline_unchecked": ("it is unknown whether the server 'ar' drafts (no counters)", ""),
    "drafts_nothing": ("its server had no drafts in 3 answers", ": see the server's log"),
    "caches_unknown": (
        "the servers do not report how many prompt tokens were cached",
        ": switch their prefix caches off, and make them report it (vLLM: --enable-prompt-tokens-details)",
    ),
    "memory_not_stated": ("the file of the servers does not say how they reserve memory", ": add the key memory"),
    "settings_differ": ("the servers differ in more than speculation: seed 1 ≠ 2, settings.runs 1 ≠ 2", ""),
    "learns": ("its drafter learns across requests, so its speed depends on the order of the prompts", ""),
    "slow_client": (
        "9% of the time of the answers of 'ar' is spent outside the server: the client or the network is the "
        "bottleneck",
        "",
    ),
    "read_late": (
        "client-bound: tokens arrived in bursts, in less than half the time (3 of 'ar' answers)",
        ": measure again with nothing else running",
    ),
    "answers_differ": (
        "3 of 9 answers differ from those of the server 'ar'",
        ": run both with batch-invariant kernels, and run specbench audit --servers",
    ),
    "few_turns": (
        "the servers took turns, but had only 2 turns each, so a drift of the machine may be part of the speed-up",
        ": set turns to 5 or more",
    ),
    "tokenizer_unchecked": (
        "it could not be checked whether the servers serve the model of the tokenizer: they have no "
        "endpoint that tokenizes a text",
        "",
    ),
    "idle_unchecked": (
        "it could not be checked whether the servers were idle: they do not report how many requests run",
        "",
    ),
    "impossible_times": ("a server reports times that cannot be (−1 s): they are left out", "; see the server's log"),
}


def test_a_paper_gets_the_fact_of_a_warning_without_what_to_do() -> None:
    assert TOLD.keys() == set(get_args(RowWarning.model_fields["code"].annotation))
    for fact, remedy in TOLD.values():
        assert fact_of(fact + remedy) == fact
    assert fact_of("the layer of the target may be read wrongly (docs/notes/heads.md)").endswith("read wrongly")


def test_only_tables_for_readerss_leave_out_what_to_do() -> None:
    each = measured().model_copy(update={"warnings": DOUBTS})
    sides = {"1": RecordedRuns().with_records(each, Path("board.json"))}
    for for_readers, note in ((False, "too wide: measure more"), (True, "too wide")):
        (table,) = ranking_tables(sides, for_readers=for_readers)
        assert [line for line in table.caption if MARK in line] == [f"{MARK} fsd: {note}"]


def test_the_same_warning_of_several_rows_is_one_line() -> None:
    rows = [row(subset=name, warnings=DOUBTS[:1], metrics={"speedup": SOUND}) for name in ("en", "de", "sw")]
    text = " ".join(shown(run_table(rows)).split())
    assert "† en: too wide: measure more; also for de, sw" in text


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory, tiny_pair: tuple[str, str]) -> Path:
    """A run of a small pair in whose records the last third has half the speed of the first."""
    folder = tmp_path_factory.mktemp("drifting") / "run"
    run = ["run", "--task", "mgsm", "--method", "sd", "--subset", "en,de", "--limit", "15", "--output", str(folder)]
    run += ["--set", "generation.max_new_tokens=4", "--target", tiny_pair[0], "--drafter", tiny_pair[1]]
    run += ["--data", "sample"]
    assert CliRunner().invoke(make_app(), run).exit_code == 0
    path = folder / "records.jsonl"
    records = read(path)
    assert all(each["measured_at"] > 1.7e9 for each in records), "seconds since 1970"
    for number, each in enumerate(records):
        for own in each["methods"].values():
            slower = 1 + 0.5 * (number >= 10) + 0.5 * (number >= 20)
            seconds = 0.02 * len(own["token_ids"]) * slower * (1 + number % 7 / 100)
            scale = seconds / own["decode_seconds"]
            own["decode_seconds"] = seconds
            for passes in own["passes"].values():
                passes[:] = [[length, spent * scale] for length, spent in passes]
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    assert CliRunner().invoke(make_app(), run).exit_code == 0
    return folder


@pytest.fixture
def drifted(drifting: Path, tmp_path: Path) -> Path:
    """A copy that a test may alter."""
    return Path(shutil.copytree(drifting, tmp_path / "run"))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_whose_baseline_drifts_says_so_everywhere(drifted: Path, specbench: Call) -> None:
    board = drifted / "leaderboard.json"
    rows = {(each.method_name, each.subset): each for each in load(board)}
    whole = rows["sd", "all"]
    assert whole.metrics["ar_drift"].value == pytest.approx(0.5, rel=0.1)
    assert "ar_drift" in [each.code for each in whole.warnings]
    assert rows["sd", "en"].metrics["ar_drift"].value == pytest.approx(0.5, rel=0.1), "subsets take turns"
    assert not validate(board, with_records=True).problems
    for command in (("leaderboard", "show", "run/leaderboard.json"), ("compare", "run:sd", "run:ar")):
        _, out, _ = specbench(*command)
        assert "†" in out and "the baseline ran at 0.5" in " ".join(out.split())
    other = drifted.parent / "board.json"
    write(other, [each.model_copy(update={"run": "run"}) for each in rows.values()])
    notes = " ".join(" ".join(each.notes) for each in check(str(other), str(drifted), 0.03).compared)
    assert notes.count("all: in the last third of the run the baseline ran at 0.5") == 2


def test_accepted_tokens_per_step_are_those_of_the_steps_and_recomputed(drifted: Path) -> None:
    board = drifted / "leaderboard.json"
    found = load(board)
    whole = {each.method_name: each for each in found if each.subset == "all"}
    for name, each in whole.items():
        steps = [step for record in read(drifted / "records.jsonl") for step in record["methods"][name]["steps"]]
        by_hand = [sum(step[2] == length for step in steps) for length in range(each.num_draft_tokens + 1)]
        assert each.accepted_tokens_per_step == tuple(by_hand) and sum(by_hand) == len(steps)
    assert len(whole["ar"].accepted_tokens_per_step or ()) == 1 and len(whole["sd"].accepted_tokens_per_step or ()) == 6
    for field, value in (("warnings", ()), ("accepted_tokens_per_step", (1, 2))):
        write(board, [each.model_copy(update={field: value}) for each in found])
        problems = validate(board, with_records=True).problems
        assert any(f"{field} = {list(value)!r}" in problem for problem in problems if "all sd" in problem)


@pytest.mark.parametrize(("source", "num_seen"), [("mgsm", 2), ("world:mgsm", 0)])
def test_a_drafter_that_saw_measured_prompts_says_so(
    specbench: Call, tmp_path: Path, source: str, num_seen: int
) -> None:
    """Two of four; the world's rows, which are never measured, are the control."""
    data = () if source.startswith("world") else ("--data", "sample")
    train = ("train", "ngram", "--task", source, *data, "--subset", "en", "--limit", "2", "--output", "mine")
    code, _, err = specbench(*train)
    assert code == 0, err
    run = ("run", "--task", "mgsm", "--method", "ngram", "--subset", "en", "--limit", "4", "--output", "run",
           "--target", "embedded:drafter")  # fmt: skip
    assert specbench(*run, "--set", "drafter.path=mine", "--set", "generation.max_new_tokens=4")[0] == 0
    rows = {each.method_name: each for each in load(tmp_path / "run" / "leaderboard.json")}
    told = [each.text for each in rows["ngram"].warnings if each.code == "trained_on_test"]
    assert len(told) == bool(num_seen) and not rows["ar"].warnings
    assert not num_seen or f"on {num_seen} of the 4 measured prompts" in told[0]
    assert not validate(tmp_path / "run" / "leaderboard.json", with_records=True).problems


def test_a_row_of_an_earlier_version_is_not_contradicted_by_newer_warnings() -> None:
    old = measured()
    newer = old.model_copy(update={"warnings": (RowWarning(code="cheap_passes", text="v is low"),)})
    run = cast(RecordedRun, SimpleNamespace(recompute_row=lambda _: newer))
    assert compare_with_run(old, run, Path("board.json")) == ([], ["warning cheap_passes"])
    other = old.model_copy(update={"warnings": (RowWarning(code="loops", text="it loops"),)})
    run = cast(RecordedRun, SimpleNamespace(recompute_row=lambda _: other))
    assert [each.field for each in compare_with_run(old, run, Path("board.json"))[0]] == ["warnings"]
