"""A board repository: what it accepts, what its check says, what is made of its bundles, and rows that are measured
again."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from specbench.cli import make_app
from specbench.core.errors import ConfigError
from specbench.publish.board import rerun as reruns
from specbench.publish.board.check import check_submission
from specbench.publish.board.differences import _beyond
from specbench.publish.board.init import WORKFLOW, init_board
from specbench.publish.board.merge import BoardRow, by_file, first_runs, merge_board
from specbench.publish.board.rerun import TORCH_BUILD, find_row
from specbench.publish.board.spec import BoardSpec, read_board
from specbench.publish.bundle.agreement import MeasuredRow
from specbench.publish.bundle.signature import sign
from specbench.results.leaderboard import load
from specbench.results.level import STATED
from specbench.results.row import Row
from specbench.results.runs import RecordedRun
from specbench.specs.catalogue import load_method, versioned_name
from specbench.specs.components import build
from specbench.statistics.bootstrap import Estimate
from tests.publish.test_bundle import key as key  # a throw-away ssh key
from tests.publish.test_bundle import needs_ssh
from tests.support.board_repositories import bundle_of, git, new_board, set_key, submission
from tests.support.bundles import independent_runs
from tests.support.runs import run_into

Specbench = Callable[..., tuple[int, str, str]]
needs_shell = pytest.mark.skipif(shutil.which("bash") is None, reason="GitHub's runners have bash")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two independent runs of one configuration."""
    return independent_runs(tmp_path_factory.mktemp("runs"), 2)


