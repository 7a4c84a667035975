"""The page of a run: what it says, and that it is alone and safe. In a browser: test_site_browser.py."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from specbench.publish.site import run_report
from specbench.publish.site.run_report import inline_svg, warnings_of, worst_prompts
from specbench.report.captions import marked_speedup
from specbench.report.shown import Selection, shown_run
from specbench.report.tables import RunRows
from specbench.results.metric_format import number, with_interval
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.statistics.bootstrap import Estimate
from tests.support.demo_runs import attacked_run, demo_run
from tests.support.pages import Page
from tests.support.rows import row
from tests.support.site_rows import HOSTILE

Specbench = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return RecordedRun(attacked_run(tmp_path_factory.mktemp("report") / "run"))


def page_of(run: RecordedRun) -> str:
    file = run.path.parent / "report.html"
    run_report.write_report(file, run, shown_run(run, Selection()))
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(run: RecordedRun) -> str:
    """The page of a run with hostile answers, without figures, which take seconds to draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "is_installed", lambda name: False)
        return page_of(run)


@pytest.fixture(scope="module")
def drawn(run: RecordedRun) -> str:
    """The same page with its figures."""
    return page_of(run)


def check_alone(text: str) -> None:
    page = Page(text)
    (policy,) = (each["content"] for each in page.of("meta") if each.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert not page.of("script", "img", "iframe", "object")
    assert not re.search("https?://", text.replace("http://www.w3.org/", "")), "names of SVG only"
    addresses = [each["href"] for each in page.of("a", "link")]
    addresses += [each["xlink:href"] for each in page.of("use")]
    assert all(each is not None and each.startswith(("#", "data:")) for each in addresses)
    assert not {name for _, found in page.elements for name in found if name.startswith("on")}


def test_it_is_one_file_that_runs_and_fetches_nothing(text: str) -> None:
    check_alone(text)


@pytest.mark.slow
def test_its_figures_run_and_fetch_nothing(drawn: str) -> None:
    check_alone(drawn)


def test_answers_and_references_are_never_markup(text: str, run: RecordedRun) -> None:
    page = Page(text)
    assert not page.of("img") and "&lt;/script&gt;&lt;img" in text
    said = "".join(page.texts)
    assert said.count(f"{HOSTILE} ar") >= len(run.records), "each answer is there, as text"


@pytest.mark.slow
def test_ids_are_unique_and_links_lead_to_them(drawn: str) -> None:
    """Graphics of matplotlib have the same ids: the page's are apart."""
    page = Page(drawn)
    ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
    assert len(ids) - len(set(ids)) == 0 and len(ids) > 200
    for attributes in page.of("a", "use"):
        address = attributes.get("href") or attributes["xlink:href"] or ""
        assert address.removeprefix("#") in ids or address.startswith("data:"), address
    assert {each[1:] for each in re.findall(r"url\((#[^)]+)\)", drawn)} <= set(ids)


@pytest.mark.slow
def test_it_can_be_read_aloud(drawn: str) -> None:
    page = Page(drawn)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
    assert len(page.of("caption")) == len(page.of("table"))
    assert all(each.get("scope") in ("col", "row") for each in page.of("th"))
    pictures = page.of("svg")
    assert len(pictures) == 5 and all(each["role"] == "img" and each["aria-label"] for each in pictures)


@pytest.mark.slow
def test_each_figure_says_whether_it_is_measured_or_computed(drawn: str) -> None:
    captions = re.findall(r"<figcaption><b>([^<]+)\.</b> ([^<]+)\.", drawn)
    kinds = [(origin.partition(" ")[0].rstrip(":"), what.partition(" on ")[0]) for origin, what in captions]
    assert kinds == [
        ("Measured", "Speed-up over AR"), ("Computed", "Expected speed-up over AR"),
        ("Measured", "Quality and memory against speed, with 95 % intervals over prompts; line: the Pareto front of "
                     "each panel"),
        ("Measured", "Chance that a draft position is accepted if the target verifies it (accepted ÷ verified), with "
                     "95 % intervals over prompts; positions of fewer than 10 verified tokens are left out"),
        ("Measured", "Mean target pass by its number of tokens, in AR passes over one token (v), with 95 % intervals; "
         "draft cost c: median draft pass ÷ median AR pass"),
    ]  # fmt: skip


def test_its_numbers_are_those_of_the_rows(text: str, run: RecordedRun) -> None:
    said = " ".join(" ".join(Page(text).texts).split())
    (group,) = RunRows(run.rows).by_task()
    told = warnings_of([group])
    assert any("†" in line for line in told) and all(line in said for line in told)
    for each in group:
        assert each.is_baseline or with_interval(each.metric("speedup")) in said
        assert number(each.metric("mean_acceptance_length"), 2) in said
        change = each.metric("accuracy_difference")
        assert each.is_baseline or with_interval(change, 1, 100, "+") in said
        assert str(each.device) in said and each.command in said and each.verdict in said


def test_a_run_without_records_of_a_kind_has_no_empty_parts(text: str) -> None:
    headings = re.findall(r'<h2 id="[^"]+">([^<]+)', text)
    assert headings == [
        "Result", "Warnings", "Conditions", "Speed", "Acceptance by position", "Time of passes", "Quality", "Verdicts",
        "Worst prompts", "Answers", "csqa/default ",
    ]  # fmt: skip


def test_marks_are_told_in_words() -> None:
    """‡: answers run on where AR's end; †: a warning of the row."""

    def of(method: str, cut: float, warnings: tuple[dict[str, str], ...] = ()) -> Row:
        metrics = {"share_cut_by_length": cut, "new_tokens": 100 + 100 * cut, "speedup": 2.0, "num_prompts_timed": 40}
        found = {name: Estimate(value=value) for name, value in metrics.items()}
        return row(method=f"{method}@1:0", n=1, metrics=found, warnings=warnings)

    slow = {"code": "ar_drift", "text": "it became slower"}
    rows = [of("ar", 0), of("fsd", 1, (slow,)), of("sd", 0.1)]
    assert [marked_speedup(each, rows[0]) for each in rows] == ["2.00", "2.00 † ‡", "2.00"]
    drift, cut = warnings_of([rows])
    assert drift == "† fsd: it became slower"
    assert cut.startswith(
        "‡ the answers of fsd run on: 100 % of their answers go on to the limit on new tokens (200 on"
    )


def test_worst_prompts_are_those_with_the_lowest_speed_up(run: RecordedRun) -> None:
    groups = RunRows(run.rows).by_task()
    worst = [each for each in worst_prompts(run, groups) if each.method == "sd"]
    ratios = {}
    for record in run.records.values():
        sd, ar = record.methods["sd"], record.methods["ar"]
        ratios[f"default {record.id}"] = (
            sd.num_timed_tokens / sd.decode_seconds / (ar.num_timed_tokens / ar.decode_seconds)
        )
    least = sorted(ratios, key=lambda name: ratios[name])[:3]
    assert [each.name for each in worst] == least
    assert [each.speedup for each in worst] == [f"{ratios[name]:.2f}" for name in least]


def test_a_graphic_keeps_its_own_ids_and_no_style_of_the_whole_page() -> None:
    svg = (
        '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        'width="9pt" height="9pt"><metadata/><defs><style>*{fill: red}</style><clipPath id="p"/></defs>'
        '<g id="a" clip-path="url(#p)"><use xlink:href="#a" style="clip-path: url(#p)"/></g></svg>'
    )
    made = str(inline_svg(svg.encode(), "one", HOSTILE))
    page = Page(made)
    assert [each["id"] for _, each in page.elements if "id" in each] == ["one-p", "one-a"]
    assert 'clip-path="url(#one-p)"' in made and 'xlink:href="#one-a"' in made and "clip-path: url(#one-p)" in made
    assert "<style" not in made and "metadata" not in made and "<img" not in made and "<?xml" not in made


def test_a_figure_is_that_of_plot(run: RecordedRun) -> None:
    figures = run_report.Figures(run)
    (figure,) = figures.of("methods", "Measured")
    assert figure.origin == "Measured" and figure.caption[0].startswith("Speed-up over AR on csqa, with 95 % intervals")
    (svg,) = (each for tag, each in Page(str(figure.svg)).elements if tag == "svg")
    assert svg["role"] == "img" and svg["aria-label"] == figure.caption[0] and not figures.missing
    assert figures.of("languages", "Measured") == [] and not figures.missing, "the run has one language"


def test_without_matplotlib_it_says_what_is_missing(text: str) -> None:
    assert "<svg" not in text and "Not drawn: figures need matplotlib" in text
    assert "P(accepted | verified)" in text, "the tables are there"


def test_subsets_stand_beside_each_other(tmp_path: Path) -> None:
    rows = RecordedRun(demo_run(tmp_path / "run", "mgsm")).rows
    speedups, lengths, scores = run_report.subset_tables(rows)
    assert [column.heading for column in speedups.columns][:2] == ["subset", "sd"] and speedups.rows[-1][0] == "all"
    assert len(speedups.rows) == len({each.subset for each in rows})
    sd = {each.subset: each for each in rows if each.method_name == "sd"}
    assert [line[1] for line in lengths.rows] == [
        number(sd[line[0]].metric("mean_acceptance_length"), 2) for line in lengths.rows
    ]
    assert [column.heading for column in scores.columns][1] == "ar"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--answers", "3"), "--answers: has no effect without --html"),
        (("--prompts",), "--prompts: has no effect without --html"),
        (("--html", "r.html", "--data", "x"), "--data: has no effect without --prompts"),
        (("--html", "r.html", "--answers", "some"), "--answers some: give a number of records, none or all"),
        (("--html", "r.html", "--answers", "none", "--prompts"), "--prompts: has no effect with --answers none"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    specbench: Specbench, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    code, _, err = specbench("report", "run", *words)
    assert code == 2 and told in err and err.count("\n") == 1 and not (tmp_path / "r.html").exists()


def test_the_command_prints_the_tables_or_writes_the_page(
    specbench: Specbench, run: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_report, "is_installed", lambda name: False)  # drawing takes seconds
    code, out, err = specbench("report", run.path)
    assert (code, err) == (0, "") and "csqa" in out and "ms per token" in out
    code, out, err = specbench("report", run.path, "--html", "report.html", "--answers", "2")
    assert (code, err) == (0, "") and re.fullmatch(r"report\.html: \d\.\d MB\n", out)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count('<article class="record"') == 2
    code, _, err = specbench("report", "none", "--html", "report.html")
    assert code == 2 and "run 'none': no such folder" in err


def test_scores_that_differ_by_subset_have_no_row_over_all() -> None:
    """As in Spec-Bench: each subset then has its line, with the paired difference."""
    scored = {"accuracy": 0.5, "accuracy_ar": 0.6, "accuracy_difference": -0.1}
    metrics = {name: Estimate(value=value) for name, value in scored.items()}
    whole = [row(method=f"{name}@1:0", subset="all", metrics={}) for name in ("ar", "sd")]
    parts = [
        row(method=f"{name}@1:0", subset=subset, quality="accuracy", metrics=metrics)
        for name in ("ar", "sd") for subset in ("qa", "math")
    ]  # fmt: skip
    assert run_report.scored_rows(whole, [*whole, *parts]) == parts
    table = run_report.quality_table(parts)
    assert [line[:5] for line in table.rows if line[0] == "sd"] == [
        ["sd", "qa", "accuracy %", "60.0 → 50.0", "-10.0"], ["sd", "math", "accuracy %", "60.0 → 50.0", "-10.0"],
    ]  # fmt: skip
    assert run_report.scored_rows(parts[:1], parts) == parts[:1]
