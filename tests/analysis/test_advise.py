"""`specbench advise`: the order of ways, what they are compared with, and the replay of shorter drafts."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.advice import advise as analysis
from specbench.analysis.advice.advise import advise, why_too_bad
from specbench.analysis.advice.tables import report_parts, sentences, ways_table
from specbench.analysis.roofline.predict import Machine
from specbench.core.errors import ConfigError
from specbench.core.table import Table
from specbench.publish.paper.advice import drawing_of_advice
from specbench.records.folder import add_environment
from specbench.records.records import Generation
from specbench.results.answers import Answer, answers_of
from specbench.results.leaderboard import load, write
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.statistics.bootstrap import Estimate
from tests.support.records import autoregressive, generation, record

Run = Callable[..., tuple[int, str, str]]
DEMO = Path(__file__).resolve().parents[2] / "leaderboards" / "demo.json"


@pytest.fixture(scope="module")
def advice() -> analysis.Advice:
    return advise([str(DEMO)], "latency", task="mgsm")


def demo_rows() -> list[Row]:
    return [row for row in load(DEMO) if row.task_name == "mgsm" and row.subset == "all"]


def test_the_best_way_comes_first_and_all_measured_ones_are_there(advice: analysis.Advice) -> None:
    values = [way.value.value for way in advice.ranked]
    assert values == sorted(values, reverse=True) and advice.ways[0].ratio.value == 1.0
    measured = {way.method: way for way in advice.ways if way.basis == "measured"}
    assert measured.keys() == {row.method_name for row in demo_rows()} >= {"ar", "sd"}
    for row in demo_rows():
        assert measured[row.method_name].value == row.metric("tokens_per_second")
    assert advice.reference == f"{DEMO}:ar" and advice.task == "mgsm/all"


def test_ratios_are_paired_and_quality_is_a_difference_from_the_reference(advice: analysis.Advice) -> None:
    best = advice.ways[0]
    for way in advice.ways[1:]:
        assert way.ratio.value == pytest.approx((way.value.value or 0) / (best.value.value or 1), rel=1e-9)
        if way.basis == best.basis == "measured":
            assert way.paired
    for way in advice.ways:
        if way.method == "ar":
            assert way.quality_change == Estimate(value=0.0, low=0.0, high=0.0) and way.keeps
        elif way.keeps:
            assert way.quality_change.value == pytest.approx(0.0, abs=0.05)
    lossy = [way for way in advice.ways if way.method == "fsd"]
    assert lossy and not lossy[0].keeps


def test_a_shorter_draft_is_replayed_where_it_is_better(advice: analysis.Advice) -> None:
    (way,) = [way for way in advice.ways if way.method == "sd" and way.basis == "replayed"] or [None]
    row = next(row for row in demo_rows() if row.method_name == "sd")
    run = RecordedRun(DEMO.with_suffix("") / "mgsm")
    found = {each.num_draft_tokens: each for each in analysis.replayed_lengths(run, run.with_records(row))}
    assert [*found] == [1, 2, 3, 4]
    best = max(found.values(), key=lambda each: each.tokens_per_second.value or 0.0)
    assert (way is not None) == ((best.tokens_per_second.value or 0.0) > (row.value("tokens_per_second") or 0.0))
    if way is not None:
        assert way.num_draft_tokens == best.num_draft_tokens and not way.paired and way.speedup == Estimate()
        assert way.value == best.tokens_per_second


def test_replayed_passes_cost_what_the_run_recorded() -> None:
    """A step of 2 of the recorded 3 draft tokens costs two mean draft passes and the mean target pass over 3 tokens,
    between those over 1 and over 4."""
    target = [(4, 0.3)] * 12
    own = [answer_of(generation([[3, 3, 3, 4]] * 12, target=target, draft=[(1, 0.02)] * 12 + [(1, 0.04)] * 24))]
    plain = [answer_of(autoregressive(49, target=[(1, 0.1)] * 24 + [(1, 0.2)] * 24))]
    machine = Machine.of_answers(own, plain)
    draft, single = (12 * 0.02 + 24 * 0.04) / 36, 0.15
    assert machine.draft_pass == pytest.approx(draft / single)
    assert machine.verify_costs([1, 4, 3], 4) == pytest.approx([1.0, 2.0, 1 + 2 / 3])
    assert machine.seconds([3], [1, 1], 4) == pytest.approx((1 + 2 / 3 + 2 * draft / single) / 1000)


def answer_of(made: Generation) -> Answer:
    (answer,) = answers_of([record({"ar": made})], "ar")
    return answer


def test_cost_is_the_price_of_the_time(advice: analysis.Advice) -> None:
    found = advise([str(DEMO)], "cost", task="mgsm", price_per_hour=3.6)
    speeds = {(way.method, way.basis): way.value.value or 1.0 for way in advice.ways}
    for way in found.ways:
        assert way.value.value == pytest.approx(1e6 * 0.001 / speeds[way.method, way.basis])
    assert [way.method for way in found.ranked] == [way.method for way in advice.ranked]
    # The ratio is that of speeds, so that less than 1 is worse here too, and the heading says which way round it is.
    first, second = found.ranked[0].value.value or 0.0, found.ranked[1].value.value or 1.0
    assert found.ranked[1].ratio.value == pytest.approx(first / second, rel=0.05) and first < second
    headings = [[column.heading for column in ways_table(each).columns] for each in (found, advice)]
    assert "best ÷ this\n[95 %]" in headings[0] and "÷ best\n[95 %]" in headings[1]


def with_changes(path: Path, **changes: Any) -> Path:
    """A board of AR and sd, measured under other conditions."""
    rows = [row.model_copy(update=changes) for row in demo_rows() if row.method_name in ("ar", "sd")]
    write(path, rows)
    return path


def test_a_quantized_target_competes_and_its_quality_is_told(tmp_path: Path) -> None:
    fast = {name: each.model_copy(update={end: 1000 * value for end in ("value", "low", "high")
                                          if (value := getattr(each, end)) is not None})
            if name == "tokens_per_second" else each for name, each in demo_rows()[0].metrics.items()}  # fmt: skip
    ar = next(row for row in demo_rows() if row.method_name == "ar")
    name = ar.quality or ""
    fast[name] = Estimate(value=0.1, low=0.05, high=0.2)
    board = tmp_path / "int4.json"
    write(board, [ar.model_copy(update={"dtype": "int4 (bfloat16)", "metrics": fast, "run": None})])
    found = advise([str(DEMO), str(board)], "latency", task="mgsm")
    best, same = found.best(), found.best(keeps=True)
    assert best is not None and best.precision == "int4 (bfloat16)" and not best.keeps
    change = 0.1 - (ar.value(name) or 0.0)
    assert best.quality_change.value == pytest.approx(change) and best.quality_change.low is not None
    assert same is not None and same.precision == ar.dtype and not same.paired
    text = " ".join(sentences(found))
    assert "best for latency: ar, int4 (bfloat16)" in text and "that is plain decoding" in text
    assert f"best with the answers of {ar.target}" in text
    strict = advise([str(DEMO), str(board)], "latency", task="mgsm", max_loss=abs(change) / 2)
    assert strict.ranked[0].precision == ar.dtype
    assert "worse than the reference's" in (strict.ways[-1].why_out or strict.ways[-2].why_out or "")


def test_answers_cut_inside_their_reasoning_are_told(tmp_path: Path, advice: analysis.Advice) -> None:
    assert {way.share_cut_in_reasoning for way in advice.ways} == {None}
    assert "reasoning" not in " ".join(next(ways for ways in report_parts(advice) if isinstance(ways, Table)).caption)
    rows = [row for row in demo_rows() if row.method_name in ("ar", "sd")]
    shares = {"ar": 0.25, "sd": 0.0}
    board = tmp_path / "cut.json"
    write(board, [
        row.model_copy(update={"run": None, "metrics": {
            **row.metrics, "share_cut_in_reasoning": Estimate(value=shares[row.method_name])}})
        for row in rows
    ])  # fmt: skip
    found = advise([str(board)], "latency", task="mgsm")
    assert {way.method: way.share_cut_in_reasoning for way in found.ways} == shares
    table = next(iter(report_parts(found)))
    assert isinstance(table, Table)
    (line,) = [line for line in table.caption if "reasoning" in line]
    assert "count as empty: ar 25%;" in line and "sd" not in line


def test_ways_whose_answers_run_on_are_marked(tmp_path: Path, advice: analysis.Advice) -> None:
    """Not those whose answers are cut as often as AR's of the same run."""
    assert not any(way.runs_on for way in advice.ways)
    rows = [row for row in demo_rows() if row.method_name in ("ar", "sd")]

    def found(**shares: float) -> Table:
        board = tmp_path / "long.json"
        write(board, [
            row.model_copy(update={"run": None, "metrics": {
                **row.metrics, "share_cut_by_length": Estimate(value=shares[row.method_name])}})
            for row in rows
        ])  # fmt: skip
        table = next(iter(report_parts(advise([str(board)], "latency", task="mgsm"))))
        assert isinstance(table, Table)
        return table

    table = found(ar=0.1, sd=0.7)
    bases = {line[1].partition(",")[0]: line[2] for line in table.rows}
    assert bases["sd"].endswith(" ‡") and "‡" not in bases["ar"]
    assert any(line.startswith("‡ sd, γ") and "longer, other texts" in line for line in table.caption)
    assert "‡" not in " ".join(
        [*(cell for line in found(ar=0.7, sd=0.7).rows for cell in line), *found(ar=1, sd=1).caption]
    )