@pytest.fixture(scope="module")
def bundles(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return [bundle_of(run, folder / f"{name}.tar.gz") for run, name in zip(runs, ("ada", "bob"), strict=True)]


@pytest.fixture(scope="module")
def shorter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another configuration: one example less."""
    folder = tmp_path_factory.mktemp("shorter") / "run"
    run_into(folder, "sd", subsets=("en",), limit=5)
    return folder


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_board(tmp_path_factory.mktemp("empty") / "board")


@pytest.fixture(scope="module")
def merged(bundles: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board with one bundle, whose rows are made."""
    board = new_board(tmp_path_factory.mktemp("merged") / "board", bundles[0])
    merge_board(board)
    return board


@pytest.fixture
def row(merged: Path) -> Row:
    [file] = (merged / "leaderboards").glob("*.json")
    return next(row for row in load(file) if row.method_name == "sd")


def name_of(board: Path) -> str:
    """The name of the row of sd, as BOARD.md has it."""
    found = re.findall(r"^\| (\w{8}) \| mgsm@\d+ \| en \| sd \|", (board / "BOARD.md").read_text("utf-8"), re.M)
    assert len(found) == 1
    return str(found[0])


# 1. init


def test_a_new_board_works_at_once(specbench: Specbench, tmp_path: Path) -> None:
    assert specbench("board", "init", "board", "--title", 'My "board"', "--task", "mgsm,gsm8k")[0] == 0
    assert specbench("board", "check", "board")[:2] == (0, "ok: board (0 bundles, 0 rows)\n")
    board = read_board(tmp_path / "board")
    assert board.title == 'My "board"' and [each.task for each in board.tasks] == ["mgsm", "gsm8k"]
    assert "No rows yet" in (tmp_path / "board" / "BOARD.md").read_text("utf-8")
    rules = (tmp_path / "board" / "RULES.md").read_text("utf-8")
    assert "`mgsm`; `gsm8k`" in rules and "targets: any" in rules and "memorised prompts" in rules
    assert "git push origin my-submission" in rules, "a new branch has nothing to push to otherwise"
    code, _, err = specbench("board", "init", "board")
    assert code == 2 and "board: is not empty" in err


def test_the_workflow_calls_commands_that_exist_and_runs_nothing_of_a_submission(empty: Path) -> None:
    """The rules and the workflow are the board's; jobs that read bundles may not write, and those that write read
    none."""
    text = (empty / WORKFLOW).read_text("utf-8")
    workflow = yaml.load(text, yaml.BaseLoader)
    assert set(workflow["on"]) == {"pull_request_target", "push"} and workflow["permissions"] == {}
    jobs = workflow["jobs"]
    reading = {name for name, job in jobs.items() if any("specbench" in str(step.get("run")) for step in job["steps"])}
    assert reading == {"check", "merge"}
    for name, job in jobs.items():
        uses = {str(step["uses"]).split("@")[0]: step.get("with", {}) for step in job["steps"] if "uses" in step}
        if name in reading:
            assert job["permissions"] == {"contents": "read"}
            assert uses["actions/checkout"]["persist-credentials"] == "false"
        else:
            assert not uses.keys() & {"actions/setup-python"} and job["needs"] in reading
    assert {name: job["permissions"] for name, job in jobs.items() if name not in reading} == {
        "comment": {"pull-requests": "write"}, "commit": {"contents": "write"},
        "pages": {"pages": "write", "id-token": "write"},
    }  # fmt: skip
    assert jobs["check"]["steps"][0]["with"]["path"] == "submission"
    assert [str(step["uses"]).split("@")[0] for step in jobs["commit"]["steps"] if "uses" in step] == [
        "actions/checkout", "actions/download-artifact",
    ], "a checkout of the board, which the push of a submission cannot change"  # fmt: skip
    [deploying] = jobs["pages"]["steps"]
    assert jobs["pages"]["environment"]["name"] == "github-pages", "GitHub refuses a site without an environment"
    assert f"steps.{deploying['id']}.outputs.page_url" in jobs["pages"]["environment"]["url"]
    group = typer.main.get_command(make_app(["board"]))
    commands = [line for line in re.findall(r"run: (specbench .*)", text)]
    assert len(commands) == 2 and "<" not in "".join(commands)
    for command in commands:
        group.make_context("specbench", shlex.split(command)[1:], resilient_parsing=False)
    installs = re.findall(r'pip install .*"(.*)"', text)
    assert len(set(installs)) == 1 and installs[0].startswith("specbench-lm==")
    untrusted = r"\$\{\{ *github\.(head_ref|event\.pull_request\.(title|body|head\.(ref|label)))"
    assert not re.search(untrusted, text), "texts of strangers in a shell"


def test_the_workflow_is_of_github_s_form(empty: Path) -> None:
    """As far as a schema tells without GitHub: keys and values of every job, and what its parts name of each other."""
    schemas = pytest.importorskip("check_jsonschema.builtin_schemas", reason="pip install check-jsonschema")
    validator = jsonschema.Draft7Validator(schemas.get_builtin_schema("vendor.github-workflows"))
    text = (empty / WORKFLOW).read_text("utf-8")

    def parsed(text: str) -> Any:  # YAML 1.1 reads the key on as true
        return {"on" if key is True else key: value for key, value in yaml.safe_load(text).items()}

    assert [error.message for error in validator.iter_errors(parsed(text))] == []
    for right, wrong in (("contents: read", "contents: some"), ("runs-on:", "runs_on:"), ("needs: merge", "needs: 1")):
        assert not validator.is_valid(parsed(text.replace(right, wrong))), "a control"
    jobs = parsed(text)["jobs"]
    for job in jobs.values():
        needed = {job["needs"]} if "needs" in job else set()
        assert needed <= jobs.keys()
        written = json.dumps(job)
        assert set(re.findall(r"needs\.(\w+)\.", written)) <= needed
        assert set(re.findall(r"steps\.(\w+)\.", written)) <= {step.get("id") for step in job["steps"]}
        for name, output in re.findall(r"needs\.(\w+)\.outputs\.(\w+)", written):
            assert output in jobs[name]["outputs"]
    uploaded, fetched = (
        {step["with"]["name"] for job in jobs.values() for step in job["steps"] if f"/{verb}-artifact" in str(step)}
        for verb in ("upload", "download")
    )
    assert uploaded == fetched


@needs_shell
def test_what_the_job_that_commits_does(merged: Path, tmp_path: Path) -> None:
    """Its script in a clone: rows of a merge are pushed, nothing else is; without news, and after another push, it
    succeeds and pushes nothing."""
    steps = yaml.safe_load((merged / WORKFLOW).read_text("utf-8"))["jobs"]["commit"]["steps"]
    [script] = [step["run"] for step in steps if "run" in step]
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "origin.git")
    board = new_board(tmp_path / "board")
    git(board, "init", "-q", "-b", "main")
    git(board, "add", "-A")
    git(board, "commit", "-q", "-m", "A board")
    git(board, "remote", "add", "origin", "../origin.git")
    git(board, "push", "-q", "-u", "origin", "main")

    def run_job(begun_at: str) -> None:
        rows = tmp_path / "runner" / "rows"
        rows.mkdir(parents=True)
        for name in ("leaderboards", "BOARD.md", "RULES.md"):
            (shutil.copytree if (merged / name).is_dir() else shutil.copy)(merged / name, rows / name)
        clone = tmp_path / "runner" / "work"
        git(tmp_path, "clone", "-q", "origin.git", str(clone))
        git(clone, "reset", "-q", "--hard", begun_at)
        environment = os.environ | {"RUNNER_TEMP": str(rows.parent), "GITHUB_SHA": begun_at}
        subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], cwd=clone, env=environment, check=True)
        shutil.rmtree(rows.parent)

    def pushed() -> str:
        return git(tmp_path / "origin.git", "rev-parse", "main").strip()

    first = pushed()
    run_job(first)
    second = pushed()
    changed = git(board, "fetch", "-q") + git(board, "diff", "--name-only", first, second)
    assert second != first and {name.split("/")[0] for name in changed.split()} == {"leaderboards", "BOARD.md"}
    run_job(second)
    assert pushed() == second, "nothing new"
    run_job(first)
    assert pushed() == second, "the run of the later push has these rows, too"


