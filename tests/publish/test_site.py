"""Pages of leaderboards: what they say, that they are whole, alone and safe. In a browser: test_site_browser.py."""

import json
import math
import multiprocessing
import os
import random
import re
import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from specbench.core.errors import ConfigError
from specbench.core.files import lock_of, locked
from specbench.publish.site.answers import write_page
from specbench.publish.site.build import MARK, build
from specbench.publish.site.charts import front, prediction_plots, quality_speed_plots, scale
from specbench.publish.site.entries import COLUMNS, read_entries
from specbench.publish.site.row_page import accepted_counts, provenance, time_parts
from specbench.report import ranking as ranks
from specbench.report.captions import verdict_of
from specbench.report.ranking import rank_rows
from specbench.report.shown import ShownAnswer, ShownRecord, ShownRun
from specbench.results.leaderboard import load, write
from specbench.results.metric_format import number
from specbench.results.paired import RowWithRecords
from specbench.results.row import Evidence, Row, digest_of
from specbench.statistics.bootstrap import Estimate
from tests.support.pages import Page
from tests.support.rows import row
from tests.support.runs import run_into
from tests.support.site_rows import HOSTILE, hostile_row, many_rows, metrics, some_rows

parsed = cache(Page)  # several tests read the same pages


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a small site, and its rows."""
    folder = tmp_path_factory.mktemp("site")
    rows = some_rows()
    write(folder / "board.json", rows)
    build([folder / "board.json"], folder / "site", "Some results")
    return folder / "site", rows


def all_pages(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.html"))}


def test_every_row_has_a_line_and_a_page_named_by_its_digest(made):
    folder, rows = made
    digests = {digest_of(each.model_dump(mode="json")) for each in rows}
    assert {path.stem for path in (folder / "rows").iterdir()} == digests
    index = (folder / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'href="rows/(\w+)\.html"', index)) == digests
    headings = re.findall(r'<th scope="col" data-key="(\w+)"', index)
    assert headings == [column.key for column in COLUMNS if column.key not in ("level", "load")]


def test_pages_are_well_formed_and_link_to_what_is_there(made):
    folder, _ = made
    for name, text in all_pages(folder).items():
        page = parsed(text)
        ids = [attributes["id"] for _, attributes in page.elements if attributes.get("id")]
        assert len(ids) == len(set(ids)), name
        for attributes in page.of("a", "link", "script"):
            address = attributes.get("href") or attributes.get("src") or ""
            assert address.startswith("data:") or ":" not in address, f"{name}: {address} leaves the site"
            path, _, fragment = address.partition("#")
            if path and not address.startswith("data:"):
                assert ((folder / name).parent / path).resolve().is_file(), f"{name}: {address}"
            if fragment and not path:
                assert fragment in ids, f"{name}: {address}"


def test_nothing_is_fetched_and_nothing_runs_inline(made):
    folder, _ = made
    for name, text in all_pages(folder).items():
        page = parsed(text)
        (policy,) = (each["content"] for each in page.of("meta") if each.get("http-equiv"))
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
        assert all(each["src"].endswith("site.js") for each in page.of("script")) and len(page.of("script")) == 1
        attributes = {attribute for _, found in page.elements for attribute in found}
        assert not {each for each in attributes if each.startswith("on")} | (attributes & {"style"}), name
        assert not re.search(r"https?://|//[a-z]", re.sub(r"arXiv:\S+", "", text)), name
    for asset in ("site.css", "site.js"):
        text = (folder / asset).read_text(encoding="utf-8")
        assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttpRequest|eval\(|innerHTML", text)


def test_pages_can_be_read_aloud(made):
    """A language, headings without gaps, names of all controls, captions and scopes, texts of pictures."""
    folder, _ = made
    for name, text in all_pages(folder).items():
        page = parsed(text)
        assert page.of("html") == [{"lang": "en"}] and page.of("main") and re.search("<title>[^<]+ – ", text), name
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        assert levels.count(1) == 1 and levels[0] == 1
        assert all(later <= earlier + 1 for earlier, later in pairwise(levels)), name
        assert len(page.of("caption")) == len(page.of("table")), name
        assert all(each.get("scope") in ("col", "row", "rowgroup") for each in page.of("th")), name
        labels = {each["for"] for each in page.of("label")}
        assert all(each["id"] in labels for each in page.of("input", "select")), name
        assert not re.search(r"<(button|a|th|caption|h\d)[^>]*>\s*</", text), f"{name}: an element without a name"
        for each in page.of("svg"):
            assert each.get("role") in ("img", "group") or 'aria-hidden="true"' in text
        drawn = re.findall('<svg[^>]* role="img".*?</svg>', text, re.DOTALL)
        assert not any("<a " in each for each in drawn), f"{name}: nobody hears the links of an image"
        pictures = [each["aria-labelledby"].split() for each in page.of("svg") if each.get("role")]
        assert all(f'<title id="{title}">' in text and f'<desc id="{told}">' in text for title, told in pictures)
        regions = [each for _, each in page.elements if each.get("role") == "region"]
        assert all(
            each.get("tabindex") == "0" and (each.keys() & {"aria-label", "aria-labelledby"}) for each in regions
        )
    index = Page((folder / "index.html").read_text(encoding="utf-8"))
    assert ("p", "polite") in [(tag, each.get("aria-live")) for tag, each in index.elements]
    assert index.of("a")[0] == {"class": "skip", "href": "#main"}


def test_a_row_page_says_all_that_the_row_says(made):
    folder, rows = made
    chosen = next(each for each in rows if each.subset == "ja" and each.options)
    text = (folder / "rows" / f"{digest_of(chosen.model_dump(mode='json'))}.html").read_text(encoding="utf-8")
    said = " ".join(" ".join(Page(text).texts).split())
    for value in (chosen.target, chosen.target_revision, chosen.drafter, chosen.device, chosen.commit, chosen.command,
                  chosen.attention, chosen.created, "2.13.0", chosen.data_location,
                  "options.verification.threshold"):  # fmt: skip
        assert str(value) in said
    for name in chosen.metrics:
        assert name in said
    whole = 1000 / chosen.metrics["tokens_per_second"].value
    assert f"{whole:.3f} " in said and f"{whole * 2.5 / 3.25:.3f} " in said, "milliseconds per token, and of verifying"
    assert "Unknown: neither the row" in said
    assert all(f">{subset}<" in text for subset in ("en", "ja", "sw", "all"))


def test_the_top_of_a_page_says_what_was_measured(made, tmp_path):
    folder, rows = made
    for page in all_pages(folder).values():
        top = page.partition("<main")[0]
        assert f"<dd>{rows[0].target} (" in top and f"on {rows[0].device}<" in top and "<dd>eager<" in top
        assert "demonstration" not in top
    write(tmp_path / "board.json", [row.model_copy(update={"target": "embedded:target"}) for row in rows[:5]])
    build([tmp_path / "board.json"], tmp_path / "site", "Title")
    assert all("<dd>embedded demonstration models" in page for page in all_pages(tmp_path / "site").values())
    write(tmp_path / "board.json", [rows[0], *(r.model_copy(update={"target": "embedded:target"}) for r in rows[1:5])])
    build([tmp_path / "board.json"], tmp_path / "mixed", "Title")
    index = (tmp_path / "mixed" / "index.html").read_text()
    assert "<dd>4 of 5 rows are of embedded demonstration models" in index, "the others are of other models"


def test_a_tab_without_content_is_left_out(made, tmp_path):
    folder, rows = made
    assert "quality_speed.html" in (folder / "index.html").read_text()
    write(tmp_path / "board.json", [row for row in rows if row.method_name == "ar"][:1])
    build([tmp_path / "board.json"], tmp_path / "site", "Title")
    assert {path.name for path in (tmp_path / "site").glob("*.html")} == {"index.html"}
    assert "quality_speed.html" not in (tmp_path / "site" / "index.html").read_text()


def test_the_same_rows_give_the_same_bytes(made, tmp_path):
    folder, rows = made
    write(tmp_path / "board.json", rows)
    build([tmp_path / "board.json", tmp_path / "board.json"], tmp_path / "again", "Some results")
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = tmp_path / "again"
    assert files == {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()}


def test_texts_of_rows_are_never_markup(tmp_path):
    write(tmp_path / "board.json", [hostile_row(), hostile_row().model_copy(update={"seed": 1})])
    build([tmp_path / "board.json"], tmp_path / "site", HOSTILE)
    for name, text in all_pages(tmp_path / "site").items():
        page = parsed(text)
        assert not page.of("img", "b") or name.startswith("rows/"), name
        assert not page.of("img") and "onerror" not in {a for _, found in page.elements for a in found}, name
        assert len(page.of("script")) == 1 and "onerror" in " ".join(page.texts), name
    assert HOSTILE in Page(all_pages(tmp_path / "site")["index.html"]).texts


UNSEEN = "\u202eab\u2066\u200b\x1b"


def test_signs_that_nobody_sees_are_shown_but_in_answers(tmp_path):
    """They could turn the order of what stands around them; models write them for good reasons."""
    texts = {"method": f"{UNSEEN}@1:0", "target": UNSEEN, "drafter": UNSEEN, "command": f"specbench run {UNSEEN}"}
    write(tmp_path / "board.json", [row(**texts, seed=seed, metrics=metrics(random.Random(0))) for seed in (0, 1)])
    built = build([tmp_path / "board.json"], tmp_path / "site", UNSEEN)
    shown = "\\u202eab\\u2066\\u200b\\u001b"
    for name, text in all_pages(tmp_path / "site").items():
        assert shown in text and not any(sign in text for sign in UNSEEN if not sign.isalpha()), name
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    options = [each["value"] for each in Page(index).of("option") if each["value"].startswith("=")]
    lines = [json.loads(each["data-f"]) for each in Page(index).of("tr") if "data-f" in each]
    assert options and all(f"={value}" in options for line in lines for value in line), "filters find what they show"
    assert [line for line in built.warnings if "looks like another" in line and "\\u202e" in line]
    answer = ShownAnswer("ar", 1.0, {}, "eos", 3, {"text": f"<b>\u200f{UNSEEN}"}, {})
    record = ShownRecord("t", "ar", "1", 0, 0, 5, None, f"ref\u200f{UNSEEN}", (answer,), "ar")
    write_page(tmp_path / "answers.html", "t", ShownRun((record,), 1, ()))
    text = (tmp_path / "answers.html").read_text(encoding="utf-8")
    assert f"&lt;b&gt;\u200f{UNSEEN}" in text and f"ref\u200f{UNSEEN}" in text
    blocks = [each for each in Page(text).of("pre")]
    assert blocks == [{"tabindex": "0", "dir": "auto", "lang": "ar"}], "right-to-left texts, read in their language"


def test_names_that_look_like_others_are_told(tmp_path):
    names = ("Qwen/Qwen3-8B", "Qw\u0435n/Qwen3-8B")
    write(tmp_path / "board.json", [row(target=name) for name in names])
    built = build([tmp_path / "board.json"], tmp_path / "site", "x")
    (line,) = built.warnings
    assert "'Qw\\u0435n/Qwen3-8B' mixes letters of several scripts" in line


def test_two_files_with_other_numbers_for_one_row(tmp_path):
    """The first one is shown, and the others told: a copy from elsewhere, with other places, is no other row."""
    first = row(metrics={"speedup": Estimate(value=1.5)})
    write(tmp_path / "first.json", [first])
    write(tmp_path / "copy.json", [first.model_copy(update={"run": "elsewhere"})])
    write(tmp_path / "forged.json", [first.model_copy(update={"metrics": {"speedup": Estimate(value=9.0)}})])
    files = [tmp_path / f"{name}.json" for name in ("first", "copy", "forged")]
    built = build(files, tmp_path / "site", "x")
    (line,) = (each for each in built.warnings if "other numbers" in each)
    assert built.num_rows == 1 and line.startswith(f"{files[2]}: ") and f"of {files[0]}" in line
    assert "9.00" not in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


def test_ranks_are_those_of_show(made, tmp_path):
    _, rows = made
    write(tmp_path / "board.json", rows)
    entries = read_entries([tmp_path / "board.json"])
    for group in entries.whole():
        expected = [each.text for each in rank_rows([RowWithRecords(entry.row) for entry in group], "speedup")]
        assert [entry.rank.text for entry in group] == expected and group[0].group_size == len(group) == 5
    assert {entry.label for entry in group} == {"ar", "sd", *(f"fsd threshold={each}" for each in (0.1, 0.3, 0.5))}


def test_many_rows_are_ranked_as_few_are(monkeypatch):
    sides = [RowWithRecords(each) for each in many_rows(320) if each.subset == "all" and each.seed == 3]
    for metric in ("speedup", "acceptance_rate", "mean_acceptance_length"):
        paired = rank_rows(sides, metric)
        monkeypatch.setattr(ranks, "MOST_PAIRED", 5)
        crowded = rank_rows(sides, metric)
        monkeypatch.undo()
        assert [each.text for each in crowded] == [each.text for each in paired]
        assert [each.unknown for each in crowded] == [each.unknown for each in paired]
        assert all(each.unpaired == {"more than 5 rows"} for each in crowded)


def test_the_front_holds_what_nothing_beats():
    assert front([(1, 0.9), (2, 0.8), (1.5, 0.7), (3, 0.1), (2, 0.8), (3, 0.05)]) == {0, 1, 3, 4}
    assert front([(1, 1), (2, 2)]) == {1}


def test_planes_of_sweeps_and_predictions(made, tmp_path):
    _, rows = made
    write(tmp_path / "board.json", rows)
    entries = read_entries([tmp_path / "board.json"])
    found = quality_speed_plots(entries)
    assert [plot.title for plot in found] == ["task0", "task1"]
    for plot in found:
        (sweep,) = plot.sweeps
        swept = {p.name: (p.x, p.y) for p in plot.points if "threshold=" in p.name}
        assert list(sweep) == [swept[f"fsd threshold={threshold}"] for threshold in (0.1, 0.3, 0.5)]
        assert sorted((p.x, p.y) for p in plot.points if p.is_best) == list(plot.front)
        assert plot.line[0][0] == plot.line[1][0] == plot.x.scale(1.0)
    (found,) = prediction_plots(entries)
    assert len(found.points) == 8 and "6 of 8 rows reached" in found.caption


def test_pictures_of_one_task_are_told_apart_by_what_differs(tmp_path):
    same = {"quality": "accuracy", "n": 40, "subset": "all", "metrics": metrics(random.Random(0))}
    rows = [
        row(**same, method=f"m{method}@1:0", task="mgsm@1:0", seed=seed, sampling={"temperature": temperature})
        for method in range(2) for seed in (0, 1) for temperature in (0.0, 0.5)
    ]  # fmt: skip
    alone = [row(**same, method=f"m{method}@1:0", task="csqa@1:0") for method in range(2)]
    write(tmp_path / "board.json", [*rows, *alone])
    titles = [plot.title for plot in quality_speed_plots(read_entries([tmp_path / "board.json"]))]
    expected = [f"mgsm, temperature {temperature}, seed {seed}" for seed in (0, 1) for temperature in ("0", "0.5")]
    assert sorted(titles) == sorted([*expected, "csqa"])
    build([tmp_path / "board.json"], tmp_path / "site", "x")
    assert "mgsm, temperature 0.5, seed 1: the same numbers" in (tmp_path / "site" / "quality_speed.html").read_text(
        "utf-8"
    )
    (predictions,) = prediction_plots(read_entries([tmp_path / "board.json"]))
    assert len({point.name for point in predictions.points}) == 10


def test_the_front_is_a_staircase_and_options_that_are_no_mapping_are_no_sweep(tmp_path):
    values = [(1.0, 0.9), (1.5, 0.5), (2.0, 0.6), (3.0, 0.2)]
    rows = [
        row(method=f"m{number}@1:0", quality="accuracy", options={"verification": options},
            metrics={"speedup": Estimate(value=speedup), "accuracy": Estimate(value=score)})
        for (number, (speedup, score)), options in zip(enumerate(values), (None, "word", {}, []), strict=True)
    ]  # fmt: skip
    write(tmp_path / "board.json", rows)
    (plot,) = quality_speed_plots(read_entries([tmp_path / "board.json"]))
    first, second, third = plot.front
    assert plot.steps == [first, (first[0], second[1]), second, (second[0], third[1]), third]
    assert plot.sweeps == () and first[1] < second[1] < third[1], "downwards, as y grows in a picture"


def test_a_prescribed_acceptance_rate_is_in_no_picture(tmp_path):
    numbers = {"speedup": 2.0, "speedup_expected": 2.0, "accuracy": 0.5}
    rows = [
        row(method=f"m{n}@1:0", quality="accuracy", options={"drafter": drafter},
            metrics={name: Estimate(value=value * (1 + n)) for name, value in numbers.items()})
        for n, drafter in enumerate([{"type": "model"}, {"type": "ngram"}, {"type": "synthetic", "acceptance": 0.95}])
    ]  # fmt: skip
    write(tmp_path / "board.json", rows)
    entries = read_entries([tmp_path / "board.json"])
    (plot,), (points,) = quality_speed_plots(entries), prediction_plots(entries)
    assert len(entries.all) == 3
    assert [point.entry.row.method for point in plot.points if point.is_best] == ["m1@1:0"]
    assert sorted(point.entry.row.method for point in points.points) == ["m0@1:0", "m1@1:0"]


@pytest.mark.parametrize(("score", "low", "high"), [(0.0, 0.0, 1.0), (1.0, 90.0, 100.0), (0.5, 44.0, 56.0)])
def test_axes_of_equal_shares_hold_no_share_that_cannot_be(tmp_path, score, low, high):
    found = {"speedup": Estimate(value=1.5), "accuracy": Estimate(value=score, low=score, high=score)}
    write(tmp_path / "board.json", [row(method=f"m{each}@1:0", quality="accuracy", metrics=found) for each in range(2)])
    (plot,) = quality_speed_plots(read_entries([tmp_path / "board.json"]))
    assert (plot.y.scale.low, plot.y.scale.high) == (low, high) and len(plot.y.scale.ticks) >= 2


def test_the_own_bar_is_marked_and_the_baseline_has_no_verdict_of_its_own(made):
    folder, rows = made
    sd = {each.subset: each for each in rows if each.method == "sd@1:11" and each.task.startswith("task0")}
    for place, subset in enumerate(("en", "ja", "sw", "all")):
        text = (folder / "rows" / f"{digest_of(sd[subset].model_dump(mode='json'))}.html").read_text(encoding="utf-8")
        bars = re.findall(r'<rect class="(bar[^"]*)"', text.partition('id="subsets"')[2])
        assert bars == ["bar own" if number == place else "bar" for number in range(4)]
        assert "By language, and over all" in text and "Δ " in text and "±" not in text
    ar = next(each for each in rows if each.method == "ar@1:00" and each.subset == "all")
    text = (folder / "rows" / f"{digest_of(ar.model_dump(mode='json'))}.html").read_text(encoding="utf-8")
    assert 'data-verdict="baseline">baseline</span>' in text and "By language" not in text
    index = (folder / "index.html").read_text(encoding="utf-8")
    assert '<option value="=baseline">' in index and "Δ " in index and "±" not in index


def test_conditions_are_a_list_of_what_differs_and_a_filter_has_several_values(tmp_path):
    """A site of equal conditions has no column of them; each machine and engine is a section, its name above it."""
    first, other = row(target="org/a", seed=1), row(target="other/b", seed=2, engine="compiled", dtype="bfloat16")
    for rows, machines in (((first,), 1), ((first, other), 2)):
        write(tmp_path / "board.json", rows)
        build([tmp_path / "board.json"], tmp_path / "site", "x")
        text = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
        assert ('data-key="conditions"' in text) is (machines == 2) and 'data-key="load"' not in text
        assert text.count("<tbody>") == machines and text.count('scope="rowgroup"') == (machines if machines > 1 else 0)
        cells = re.search('<th scope="row".*</tr>', text)[0]
        assert len(re.findall("<t[hd]", cells)) == text.count('<th scope="col"') == len(COLUMNS) - 4 + machines
        assert set(re.findall(r'<select id="f-(\w+)"', text)) == (
            {"target", "engine", "dtype", "seed"} if machines > 1 else set()
        )
    assert re.findall(r"<ul>((?:<li>[^<]*</li>)+)</ul>", text)[:2] == [
        "<li>a</li><li>float32</li><li>seed 1</li>", "<li>b</li><li>bfloat16</li><li>seed 2</li>",
    ]  # fmt: skip
    assert "Some CPU, 1 thread · eager<" in text and "Some CPU, 1 thread · compiled<" in text
    assert '<option value="=other/b">b</option>' in text and "float32: mgsm; with org/drafter; 1 row" in text


def test_rows_of_different_machines_stand_apart(tmp_path):
    """Also where a file mixes them, and in the picture of predictions: nothing ranks one machine above another."""
    rows = [
        row(method=f"m{number}:0", device=device, metrics=metrics(random.Random(number)))
        for number, device in enumerate(("one", "two", "one", "two"))
    ]  # fmt: skip
    write(tmp_path / "board.json", rows)
    entries = read_entries([tmp_path / "board.json"])
    assert [entry.row.device for entry in entries.all] == ["one", "one", "two", "two"]
    assert [entry.group_size for entry in entries.all] == [2] * 4
    plots = prediction_plots(entries)
    assert [plot.title.rpartition(", ")[2] for plot in plots] == ["one · eager", "two · eager"]
    assert [{point.entry.row.device for point in plot.points} for plot in plots] == [{"one"}, {"two"}]


def test_a_row_of_impossible_size_has_a_page(tmp_path):
    found = {"speedup": Estimate(value=1e300, low=1e-300, high=1e308)}
    write(tmp_path / "board.json", [row(method=f"m{each}@1:0", metrics=found) for each in range(2)])
    build([tmp_path / "board.json"], tmp_path / "site", "x")
    with pytest.raises(ValidationError):
        Row.model_validate(row().model_dump() | {"accepted_tokens_per_step": (1, -1)})


@pytest.mark.parametrize("value", [1e308, 1e300, -1e308, 1e-300, 3e15])
def test_numbers_that_no_measurement_has_are_short_and_drawn(tmp_path, value):
    """Products and ranges of finite numbers may be infinite."""
    names = ("speedup", "speedup_expected", "tokens_per_second", "tokens_per_second_ar", "accuracy",
             "accuracy_difference", "mean_acceptance_length", "acceptance_rate", "draft_seconds", "verify_seconds",
             "overhead_seconds", "new_tokens")  # fmt: skip
    own = {name: Estimate(value=value, low=-abs(value), high=abs(value)) for name in names}
    rows = [
        row(method=f"m{n}@1:0", quality="accuracy", metrics=each, accepted_tokens_per_step=(10**299, 10**299))
        for n, each in enumerate((own, own, metrics(random.Random(0))))
    ]
    write(tmp_path / "board.json", rows)
    build([tmp_path / "board.json"], tmp_path / "site", "x")
    for name, text in all_pages(tmp_path / "site").items():
        places = [value for _, found in Page(text).elements for key, value in found.items() if key in COORDINATES]
        assert all(math.isfinite(float(each)) for each in places), name
        assert not re.search(r"\d{40}|(\d{3},){15}", text.replace(str(10**299), "")), name


COORDINATES = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width"}


def test_scales_are_round_and_hold_all_values():
    found = scale([0.93, 2.41], 0, 100)
    assert [tick.text for tick in found.ticks][:2] == ["0.75", "1.00"] or found.low <= 0.93
    assert found.low <= 0.93 and found.high >= 2.41 and found(found.low) == 0 and found(found.high) == 100
    for values in ([0.0], [5.0, 5.0], [-3.0, 1e6], [1e-7, 2e-7], [86.4, 86.4]):
        made = scale(values, 10, 90)
        assert 10 <= made(min(values)) <= made(max(values)) <= 90 and 2 <= len(made.ticks) <= 12


def test_numbers_have_signs_as_they_are_read():
    assert [number(value, 1, sign="+") for value in (1.25, -0.31, 0.04, -0.04)] == ["+1.2", "-0.3", "+0.0", "+0.0"]


def test_parts_of_the_overhead_take_its_place():
    parts = {
        "rule_seconds": Estimate(value=0.1),
        "tokenizer_seconds": Estimate(value=0.05),
        "other_seconds": Estimate(value=0.1),
    }
    known = some_rows()[0].metrics | {"tokens_per_second": Estimate(value=250.0)}
    assert list(time_parts(row(metrics=known))) == ["draft", "verify", "overhead"]
    found = time_parts(row(metrics=known | parts))
    assert list(found) == ["draft", "verify", "rule and sampling", "tokenizer", "other"]
    assert sum(found.values()) == pytest.approx(4.0)
    assert time_parts(row(metrics={})) == {}


def test_accepted_tokens_per_step_are_those_of_the_records(tmp_path):
    run_into(tmp_path / "run", "sd,draft-only", subsets=("en",))
    entries = read_entries([tmp_path / "run" / "leaderboard.json"])
    found = {entry.row.method_name: accepted_counts(entry.side) for entry in entries.all}
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    steps = [step for record in records for step in record["methods"]["sd"]["steps"]]
    assert sum(found["sd"][0]) == len(steps)
    assert sum(k * count for k, count in enumerate(found["sd"][0])) == sum(step[2] for step in steps)
    assert not found["draft-only"][0] and "one model" in found["draft-only"][1] and "one model" in found["ar"][1]


@pytest.fixture
def board(tmp_path):
    write(tmp_path / "board.json", some_rows(1)[-10:])
    return tmp_path / "board.json"


def test_an_earlier_site_is_replaced_and_nothing_else(specbench, board, tmp_path):
    code, out, err = specbench("site", board, "--output", "site")
    assert (code, err) == (0, "") and out == "site/index.html: 10 rows, 15 files\n"
    write(board, load(board)[:3])
    code, out, _ = specbench("site", board, "--output", "site")
    assert code == 0 and len(list((tmp_path / "site" / "rows").iterdir())) == 3
    assert sorted(each.name for each in tmp_path.iterdir() if not each.name.endswith(".lock")) == ["board.json", "site"]
    (tmp_path / "site" / "thesis.txt").write_text("mine")
    code, _, err = specbench("site", board, "--output", "site")
    assert code == 2 and "holds thesis.txt" in err and MARK in err and (tmp_path / "site" / "thesis.txt").exists()


MISTAKES = [
    ("board.json", "is a file"),
    (".", "is the current folder"),
    ("full", "holds a.txt, which belongs to no earlier site"),
    ("faked", "holds a.txt"),
]


@pytest.mark.parametrize(("out", "told"), MISTAKES)
def test_a_folder_that_is_no_site_is_refused(specbench, board, tmp_path, out, told):
    for name in ("full", "faked"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("")
    (tmp_path / "faked" / MARK).write_text('{"kind": "other", "files": ["a.txt"]}')
    code, _, err = specbench("site", board, "--output", out)
    assert code == 2 and err.startswith("error: --output ") and told in err and err.count("\n") == 1


def test_files_without_rows_are_refused(specbench, tmp_path):
    write(tmp_path / "empty.json", [])
    code, _, err = specbench("site", "empty.json", "--output", "site")
    assert code == 2 and "no rows" in err and not (tmp_path / "site").exists()
    code, _, err = specbench("site", "absent.json", "--output", "site")
    assert code == 2 and "cannot be read" in err


def test_two_builds_of_one_site_do_not_mix(board, tmp_path):
    with locked(lock_of(tmp_path / "site"), wait=False), pytest.raises(ConfigError, match="another process"):
        build([board], tmp_path / "site", "x")


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_killed_build_leaves_the_earlier_site_and_the_next_one_cleans_up(tmp_path):
    write(tmp_path / "board.json", many_rows(150))
    write(tmp_path / "few.json", some_rows(1)[:4])
    site, building = tmp_path / "site", tmp_path / ".site.building"
    build([tmp_path / "few.json"], site, "x")
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    start = multiprocessing.get_context("fork").Process
    process = start(target=build, args=([tmp_path / "board.json"], site, "x"))
    process.start()
    while process.is_alive() and not (building / "rows").is_dir():
        time.sleep(0.002)
    process.kill()
    process.join()
    assert (building / "rows").is_dir() and not (building / "index.html").exists()
    assert before == {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    build([tmp_path / "few.json"], site, "x")
    assert not building.exists() and before == {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}


def test_a_site_that_cannot_be_put_in_place_leaves_the_earlier_one(board, tmp_path, monkeypatch):
    build([board], tmp_path / "site", "x")
    rename = os.rename

    def failing(source, target):
        if str(source).endswith(".building"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr("specbench.core.files.os.rename", failing)
    with pytest.raises(ConfigError, match=r"No space left on device\); an earlier site is unchanged"):
        build([board], tmp_path / "site", "y")
    assert "<title>Results – x</title>" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


def test_what_nothing_compares_is_shown_as_stated():
    evidence = Evidence(task="mgsm", subsets=("en",), num_prompts=8, num_draws=600, temperature=1, p_value=0.25)
    width = {"tolerance": 0.5, "share_equal": 0.25}
    result = dict(dict(provenance(row(batch_width=width), "0" * 16))["Result"])
    assert result["batch_width.tolerance"] == "0.5" and result["batch_width.share_equal"] == "0.25"
    shown = dict(provenance(row(evidence=evidence, verdict="lossless"), "0" * 16))
    (stated,) = (text for heading, text in shown.items() if heading.startswith("Stated"))
    assert {"evidence.p_value", "fairness", "run"} <= {name for name, _ in stated}
    others = [name for heading, facts in shown.items() if not heading.startswith("Stated") for name, _ in facts]
    assert not any("evidence" in name for name in others)
    page = verdict_of(row(evidence=evidence, verdict="lossless", sampling={"temperature": 0.0}))
    assert page.endswith("stated: its report was not kept")