def test_energy_ranks_what_has_it_and_tells_why_others_have_not(tmp_path: Path) -> None:
    """AR's run could read the counters, and that of sd noted why it could not."""
    rows = {row.method_name: row for row in demo_rows()}
    joules = {"cpu_joules_per_token": Estimate(value=0.5, low=0.4, high=0.8)}
    write(tmp_path / "ar.json", [rows["ar"].model_copy(update={"metrics": rows["ar"].metrics | joules, "run": None})])
    shutil.copytree(DEMO.with_suffix("") / "mgsm", tmp_path / "run")
    write(tmp_path / "run/leaderboard.json", [rows[name].model_copy(update={"run": None}) for name in ("ar", "sd")])
    add_environment(tmp_path / "run", {"energy_unknown": {"cpu": "no counter of a processor package"}})
    found = advise([str(tmp_path / "ar.json"), f"{tmp_path / 'run'}:sd"], "energy")
    (way,) = found.ways
    assert way.method == "ar" and way.value == Estimate(value=2.0, low=1.25, high=2.5)
    assert found.without_value[f"{tmp_path / 'run'}:sd"] == "no counter of a processor package"
    table = next(iter(report_parts(found)))
    assert isinstance(table, Table)
    assert f"left out: {tmp_path / 'run'}:sd: no tokens per joule: no counter of a processor package" in table.caption
    with pytest.raises(
        ConfigError, match="--goal energy: no row has tokens per joule: its run could not read a counter"
    ):
        advise([str(with_changes(tmp_path / "without.json", run=None))], "energy")