# 2. board.yaml


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({}, "title"),
        ({"title": "x", "task": []}, "unknown key 'task': did you mean 'tasks'"),
        ({"title": "x", "conditions": {"dtypes": "float32"}}, "conditions.dtypes: rows have no such condition"),
        ({"title": "x", "conditions": {"metrics.speedup": 9}}, "no such condition"),
        ({"title": "x", "oldest": {"torch": "new"}}, "write a version in quotes"),
        ({"title": "x", "oldest": {"torch": 2.6}}, "oldest.torch"),
        ({"title": "x", "refused_marks": ["loop"]}, "no rule 'loop': did you mean 'loops'"),
        ({"title": "x", "texts": "yes"}, "required"),
        ({"title": "x", "tolerance": 0}, "tolerance"),
    ],
)
def test_a_wrong_board_yaml_is_one_line(content: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(word)):
        build(BoardSpec, content, "board.yaml: ")


MISFITS: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"tasks": ({"task": "mgsm"},)}, None),
    ({"tasks": ({"task": "mgsm@4"}, {"task": "gsm8k"})}, None),
    ({"tasks": ({"task": "mgsm@1"},)}, "task = mgsm@4:"),
    ({"tasks": ({"task": "mgsm", "examples": 7},)}, "n = 6: board.yaml asks for 7"),
    ({"targets": ({"name": "embedded:drafter"},)}, None),
    ({"targets": ({"name": "embedded:drafter", "revision": "other"},)}, "target = embedded:drafter at"),
    ({"targets": ({"name": "Qwen/Qwen3-8B"},)}, "board.yaml has Qwen/Qwen3-8B"),
    ({"conditions": {"sampling.temperature": 0, "dtype": ("float32", "bfloat16"), "chat": False}}, None),
    ({"conditions": {"sampling.temperature": 1}}, "sampling.temperature = 0.0: board.yaml has"),
    ({"conditions": {"seed": False}}, "seed = 0"),
    ({"conditions": {"shots.digest": "x"}}, "shots.digest"),
    ({"oldest": {"torch": "2.0", "specbench": "0.1.0"}}, None),
    ({"oldest": {"torch": "99"}}, "versions.torch = 2."),
    ({"oldest": {"numpy": "1"}}, "versions.numpy = not recorded"),
]


@pytest.mark.parametrize(("keys", "word"), MISFITS)
def test_what_a_board_does_not_accept_of_a_row(row: Row, keys: dict[str, Any], word: str | None) -> None:
    found = list(BoardSpec(title="x", **keys).misfits(row))
    assert found == [] if word is None else [each for each in found if word in each] == found != []


