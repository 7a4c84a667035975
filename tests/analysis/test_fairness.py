"""`specbench fairness` on a small run of the embedded pair, and what it says of mistakes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specbench.analysis.fairness.drafters import DrafterEntry, make_labels, texts_of
from specbench.analysis.fairness.fairness import add_fairness, fairness_report, read_run
from specbench.analysis.fairness.groups import BoundViolation, check_fitness
from specbench.analysis.fairness.tables import (
    MIN_MASS,
    bounds_table,
    comparison_table,
    exclusion_notes,
    forced_table,
    measured_table,
)
from specbench.core.errors import ConfigError
from specbench.models.loading import load_model
from specbench.results.fairness import FairnessSummary, GroupNumbers
from specbench.results.leaderboard import load
from specbench.results.row import DIGEST, digest_of
from specbench.results.runs import RecordedRun
from specbench.specs.run_options import RunOptions
from tests.support.records import generation as make_generation
from tests.support.records import record as make_record
from tests.support.rows import row as leaderboard_row
from tests.support.runs import DRAFTER, NAMES, TARGET, run_into


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run of sd and ngram on five prompts of three languages, the fewest that have intervals."""
    path = tmp_path_factory.mktemp("fairness") / "first"
    run_into(path, limit=5, leaderboard=path.parent / "board.json")
    return path