def test_loss_is_in_the_direction_of_the_score() -> None:
    assert why_too_bad("accuracy", Estimate(value=-0.2), 0.1) and not why_too_bad("accuracy", Estimate(value=0.2), 0.1)
    assert why_too_bad("perplexity", Estimate(value=0.2), 0.1) and not why_too_bad(
        "perplexity", Estimate(value=-0.2), 0.1
    )
    assert "not known" in (why_too_bad("accuracy", Estimate(), 1.0) or "")


def test_the_picture_has_quality_and_memory_of_each_way(advice: analysis.Advice) -> None:
    made = drawing_of_advice(advice)
    score, memory = made.panels
    assert [mark.series for mark in score.marks] == [mark.series for mark in memory.marks]
    for way, mark, beside in zip(advice.ranked, score.marks, memory.marks, strict=True):
        assert mark.x == way.value.value and mark.x_interval == way.value and mark.n == way.n == 44
        assert mark.y.value == pytest.approx(100 * (way.quality.value or 0)) and mark.cells["basis"] == way.basis
        assert beside.y.value == pytest.approx((way.peak_bytes or 0) / 2**30)
        assert ("replayed" in mark.series) == (way.basis == "replayed")
    inverted = [way.model_copy(update={"value": Estimate(value=1 / (way.value.value or 1))}) for way in advice.ways]
    cheap = drawing_of_advice(advice.model_copy(update={"goal": "cost", "ways": tuple(inverted)}))
    fronts = [{mark.series for mark in each.panels[0].marks if mark.cells["on_front"]} for each in (made, cheap)]
    assert fronts[0] == fronts[1] and cheap.panels[0].less_is_better
    alone = advice.model_copy(update={"ways": advice.ways[:1]})
    with pytest.raises(ConfigError, match="--plot: fewer than two ways of mgsm/all"):
        drawing_of_advice(alone)