def test_subsets_that_a_board_asks_for(row: Row) -> None:
    board = BoardSpec(title="x", tasks=({"task": "mgsm", "subsets": ("en", "de")},))  # type: ignore[arg-type]
    [line] = board.absent_subsets([row])
    assert "sd: subset = en: board.yaml asks for de, too: measure with --subset en,de" in line
    assert list(board.absent_subsets([row, row.model_copy(update={"subset": "de"})])) == []
    whole = row.model_copy(update={"subset": "all", "subsets": {"en": 3, "de": 3}})
    assert list(board.absent_subsets([whole])) == []


# 3. check


def test_a_new_row_is_shown_beside_nothing(empty: Path, bundles: list[Path], tmp_path: Path) -> None:
    found = check_submission(submission(empty, tmp_path / "mine", bundles[0]), str(empty))
    assert found.problems == [] and (found.num_bundles, found.num_rows) == (1, 2)
    assert found.table is not None
    [cells] = found.table.rows
    assert cells[1:5] == ["ada.tar.gz", "mgsm", "en", "sd"] and "the first of its kind" in cells[-1]
    assert found.markdown().startswith("## Accepted: 1 bundle, 2 rows")


def test_a_run_of_the_same_configuration_is_a_rerun(merged: Path, bundles: list[Path], tmp_path: Path) -> None:
    """It is paired with the board's run; its E_n and its answers are told, and the level has the mark."""
    found = check_submission(submission(merged, tmp_path / "mine", bundles[1]), str(merged))
    assert found.problems == [] and found.table is not None
    [cells] = found.table.rows
    assert re.search(r"re-run: (agrees with|differs from) ada.tar.gz:run0", cells[-1])
    assert "E_n" in "".join(cells) and re.search(r"recomputed · 2 runs (agree|differ)", cells[-2])


def test_a_row_of_other_conditions_stands_beside_the_nearest(merged: Path, shorter: Path, tmp_path: Path) -> None:
    found = check_submission(
        submission(merged, tmp_path / "mine", bundle_of(shorter, tmp_path / "carol.tar.gz")), str(merged)
    )
    assert found.problems == [] and found.table is not None
    [cells] = found.table.rows
    assert "beside ada.tar.gz: n: 6 ≠ 5" in cells[-1] and "E_n" not in "".join(cells)


def test_a_change_beyond_the_tolerance_is_pointed_at() -> None:
    [remark] = _beyond("speedup", Estimate(value=0.8, low=0.7, high=0.9), 0.1)
    assert remark == "speed-up changes by -20%, more than 10%"
    assert _beyond("speedup", Estimate(value=0.8, low=0.6, high=1.1), 0.1) == [], "noise"
    assert _beyond("speedup", Estimate(value=1.05, low=1.01, high=1.09), 0.1) == []
    assert len(_beyond("mean_acceptance_length", Estimate(value=1.2), 0.1)) == 1


def test_what_is_refused_is_one_line_each(empty: Path, runs: list[Path], tmp_path: Path) -> None:
    board = submission(empty, tmp_path / "board")
    set_key(board, "targets", "[{name: Qwen/Qwen3-8B}]")
    set_key(board, "signatures", "required")
    set_key(board, "refused_marks", "[chosen prompts]")
    mine = submission(board, tmp_path / "mine", bundle_of(runs[0], tmp_path / "ada.tar.gz", licence="MIT"))
    found = check_submission(mine, str(board))
    told = "\n".join(found.problems)
    for word in (
        "license = MIT: board.yaml has CC-BY-4.0, CC0-1.0", "signature: no signature",
        "mgsm@4 en ar@1 and 1 more row: target = embedded:drafter", "'chosen prompts' is in refused_marks",
    ):  # fmt: skip
        assert word in told
    assert all(line.startswith("bundles/ada.tar.gz: ") for line in found.problems)
    assert found.markdown().startswith("## Refused")