@pytest.fixture(scope="module")
def worse(tmp_path_factory, folder):
    """The same with a drafter whose weights are disturbed."""
    path = tmp_path_factory.mktemp("worse")
    model = load_model(DRAFTER, device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter += 0.3 * parameter.std() * torch.randn_like(parameter) if parameter.ndim > 1 else 0
    model.model.save_pretrained(path / "drafter")
    model.tokenizer.save_pretrained(path / "drafter")
    run_into(path / "second", "sd", drafter=str(path / "drafter"), limit=5)
    return path / "second"


def asked(*runs, subsets=None, **given):
    return fairness_report([str(run) for run in runs], RunOptions(subsets=subsets), **given)


@pytest.fixture(scope="module")
def found(folder):
    return asked(folder)


def test_measured_numbers_are_those_of_the_run(found, folder):
    rows = {(row.method_name, row.subset): row.metrics for row in load(folder / "leaderboard.json")}
    for drafter in found.drafters:
        for name, group in drafter.groups.items():
            row = rows[drafter.method, name]
            for metric in ("acceptance_rate", "mean_acceptance_length", "speedup"):
                assert getattr(group.measured, metric).value == pytest.approx(row[metric].value)
        assert drafter.cost_ratio == pytest.approx(rows[drafter.method, "all"]["cost_ratio"].value)


def test_all_drafters_stand_on_the_positions_of_the_targets_own_tokens(found, folder):
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    for name in NAMES:
        num_tokens = sum(len(r["methods"]["ar"]["token_ids"]) for r in records if r["subset"] == name)
        groups = [drafter.groups[name].forced for drafter in found.drafters]
        assert {group.num_positions for group in groups} == {num_tokens}
        assert len({group.target_misfit.value for group in groups}) == 1


def test_a_drafter_that_is_the_target_accepts_everything(folder):
    report = asked(folder, drafters=[TARGET], subsets=["en"])
    same = next(drafter for drafter in report.drafters if drafter.method is None)
    group = same.groups["en"].forced
    assert group.kl.value == pytest.approx(0, abs=1e-9) and group.acceptance_rate.value == pytest.approx(1, abs=1e-6)
    assert same.groups["en"].measured is None and same.cost_ratio is None and same.groups["en"].forced.speedup is None


def test_the_forced_numbers_are_those_of_single_passes(found, folder):
    """The same means from the models fed text by text, with other code."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    target, drafter = (load_model(name, device="cpu") for name in (TARGET, DRAFTER))
    from specbench.specs.catalogue import load_task
    from specbench.tasks.examples import load_examples

    examples = load_examples(load_task("mgsm"), "sw", data="sample", use_sample=True, limit=5).examples
    overlaps, entropies, losses = [], [], []
    for record in (record for record in records if record["subset"] == "sw"):
        ids = target.encode_prompt(examples[record["example"]].prompt, chat=False)
        new = record["methods"]["ar"]["token_ids"]
        p, q = (
            torch.softmax(model.score((ids + new)[:-1], len(new)).logits.float(), -1) for model in (target, drafter)
        )
        overlaps += torch.minimum(p, q).sum(-1).tolist()
        entropies += (-(p * q.log()).sum(-1)).tolist()
        losses += (-q[range(len(new)), new].log()).tolist()
    group = found.drafters[0].groups["sw"].forced
    assert group.acceptance_rate.value == pytest.approx(sum(overlaps) / len(overlaps), abs=1e-4)
    assert group.cross_entropy.value == pytest.approx(sum(entropies) / len(entropies), abs=1e-3)
    assert group.token_loss.value == pytest.approx(sum(losses) / len(losses), abs=1e-3)
    assert group.cross_entropy.value - group.token_loss.value > 0.1, "two numbers, which the caption tells apart"


def test_a_measured_rate_in_the_place_of_the_forced_one_breaks_theorem_2(found):
    """Control: the check must fail on numbers of the other family."""
    broken = 0
    for group in found.drafters[0].groups.values():
        misfits = group.forced.target_misfit.value, group.forced.draft_misfit.value
        check_fitness("forced", group.forced.acceptance_rate.value, *misfits)
        try:
            check_fitness("measured", group.measured.acceptance_rate.value, *misfits)
        except BoundViolation as error:
            broken += "r_p" in str(error)
    assert broken


def test_a_violation_ends_the_command_with_its_numbers(specbench, folder, monkeypatch):
    from specbench.analysis.fairness import drafters as forced_module

    def wrong(*arguments):
        numbers = real(*arguments)
        numbers[:, 3] = 0.01  # acceptance of another family
        return numbers

    real = forced_module.position_numbers
    monkeypatch.setattr(forced_module, "position_numbers", wrong)
    code, _, err = specbench("fairness", folder, "--samples", "0", "--subset", "en")
    assert code == 2 and "theorem" in err and "of_acceptance" in err and "Traceback" not in err


def test_before_and_after(folder, worse):
    report = asked(before=f"{folder}:sd", after=str(worse))
    comparison = report.comparison
    assert (comparison.before, comparison.after) == ("first:sd", "second:sd") and report.num_prompts == 15
    for change in (comparison.groups[name]["cross_entropy"] for name in NAMES):
        assert change.after.value > change.before.value and change.difference.low > 0
    rate = comparison.family["forced_acceptance_rate.mean"]
    assert rate.difference.high < 0 and rate.percent.value < 0
    assert {"unfairness", "acceptance_rate.variance", "speedup.max_over_min"} <= comparison.family.keys()


def test_numbers_reach_the_leaderboard_and_the_picture(specbench, folder, tmp_path):
    board = tmp_path / "board.json"
    shutil.copy(folder.parent / "board.json", board)
    pytest.importorskip("matplotlib")
    picture = tmp_path / "made" / "fair.png"
    code, out, err = specbench("fairness", folder, "--samples", "4", "--prompt", " ", "--leaderboard", board,
                               "--json", "--plot", picture)  # fmt: skip
    assert code == 0 and f"{board}: fairness written to 8 rows\n" in err
    assert picture.read_bytes()[:4] == b"\x89PNG" and f"picture: {picture}\n" in err
    report = json.loads(out)
    assert report["drafters"][0]["prompt_represented"].endswith(" ")
    by_place = {(row.method_name, row.subset): row.fairness for row in load(board)}
    assert by_place["ngram", "all"].excluded["en"] == by_place["ngram", "en"].forced.excluded > 0
    assert isinstance(by_place["sd", "sw"], GroupNumbers) and isinstance(by_place["ngram", "all"], FairnessSummary)
    assert by_place["ar", "sw"] is None
    assert by_place["sd", "all"].unfairness.value == report["drafters"][0]["family"]["unfairness"]["value"]
    assert by_place["sd", "en"].representation_rank is not None
    assert load(folder / "leaderboard.json")[0].key in {row.key for row in load(board)}


def test_tables_fit_the_terminal_and_say_who_is_left_behind(specbench, folder, worse):
    code, out, _ = specbench("fairness", "--before", f"{folder}:sd", "--after", worse, folder, "--samples", "0")
    assert code == 0
    assert all(len(line) <= 100 for line in out.splitlines()) and "…" not in out
    for part in ("first:sd: measured", "ngram: teacher-forced", "unfairness (𝒰): ", "worst ",
                 "ngram: expected speed-up", "(theorems 1 and 2", "second:sd − first:sd",
                 "variance of acceptance rate (α_T)"):  # fmt: skip
        assert part in out


def assert_in_one_part(drafter, report):
    """The last columns do not stand in a table of their own, with intervals too."""
    for table in (forced_table(drafter, report), bounds_table(drafter)):
        assert len(table._parts(80)) == 1
        assert all(
            len(column.heading.split("(")) == 2 and not column.heading.startswith("(") for column in table.columns[1:]
        )


def test_teacher_forced_tables_fit_80_columns_in_one_part_each(found):
    """The groups of a small target in which D is below 10."""
    for drafter in found.drafters:
        assert max(drafter.groups[name].forced.cross_entropy.value for name in ("en", "de")) < 10
        groups = {name: drafter.groups[name] for name in ("en", "de")}
        assert_in_one_part(drafter.model_copy(update={"groups": groups}), found)


@pytest.mark.slow
def test_tables_of_all_groups_of_the_embedded_target_fit_80_columns_in_one_part_each(tmp_path):
    run_into(tmp_path / "run", limit=5, target=None)
    report = asked(tmp_path / "run")
    for drafter in report.drafters:
        assert tuple(drafter.groups) == NAMES
        assert_in_one_part(drafter, report)


def test_divergences_that_count_excluded_tokens_are_marked(found, folder):
    """The n-gram model gives many tokens no probability, the draft model none of them."""
    sd, ngram = found.drafters
    for drafter in (sd, ngram):
        assert drafter.family.excluded == {name: group.forced.excluded for name, group in drafter.groups.items()}
    assert max(sd.family.excluded.values()) < MIN_MASS < min(ngram.family.excluded.values())
    for drafter, is_marked in ((sd, False), (ngram, True)):
        forced = forced_table(drafter, found)
        d, _, kl, alpha, *_ = next(row[1:] for row in forced.rows if row[0] == "en")
        assert [cell.endswith("*") for cell in (d, kl, alpha)] == [is_marked, is_marked, False]
        assert any("unfairness (𝒰): " in line and "*, the mean" in line for line in forced.caption) is is_marked
        assert any("* by convention" in line for line in forced.caption) is is_marked
    assert exclusion_notes({"sd": sd.family.excluded}) == []
    assert exclusion_notes({"a": {"en": 0.034, "de": 0.0}, "b": {"en": 0.0}})[1:] == ["a excludes 3.4 % in en"]
    change = asked(before=f"{folder}:sd", after=f"{folder}:ngram").comparison
    assert (change.excluded_before, change.excluded_after) == (sd.family.excluded, ngram.family.excluded)
    table = comparison_table(change)
    assert all(row[1].endswith("*") for row in table.rows) and any("ngram excludes" in line for line in table.caption)
    assert [line.partition(":")[0] for line in table.caption if line.endswith("*")] == [
        "unfairness (𝒰)", "mean of cross-entropy (D)", "mean of divergence (KL)",
    ]  # fmt: skip


def test_alpha_t_of_a_drafter_without_a_run_is_that_of_the_run(folder):
    """The drafter of sd by name: the same α_T, which is not the α that the run measured."""
    sd, _, same = asked(folder, drafters=[DRAFTER], subsets=["sw"]).drafters
    forced = sd.groups["sw"].forced.acceptance_rate.value
    assert same.groups["sw"].forced.acceptance_rate.value == forced != sd.groups["sw"].measured.acceptance_rate.value


def test_one_group_has_no_statistics_over_groups(specbench, folder):
    words = ("--before", f"{folder}:sd", "--after", f"{folder}:ngram", "--samples", "0", "--subset")
    code, one, _ = specbench("fairness", *words, "en")
    _, several, _ = specbench("fairness", *words, "en,sw")
    assert code == 0
    for part in ("variance", "max/min", "worst", "unfairness", "𝒰", "mean of acceptance rate (α_T)"):
        assert part in several and part not in one
    assert "\nacceptance rate (α_T): 0." in one


def test_rows_that_a_leaderboard_lacks_are_counted_with_what_adds_them(specbench, folder, found, tmp_path):
    board = tmp_path / "board.json"
    content = json.loads((folder.parent / "board.json").read_text(encoding="utf-8"))
    content["rows"] = [row for row in content["rows"] if row["subset"] != "sw"]
    board.write_text(json.dumps(content), encoding="utf-8")
    said, add = add_fairness(board, found), f"specbench leaderboard add {folder} --leaderboard {board}"
    assert said.startswith("fairness written to 6 rows; not in it: 2 rows of") and f"run `{add}`, then" in said
    assert specbench(*add.split()[1:])[0] == 0
    assert add_fairness(board, found) == "fairness written to 8 rows"
    board.write_text(json.dumps({**content, "rows": []}), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"--leaderboard {board}: no rows updated; not in it: 8 rows of") as error:
        add_fairness(board, found)
    assert add in str(error.value)


def test_references_of_the_data(folder):
    group = asked(folder, reference="data", subsets=["en"]).drafters[0].groups["en"].forced
    assert group.num_positions >= 5 and group.target_misfit.value > 0.5  # the bare number is not what it would write


def test_routes_are_forced_each_by_its_own_drafter(tmp_path):
    run_into(tmp_path / "run", "routed,ngram,sd", subsets=("en", "sw"), limit=1)
    report = asked(tmp_path / "run")
    routed, ngram, sd = report.drafters
    assert routed.problem is None and routed.cost_ratio is None
    assert routed.groups["sw"].forced.cross_entropy == ngram.groups["sw"].forced.cross_entropy
    assert routed.groups["sw"].forced.tokens_per_pass == ngram.groups["sw"].forced.tokens_per_pass
    assert sd.groups["sw"].forced.cross_entropy != routed.groups["sw"].forced.cross_entropy
    assert routed.groups["en"].forced.acceptance_rate.value is not None
    captions = [measured_table(drafter).caption[0] for drafter in report.drafters]
    assert "draft tokens sw 3, default 5; run" in captions[0] and ", 5 draft tokens; run" in captions[2]


def of_routes(lengths):
    """A drafter of a run in which all groups take both routes, with γ of each as its rows tell them."""
    options = {"routes": {route: {} if own is None else {"num_draft_tokens": own} for route, own in lengths.items()}}
    row = leaderboard_row(method="mine@1:abc", num_draft_tokens=8, options=options | {"taken": list(lengths)})
    run = RecordedRun(Path("a-run"))
    vars(run)["rows"] = [row]
    return DrafterEntry("mine", run, "mine", {})


def test_every_route_has_the_draft_length_that_its_rows_tell():
    entry = of_routes({"sw": 8, "default": 4})
    assert [entry.num_draft_tokens(route) for route in ("sw", "default")] == [8, 4]
    with pytest.raises(ConfigError, match=r"run 'a-run': .*'mine'.* no options\.routes\.default\.num_draft_tokens"):
        of_routes({"sw": 8, "default": None}).num_draft_tokens("default")


MISTAKES = {
    "no run is given": [],
    "no such folder": ["nowhere"],
    "has no leaderboard.json": ["."],
    "no method 'sdd' that drafts: did you mean 'sd'?": ["{run}:sdd"],
    "--before: needs --after as well": ["--before", "{run}"],
    "drafts with sd, ngram: choose one, as": ["--before", "{run}", "--after", "{run}:ngram"],
    "--before and --after are the same": ["--before", "{run}:sd", "--after", "{run}:sd"],
    "--reference dat: did you mean 'data'?": ["{run}", "--reference", "dat"],
    "--samples -1": ["{run}", "--samples", "-1"],
    "--subset fr: the runs have none": ["{run}", "--subset", "fr"],
    "--drafter embedded:drafter-bpe: drafter": ["{run}", "--drafter", "embedded:drafter-bpe", "--samples", "0"],
    "no such file: `specbench run --leaderboard": ["{run}", "--leaderboard", "none.json"],
    "unknown picture format": ["{run}", "--plot", "fair.doc"],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line(specbench, folder, message):
    code, out, err = specbench("fairness", *(word.format(run=folder) for word in MISTAKES[message]))
    assert code == 2 and out == "" and message in err and len(err.strip().splitlines()) == 1


def edited(folder, tmp_path, change):
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "leaderboard.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for row in content["rows"]:
        change(row)
        row[DIGEST] = digest_of(row)
    path.write_text(json.dumps(content), encoding="utf-8")
    return copy


def test_a_drafter_that_changed_since_is_refused(folder, tmp_path):
    copy = edited(folder, tmp_path, lambda row: row.update(drafter_revision="local-000000000000"))
    with pytest.raises(ConfigError, match=f"model '{DRAFTER}' has changed since the run"):
        asked(copy)


def test_runs_of_two_targets_do_not_compare(folder, tmp_path):
    copy = edited(folder, tmp_path, lambda row: row.update(target="another"))
    with pytest.raises(ConfigError, match="runs of several targets cannot be compared"):
        asked(folder, copy)


def test_other_data_than_were_measured_are_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "records.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    records[0]["prompt"] = "0" * 12
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mgsm/en example .* was measured with a different prompt"):
        asked(copy)


def test_reading_a_run_changes_nothing(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    run, methods = read_run(str(folder))
    assert methods == ["sd", "ngram"] and len(run.records) == 15
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_labels_say_the_run_where_the_method_is_not_enough(folder, worse):
    first, second = read_run(str(folder))[0], read_run(str(worse))[0]
    made = make_labels([(first, ["sd", "ngram"]), (second, ["sd"])])
    assert list(made.values()) == ["first:sd", "ngram", "second:sd"]
    elsewhere = replace(second, path=Path("elsewhere/first"))
    assert [*make_labels([(first, ["sd"]), (elsewhere, ["sd"])]).values()] == [f"{folder}:sd", "elsewhere/first:sd"]


def test_positions_beyond_the_shortest_context_are_left_out():
    def cut(context_limit):
        key = ("mgsm", "en", 0, 0, 0)
        record = make_record({"ar": make_generation(token_ids=[4, 5, 6])})
        common = SimpleNamespace(keys={key[:2]: [key]}, runs=[SimpleNamespace(records={key: record})])
        prompts = {key: SimpleNamespace(prompt_ids=(1, 2, 3))}
        return texts_of(common, prompts, None, "continuation", context_limit)[key].ids

    assert cut(4) == (1, 2, 3, 4, 5)
    assert cut(3) == (1, 2, 3, 4)
    with pytest.raises(ConfigError, match="no text has a position"):
        cut(2)
    assert cut(None) == (1, 2, 3, 4, 5, 6)