def test_the_picture_is_written_with_its_data(specbench: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "new/ways.png"
    board = str(with_changes(tmp_path / "board.json", run=None))
    code, out, err = specbench("advise", board, "--json", "--plot", str(picture))
    assert code == 0 and f"picture: {picture}" in err and "memory: the largest" in err
    lines = [*csv.DictReader(picture.with_suffix(".csv").open())]
    assert len(lines) == 2 * len(json.loads(out)["ways"]) and {line["metric"] for line in lines} == {
        "accuracy", "peak_gib"
    }  # fmt: skip
    code, out, err = specbench("advise", board, "--plot", "ways.docx")
    assert code == 2 and err.startswith("error: --plot ways.docx: ") and len(err.splitlines()) == 1


def test_the_table_and_its_sentences(advice: analysis.Advice) -> None:
    table, *told = report_parts(advice)
    assert isinstance(table, Table) and len(table.rows) == len(advice.ways)
    assert str(told[0]).startswith(f"best for latency: {advice.ways[0].name}")


def test_what_all_ways_share_stands_below_the_table_and_not_in_every_line(advice: analysis.Advice) -> None:
    def served(way: analysis.Way, load: str) -> analysis.Way:
        return way.model_copy(update={"precision": "as served", "engine": "served llama.cpp", "load": load})

    ways = [served(way, f"concurrency {place % 2}") for place, way in enumerate(advice.ways)]
    table, best, *_ = report_parts(advice.model_copy(update={"ways": tuple(ways)}))
    assert isinstance(table, Table) and "all ways: served llama.cpp" in table.caption
    names = [row[1] for row in table.rows]
    assert not any("served" in name for name in names) and all("concurrency" in name for name in names)
    assert ways[0].name in str(best) and "served llama.cpp" in ways[0].name  # a sentence stands alone
    ways[1] = ways[1].model_copy(update={"engine": "served vllm"})
    table = ways_table(advice.model_copy(update={"ways": tuple(ways)}))
    assert all("served" in row[1] for row in table.rows)
    assert not any(line.startswith("all ways:") for line in table.caption)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing argument 'RUN...'"),
        (("nowhere",), "'nowhere': no such folder or file"),
        (("{demo}",), "the rows are of several tasks ("),
        (("{demo}", "--task", "mgms"), "did you mean 'mgsm'"),
        (("{demo}", "--task", "mgsm", "--goal", "speed"), "--goal speed: "),
        (("{demo}", "--task", "mgsm", "--goal", "cost"), "--goal cost: give --price-per-hour DOLLARS"),
        (("{demo}", "--task", "mgsm", "--price-per-hour", "2"), "has no effect with --goal latency"),
        (("{demo}", "--task", "mgsm", "--goal", "goodput"), "--goal goodput: give --slo with limits in seconds"),
        (("{demo}", "--task", "mgsm", "--goal", "goodput", "--slo", "ttft=0.5"), "no row has answers/s within"),
        (("{demo}", "--task", "mgsm", "--goal", "goodput", "--slo", "tfft=1"), "did you mean 'ttft'"),
        (("{demo}", "--task", "mgsm", "--goal", "goodput", "--slo", "ttft=0"), "give a number of seconds above 0"),
        (("{demo}", "--task", "mgsm", "--slo", "ttft=0.5"), "give --goal goodput"),
        (("{demo}", "{other}", "--task", "mgsm"), "were not measured alike (device: "),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(specbench: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    other = with_changes(tmp_path / "other.json", device="another machine", run=None)
    code, _, err = specbench("advise", *(word.format(demo=DEMO, other=other) for word in words))
    assert code == 2 and said in " ".join(err.split()), err


def test_json_has_everything(specbench: Run) -> None:
    code, out, err = specbench("advise", str(DEMO), "--task", "mgsm", "--json")
    assert code == 0, err
    assert {way["method"] for way in json.loads(out)["ways"]} == {row.method_name for row in demo_rows()}