def test_texts_that_are_left_out(empty: Path, runs: list[Path], tmp_path: Path) -> None:
    from tests.support.board_repositories import LICENSED
    from tests.support.bundles import NOTHING, make_bundle

    make_bundle(runs[:1], tmp_path / "ada.tar.gz", LICENSED, with_texts=False, scrubber=NOTHING)
    board = submission(empty, tmp_path / "board")
    [line] = check_submission(submission(board, tmp_path / "mine", tmp_path / "ada.tar.gz"), str(board)).problems
    assert "texts = required" in line
    set_key(board, "texts", "optional")
    found = check_submission(submission(board, tmp_path / "other", tmp_path / "ada.tar.gz"), str(board))
    assert found.problems == [] and found.table is not None and found.table.rows[0][-2] == "stated"


@needs_ssh
def test_a_required_signature(empty: Path, bundles: list[Path], key: Path, tmp_path: Path) -> None:
    board = submission(empty, tmp_path / "board")
    set_key(board, "signatures", "required")
    mine = submission(board, tmp_path / "mine", bundles[0])
    sign(mine / "bundles" / "ada.tar.gz", key)
    [line] = check_submission(mine, str(board)).problems
    assert "by a key that" in line and "allowed_signers" in line
    shutil.copy(key.with_name("allowed"), board / "allowed_signers")
    shutil.copy(key.with_name("allowed"), mine / "allowed_signers")
    assert check_submission(mine, str(board)).problems == []
    (mine / "bundles" / "ada.tar.gz.sig").write_text("nothing")
    assert "is not a signature of ada.tar.gz" in check_submission(mine, str(board)).problems[0]


def test_by_git_or_beside_a_folder_the_changes_are_the_same(empty: Path, bundles: list[Path], tmp_path: Path) -> None:
    """What others merged since then is not a change of the submission."""
    board = submission(empty, tmp_path / "board")
    git(board, "init", "-q", "-b", "main")
    git(board, "add", "-A")
    git(board, "commit", "-q", "-m", "A board")
    git(board, "switch", "-q", "-c", "mine")
    shutil.copy(bundles[0], board / "bundles")
    uncommitted = check_submission(board, "main")
    git(board, "add", "-A")
    git(board, "commit", "-q", "-m", "Mine")
    git(board, "switch", "-q", "main")
    (board / "board.yaml").write_text((board / "board.yaml").read_text("utf-8") + "# more\n", "utf-8")
    assert git(board, "status", "--short").split() == ["M", "board.yaml"]
    git(board, "commit", "-q", "-a", "-m", "Another")
    git(board, "switch", "-q", "mine")
    assert uncommitted == check_submission(board, "main") == check_submission(board, "HEAD^1")
    assert uncommitted.problems == [] and uncommitted.num_rows == 2
    for base in ("absent", "--output=/tmp/x", "HEAD:board.yaml"):
        with pytest.raises(ConfigError, match="--base"):
            check_submission(board, base)


# 4. merge


def test_a_board_is_made_of_its_bundles_alone(merged: Path, bundles: list[Path], tmp_path: Path) -> None:
    """The same bundles give the same bytes, in whatever order they came and whatever was there before."""
    board = new_board(tmp_path / "board", bundles[0])
    (board / "leaderboards" / "old.json").write_text("{}")
    (board / "BOARD.md").write_text("by hand")
    merge_board(board)
    made = {name: files_of(folder) for name, folder in (("first", merged), ("second", board))}
    assert made["first"] == made["second"] and any(name.startswith("site/rows/") for name in made["first"])
    text = (board / "BOARD.md").read_text("utf-8")
    assert "| recomputed |" in text and "ada.tar.gz: run0" in text
    digest = name_of(board)
    assert [path for path in (board / "site" / "rows").glob(f"{digest}*.html")], "the site has the row by its name"
    assert find_row(board, digest).bundle == board / "bundles" / "ada.tar.gz"


def files_of(board: Path) -> dict[str, bytes]:
    names = ("leaderboards", "site", "BOARD.md", "RULES.md")
    paths = [path for name in names for path in ((board / name).rglob("*") if "." not in name else [board / name])]
    return {path.relative_to(board).as_posix(): path.read_bytes() for path in paths if path.is_file()}


def test_the_first_run_of_a_configuration_stands(bundles: list[Path], tmp_path: Path) -> None:
    """Another run of it replaces nothing, whatever its name: both rows are one, with the mark of two runs."""
    board = new_board(tmp_path / "board", *bundles)
    shutil.move(board / "bundles" / "bob.tar.gz", board / "bundles" / "0.tar.gz")
    assert str(merge_board(board)) == "2 bundles, 2 rows"
    [file] = (board / "leaderboards").glob("*.json")
    created = [row.created for row in load(file)]
    names = {each: load_created(each, tmp_path) for each in bundles}
    assert set(created) == {min(names.values())} or len(set(names.values())) == 1
    assert re.search(r"recomputed · 2 runs (agree|differ)", (board / "BOARD.md").read_text("utf-8"))


def load_created(bundle: Path, tmp_path: Path) -> str:
    from specbench.publish.board.stored import stored_runs

    [run] = stored_runs([bundle])
    return run.rows[0].created


def test_another_commit_is_no_other_row(row: Row) -> None:
    """Nor is another place of the target; another machine, library or configuration is."""
    again = {"commit": "0" * 40, "created": "2030-01-01T00:00:00+00:00"}
    others = [{"device": "H100"}, {"versions": row.versions | {"torch": "9"}}, {"num_draft_tokens": 9}, {"n": 5}]
    rows = [row, *(row.model_copy(update=again | other) for other in ({}, *others))]
    kept = first_runs([BoardRow(each, "x.tar.gz", STATED) for each in rows])
    assert [each.row for each in kept] == [rows[0], *rows[2:]]


def test_rows_that_are_too_old_leave_the_board(bundles: list[Path], tmp_path: Path) -> None:
    board = new_board(tmp_path / "board", bundles[0])
    (board / "board.yaml").write_text((board / "board.yaml").read_text("utf-8").replace('"0.1.0"', '"99.0"'), "utf-8")
    found = merge_board(board)
    assert found.num_rows == 0 and found.site is None and "versions.specbench" in found.left_out[0]
    assert "Left out" in (board / "BOARD.md").read_text("utf-8") and "99.0" in (board / "RULES.md").read_text("utf-8")


def test_rows_of_other_machines_are_in_files_of_their_own(row: Row) -> None:
    elsewhere = row.model_copy(update={"device": "H100"})
    newer = row.model_copy(update={"versions": row.versions | {"transformers": "9"}})
    files = by_file([row, elsewhere, newer, row])
    assert [len(rows) for rows in files.values()] == [2, 1, 1]
    assert [name for name in files if name.startswith("h100-torch-")] and any(n.endswith("-2.json") for n in files)


# 5. rerun


def test_the_commands_measure_the_same_configuration(specbench: Specbench, merged: Path, tmp_path: Path) -> None:
    """The printed command, run as it stands, gives a run that is filed as a re-run of the row."""
    board, name = submission(merged, tmp_path / "board"), name_of(merged)
    code, out, err = specbench("board", "rerun", name, "--board", "board")
    assert code == 0, err
    [command] = [line for line in out.splitlines() if line.startswith("specbench run ")]
    assert "pip install specbench-lm==" in out and "embedded:drafter" in out and "6 examples of sample" in out
    assert specbench(*shlex.split(command)[1:])[0] == 0
    [file] = [line for line in out.splitlines() if line.startswith("specbench board rerun ")]
    code, out, err = specbench(*shlex.split(file)[1:], "--author", "Bob")
    assert code == 0, err
    assert re.search(rf"rerun-{name}-1.tar.gz: (agrees with|differs from) mgsm@4 en sd@1 of ada.tar.gz", out)
    told = (
        f"next: specbench bundle sign {Path('board', 'bundles', f'rerun-{name}-1.tar.gz')} --key KEY; specbench board "
    )
    assert f"{told}check board --base origin/main" in out
    assert out.count("6 of 6") >= 2, "answers of sd and of AR are equal"
    assert check_submission(board, str(merged)).problems == []
    merge_board(board)
    assert name_of(board) == name and "2 runs" in (board / "BOARD.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("version", "index"),
    [("2.13.0+cpu", "cpu"), ("2.13.0+cu126", "cu126"), ("2.13.0", None), ("2.13.0+git1234", None), ("2+cpu;ls", None)],
)
def test_torch_is_installed_in_the_same_build(version: str, index: str | None) -> None:
    found = TORCH_BUILD.search(version)
    assert (found and found[1]) == index


def test_texts_of_a_bundle_stay_in_comments_and_quotes(
    merged: Path, runs: list[Path], row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with a line break would else be a line of the shell that reads the commands."""
    evil = "x\nrm -rf ~ #"
    changed = row.model_copy(update={
        "target": evil, "device": evil, "commit": evil, "versions": row.versions | {"torch": evil},
    })  # fmt: skip
    run = RecordedRun(runs[0])
    first = run.measurements[0]
    request = first.request | {"target": evil, "data": evil, "trust_remote_code": True}
    monkeypatch.setattr(RecordedRun, "measurement_of", lambda *_: first.model_copy(update={"request": request}))
    monkeypatch.setattr(reruns, "opened", lambda *_: nullcontext((MeasuredRow(changed, run), [])))
    lines = reruns.rerun_lines(merged, find_row(merged, name_of(merged)))
    told = "\n".join(lines)
    assert not re.search(r"^rm -rf", "\n".join(line for line in lines if line.startswith("#")), re.M)
    [command] = [line for line in lines if line.startswith("specbench run")]
    words = shlex.split(command)
    assert words[words.index("--target") + 1] == words[words.index("--data") + 1] == evil
    assert "torch==" not in told and "# --trust-remote-code: " in told
    bad = first.request | {"overrides": [1]}
    monkeypatch.setattr(RecordedRun, "measurement_of", lambda *_: first.model_copy(update={"request": bad}))
    with pytest.raises(ConfigError, match="request: overrides"):
        reruns.rerun_lines(merged, find_row(merged, name_of(merged)))


def test_specs_that_are_not_built_in_are_written(
    specbench: Specbench, merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other digests here, the files of the bundle are the specs that were measured."""

    def absent(name: str) -> None:
        raise ConfigError(f"no {name}")

    monkeypatch.setattr(reruns, "load_method", absent)
    name = name_of(merged)
    assert "--specs specs writes it" in specbench("board", "rerun", name, "--board", merged)[1]
    code, out, err = specbench("board", "rerun", name, "--board", merged, "--specs", "mine")
    assert code == 0 and "--task mgsm --method mine/sd.yaml" in out, err
    [row] = [row for file in (merged / "leaderboards").glob("*.json") for row in load(file) if row.method_name == "sd"]
    assert versioned_name(load_method(str(tmp_path / "mine" / "sd.yaml"))) == row.method


def test_what_is_no_rerun_is_refused(
    specbench: Specbench, merged: Path, runs: list[Path], shorter: Path, tmp_path: Path
) -> None:
    board, name = submission(merged, tmp_path / "board"), name_of(merged)
    before = sorted((board / "bundles").iterdir())
    for given, word in (
        (runs[0], "does not count as a re-run of mgsm@4 en sd@1"),
        (shorter, "another configuration: n = 5, and the board's row has 6"),
        (tmp_path / "absent", "no such folder or file"),
    ):
        code, _, err = specbench("board", "rerun", name, "--board", board, "--with", given)
        assert code == 2 and word in err and err.count("\n") == 1, err
    for wrong in ("", "00000000", "../x"):
        assert specbench("board", "rerun", wrong, "--board", board)[0] == 2
    for wrong in ("ada", "../ada"):
        code, _, err = specbench("board", "rerun", name, "--board", board, "--with", runs[1], "--name", wrong)
        assert code == 2 and f"--name {wrong}" in err
    assert sorted((board / "bundles").iterdir()) == before


# 6. Two clones


@pytest.mark.slow
@needs_ssh
def test_two_clones_of_a_board(specbench: Specbench, runs: list[Path], key: Path, tmp_path: Path) -> None:
    """A submitter, a maintainer and a re-runner, each in a clone, with the commands of the guide."""

    def clone(name: str) -> Path:
        git(tmp_path, "clone", "-q", "hub.git", name)
        return tmp_path / name

    def run(*words: object) -> str:
        code, out, err = specbench(*map(str, words))
        assert code == 0, err
        return out

    git(tmp_path, "init", "-q", "--bare", "-b", "main", "hub.git")
    # 1. The maintainer writes the board.
    maintainer = clone("maintainer")
    run("board", "init", maintainer, "--title", "A board", "--task", "mgsm")
    shutil.copy(key.with_name("allowed"), maintainer / "allowed_signers")
    set_key(maintainer, "signatures", "required")
    run("board", "merge", maintainer)
    run("board", "check", maintainer)
    git(maintainer, "switch", "-q", "-c", "main")
    git(maintainer, "add", "-A")
    git(maintainer, "commit", "-q", "-m", "A board")
    git(maintainer, "push", "-q", "origin", "main")
    assert git(maintainer, "ls-files").split() == sorted([
        ".gitattributes", ".github/workflows/board.yml", ".gitignore", "BOARD.md", "README.md", "RULES.md",
        "allowed_signers", "board.yaml", "bundles/.gitkeep", "leaderboards/.gitkeep",
    ])  # fmt: skip

    def submit(clone: Path, branch: str) -> str:
        out = run("board", "check", clone, "--base", "origin/main")
        git(clone, "switch", "-q", "-c", branch)
        git(clone, "add", "-A")
        git(clone, "commit", "-q", "-m", branch)
        git(clone, "push", "-q", "origin", branch)
        return out

    def accept(branch: str) -> str:
        git(maintainer, "fetch", "-q")
        git(maintainer, "switch", "-q", "--detach", f"origin/{branch}")
        run("board", "check", maintainer, "--base", "main", "--markdown", "report.md")
        assert (tmp_path / "report.md").read_text("utf-8").startswith("## Accepted")
        git(maintainer, "switch", "-q", "main")
        git(maintainer, "merge", "-q", f"origin/{branch}")
        out = run("board", "merge", maintainer)
        git(maintainer, "add", "-A")
        git(maintainer, "commit", "-q", "-m", f"Rows of {branch}")
        git(maintainer, "push", "-q", "origin", "main")
        return out

    # 2. The submitter adds a signed bundle, the maintainer accepts it.
    submitter = clone("submitter")
    file = submitter / "bundles" / "ada.tar.gz"
    run("bundle", "make", runs[0], "--output", file, "--license", "CC-BY-4.0")
    assert specbench("board", "check", submitter, "--base", "origin/main")[0] == 2, "it is not signed yet"
    run("bundle", "sign", file, "--key", key)
    assert "the first of its kind" in " ".join(submit(submitter, "ada").split())
    assert "1 bundle, 2 rows" in accept("ada")
    # 3. Somebody else measures the row again, and files it.
    rerunner = clone("rerunner")
    name = name_of(rerunner)
    assert "specbench run --task mgsm --method sd" in run("board", "rerun", name, "--board", rerunner)
    run("board", "rerun", name, "--board", rerunner, "--with", runs[1], "--name", "bob")
    run("bundle", "sign", rerunner / "bundles" / "bob.tar.gz", "--key", key)
    assert "re-run:" in " ".join(submit(rerunner, "bob").split())
    assert "2 bundles, 2 rows" in accept("bob")
    board = (maintainer / "BOARD.md").read_text("utf-8")
    assert re.search(r"recomputed · signed by ada@example.org · 2 runs (agree|differ)", board)
    assert name_of(maintainer) == name and (maintainer / "site" / "index.html").is_file()
    # 4. The same bundle under another name is not another run.
    again = clone("again")
    for end in ("", ".sig"):
        shutil.copy(again / "bundles" / f"ada.tar.gz{end}", again / "bundles" / f"eve.tar.gz{end}")
    code, _, err = specbench("board", "check", again, "--base", "origin/main")
    assert code == 2 and "run0 has the same records as bundles/ada.tar.gz: run0" in err


def test_a_folder_that_is_no_board(specbench: Specbench, tmp_path: Path) -> None:
    for command in (["check"], ["merge"], ["rerun", "12345678"]):
        code, _, err = specbench("board", *command)
        assert code == 2 and "board.yaml: no such file" in err and err.count("\n") == 1
    init_board(tmp_path / "board", "A board")
    (tmp_path / "board" / "leaderboards" / "x.json").write_text(json.dumps({"format": 1, "rows": [{}]}))
    assert specbench("board", "rerun", "12345678", "--board", "board")[0] == 2
