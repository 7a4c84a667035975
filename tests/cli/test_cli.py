"""The command line from end to end on a tiny pair: results, resuming, and one line for every kind of bad input."""

import contextlib
import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from specbench import __version__
from specbench.cli import main
from specbench.core.console import be_quiet, be_verbose
from specbench.core.environment import set_threads
from specbench.core.files import locked
from specbench.models.sources import model_source
from specbench.results.leaderboard import load
from specbench.running import measure as runner
from specbench.specs.catalogue import method_names, task_names
from tests.support import tiny

Specbench = Callable[..., tuple[int, str, str]]
SHORT = ("--set", "generation.max_new_tokens=6")


def write_rows(folder: Path) -> str:
    """Two questions each of en and ja."""
    folder.mkdir()
    for language in ("en", "ja"):
        lines = [f"Question {i}: what is {i} + {i}?\t{2 * i}" for i in range(2)]
        (folder / f"mgsm_{language}.tsv").write_text("\n".join(lines), encoding="utf-8")
    return str(folder)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    return write_rows(tmp_path / "rows")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Two models of one layer."""
    folder = tmp_path_factory.mktemp("pair")
    target, drafter = (tiny.save(folder / name, seed=n, num_hidden_layers=1) for n, name in enumerate(("t", "d")))
    return "--target", str(target), "--drafter", str(drafter)


@pytest.fixture(scope="module")
def finished(pair: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of rows and of a finished run `out`, and the subsets that were warmed up, in their order."""
    folder, warmed = tmp_path_factory.mktemp("finished"), []
    warm_up = runner.warm_up_subset
    words = ("--task", "mgsm", "--method", "sd", "--data", write_rows(folder / "rows"), "--subset", "en,ja")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            runner,
            "warm_up_subset",
            lambda each, *given: warmed.append(each.subset) or warm_up(each, *given),
        )
        patch.chdir(folder)
        patch.setattr("sys.argv", ["specbench", "run", *words, *pair, *SHORT, "--output", "out"])
        with contextlib.suppress(SystemExit):
            main()
    return folder, warmed


@pytest.fixture
def again(
    specbench: Specbench, pair: tuple[str, ...], finished: tuple[Path, list[str]], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """The command of the finished run, into a copy of its folder."""
    shutil.copytree(finished[0] / "out", tmp_path / "out")
    return lambda *more: run(specbench, pair, str(finished[0] / "rows"), "--output", "out", *more)


def run(specbench: Specbench, pair: tuple[str, ...], rows: str, *more: str, method: str = "sd") -> tuple[int, str, str]:
    return specbench(
        "run", "--task", "mgsm", "--method", method, "--data", rows, "--subset", "en,ja", *pair, *SHORT, *more
    )


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_bytes().splitlines()]


def test_run_prints_tables_and_writes_rows(
    specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path
) -> None:
    board = tmp_path / "board.json"
    code, out, err = run(
        specbench, pair, rows, "--output", "out", "--leaderboard", str(board), "--limit", "1",
        method="sd,fsd,draft-only",
    )  # fmt: skip
    assert code == 0, err
    for part in ("sd@1", "fsd@1", "draft-only@1", "threshold 0.3", "lossless", "lossy", "data: local",
                 "mgsm@4 · all · ms per token"):  # fmt: skip
        assert part in out
    written = load(board)
    assert [row.subset for row in written] == ["en", "ja", "all"] * 4
    assert {row.method_name for row in written} == {"ar", "sd", "fsd", "draft-only"}
    assert {row.run for row in written} == {"out"}
    assert load(tmp_path / "out" / "leaderboard.json") == [row.model_copy(update={"run": None}) for row in written]
    row = next(row for row in written if row.method_name == "draft-only")
    metrics = {name: row.metrics[name].value for name in ("target_passes_per_token", "verify_seconds", "draft_seconds")}
    assert metrics["target_passes_per_token"] == metrics["verify_seconds"] == 0 < metrics["draft_seconds"]
    told = {name: m.get("decoded_by") for r in records(tmp_path / "out") for name, m in r["methods"].items()}
    assert told == {"ar": None, "sd": None, "fsd": None, "draft-only": "drafter"}


def test_json_rows(specbench: Specbench, pair: tuple[str, ...], rows: str) -> None:
    code, out, _ = run(specbench, pair, rows, "--json", "--limit", "1", "--repeats", "2")
    parsed = json.loads(out)
    assert code == 0
    assert [(row["subset"], row["n"], row["repeats"]) for row in parsed][:3] == [
        ("en", 1, 2),
        ("ja", 1, 2),
        ("all", 2, 2),
    ]
    greedy_sd = next(row for row in parsed if row["method"].startswith("sd@") and row["subset"] == "all")
    assert greedy_sd["lossless"] is True
    assert greedy_sd["metrics"]["accuracy_difference"]["value"] == 0.0


def test_greedy_sd_emits_what_ar_emits_and_order_alternates(finished: tuple[Path, list[str]]) -> None:
    found = records(finished[0] / "out")
    assert [(record["subset"], record["example"]) for record in found] == [("en", 0), ("ja", 0), ("en", 1), ("ja", 1)]
    for record in found:
        assert record["methods"]["ar"]["token_ids"] == record["methods"]["sd"]["token_ids"]
        assert record["order"] == (["ar", "sd"] if record["example"] % 2 == 0 else ["sd", "ar"])


def test_an_interrupted_run_goes_on_with_the_subset_whose_turn_it_is(
    again: Callable[..., tuple[int, str, str]], finished: tuple[Path, list[str]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each subset is warmed up once, and only where something is left to measure. The answers are the same."""
    warm_up, warmed = runner.warm_up_subset, [*finished[1]]

    def noting(subset_run: Any, *given: Any) -> Any:
        warmed.append(subset_run.subset)
        return warm_up(subset_run, *given)

    monkeypatch.setattr(runner, "warm_up_subset", noting)
    before, file = records(tmp_path / "out"), tmp_path / "out" / "records.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    code, _, err = again()
    assert code == 0 and "resuming" in err
    after = records(tmp_path / "out")
    assert warmed == ["en", "ja", "ja"] and after[:3] == before[:3]
    assert [(r["subset"], r["example"], r["methods"]["sd"]["token_ids"]) for r in after] == [
        (r["subset"], r["example"], r["methods"]["sd"]["token_ids"]) for r in before
    ]
    assert [row.subset for row in load(tmp_path / "out" / "leaderboard.json")] == ["en", "ja", "all"] * 2


def test_a_smaller_command_leaves_the_larger_run_alone(
    specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path
) -> None:
    assert run(specbench, pair, rows, "--subset", "en")[0] == 0
    [whole] = (tmp_path / "runs").glob("*/leaderboard.json")
    before = whole.read_bytes()
    code, _, err = run(specbench, pair, rows, "--subset", "en", "--limit", "1")
    assert code == 0 and "measuring 1 example into" in err
    assert whole.read_bytes() == before and len(list((tmp_path / "runs").iterdir())) == 2


def test_the_same_command_measures_nothing_twice_and_a_smaller_one_leaves_records_out(
    again: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    before = records(tmp_path / "out")
    assert "measured already" in again()[2]
    assert "kept in the folder, and left out of the rows by this command: 2 records\n" in again("--limit", "1")[2]
    assert records(tmp_path / "out") == before


def test_random_streams_do_not_depend_on_order_or_company(
    specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path
) -> None:
    sampled = ("--set", "generation.temperature=1.0")
    run(specbench, pair, rows, *sampled, "--output", "a", "--limit", "1", method="fsd,sd")
    run(specbench, pair, rows, *sampled, "--output", "b", "--subset", "ja", method="sd")
    a = {(r["subset"], r["example"]): r["methods"]["sd"]["token_ids"] for r in records(tmp_path / "a")}
    b = {(r["subset"], r["example"]): r["methods"]["sd"]["token_ids"] for r in records(tmp_path / "b")}
    assert a.keys() & b.keys() == {("ja", 0)} and a["ja", 0] == b["ja", 0]


def test_a_changed_configuration_is_refused_with_what_changed(
    again: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    before = records(tmp_path / "out")
    code, _, err = again("--seed", "7")
    assert code == 2 and "seed: 0 → 7" in err
    code, _, err = again("--set", "num_draft_tokens=3")
    assert code == 2 and "num_draft_tokens of method sd: 5 → 3" in err
    assert records(tmp_path / "out") == before


def test_changed_data_is_refused(specbench: Specbench, pair: tuple[str, ...], rows: str) -> None:
    assert run(specbench, pair, rows, "--output", "out", "--subset", "en", "--limit", "1")[0] == 0
    (Path(rows) / "mgsm_en.tsv").write_text("Another question?\t1\n", encoding="utf-8")
    code, _, err = run(specbench, pair, rows, "--output", "out", "--subset", "en", "--limit", "1")
    assert code == 2 and "another prompt" in err


def test_users_own_files(specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nversion: 1\ntitle: Mine\nprompt: 'Q: {{ row.question }}'\ngeneration: {max_new_tokens: 5}\n"
    )
    (tmp_path / "fast.yaml").write_text(
        "name: fast\nversion: 1\ntitle: Fast\nnum_draft_tokens: 2\n"
        "drafter: {type: model}\nverification: {rule: rejection}\n"
    )
    (tmp_path / "mine.jsonl.gz").write_bytes(gzip.compress(b'{"question": "one"}\n{"question": "two"}\n'))
    code, out, err = specbench(
        "run", "--task", "mine.yaml", "--method", "./fast.yaml", "--data", "mine.jsonl.gz", *pair
    )
    assert code == 0, err
    assert "mine@1" in out and "fast@1" in out
    assert specbench("validate", "mine.yaml", "fast.yaml")[0] == 0


def test_a_file_with_the_name_of_a_known_method_is_said(
    specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: sd\nversion: 1\ntitle: Mine\nnum_draft_tokens: 2\n"
        "drafter: {type: model}\nverification: {rule: rejection}\n"
    )
    line = "mine.yaml: 'sd' is also the name of methods/sd.yaml: results call both sd@1"
    code, out, _ = specbench("validate", "mine.yaml")
    assert code == 0 and line in out
    code, _, err = run(specbench, pair, rows, "--limit", "1", "--subset", "en", method="mine.yaml")
    assert code == 0 and line in err


def test_validate_loads_the_code_of_an_external_decoder(specbench: Specbench, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nversion: 1\ntitle: Mine\nnum_draft_tokens: 1\ndecoder: {type: external, entry: 'mine.py:decode'}\n"
    )
    code, _, err = specbench("validate", "mine.yaml")
    assert code == 2 and err.startswith("error: mine.yaml: decoder.entry: ") and "there is no file" in err
    (tmp_path / "mine.py").write_text("def decode(prompt_ids):\n    return []\n")
    assert specbench("validate", "mine.yaml")[0] == 0


def test_validate_knows_servers(specbench: Specbench, tmp_path: Path) -> None:
    text = 'tokenizer: embedded:target\nservers:\n  ar: {url: "http://a:1", speculation: none}\n'
    (tmp_path / "servers.yaml").write_text(text)
    code, out, _ = specbench("validate", "servers.yaml")
    assert code == 0 and "ok: servers.yaml (servers ar)" in out
    (tmp_path / "servers.yaml").write_text(text.replace("speculation: none", "speculation: nune"))
    code, _, err = specbench("validate", "servers.yaml")
    assert code == 2 and "servers.yaml: servers.ar.speculation" in err


def test_a_dry_run_tells_and_writes_nothing(specbench: Specbench, tmp_path: Path) -> None:
    words = ("run", "--task", "mgsm", "--method", "sd", "--subset", "en,sw", "--limit", "3", "--output", "mine")
    code, out, err = specbench(*words, "--dry-run")
    assert code == 0, err
    told = " ".join(out.split())
    assert "6 trials of 2 methods; nothing was measured or written" in told and "sd (γ 5)" in told
    assert "folder mine: 0 of 6 trials measured" in told and not [*tmp_path.iterdir()]
    assert specbench(*words, "--set", "generation.max_new_tokens=4")[0] == 0
    before = {file: file.read_bytes() for file in (tmp_path / "mine").iterdir()}
    code, out, err = specbench(*words[:-4], "--limit", "4", *words[-2:], "--dry-run")
    told = " ".join(out.split())
    assert code == 0 and "folder mine: 6 of 8 trials measured, about 0 min at the speed of these" in told, err
    assert before == {file: file.read_bytes() for file in (tmp_path / "mine").iterdir()}
    code, _, err = specbench(*words[:4], "sdd", *words[5:], "--dry-run")
    assert code == 2 and "did you mean 'sd'" in err
    code, _, err = specbench("run", "--task", "mgsm", "--servers", "servers.yaml", "--dry-run")
    assert code == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("suffix", "--set", "drafter.memory=gone"), "method 'suffix': drafter.memory = 'gone': there is no gone"),
        (("sam", "--set", "drafter.corpus=gone"), "method 'sam': "),
        (("inner.yaml",), "method 'inner': drafter.inner: drafter.memory = 'gone': there is no gone"),
        (("synthetic", "--set", "drafter.profile=gone.json"), "gone.json"),
        (
            ("eagle3", "--set", "drafter.path=./bare"),
            "method 'eagle3': drafter.path = './bare': the folder bare has no",
        ),
        (
            ("medusa", "--set", "drafter.path=./bare"),
            "method 'medusa': drafter.path = './bare': the folder bare has no",
        ),
        (("sd", "--drafter", "./bare"), "model './bare': the folder bare has no weights"),
    ],
)
def test_a_dry_run_finds_a_missing_file(
    words: tuple[str, ...], says: str, specbench: Specbench, tmp_path: Path
) -> None:
    source = Path(model_source("embedded:drafter"))
    shutil.copytree(source, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    inner = "{type: cascade, inner: {type: suffix, memory: gone}}"
    method = f"name: inner\nversion: 1\ntitle: i\ndrafter: {inner}\nverification: {{rule: rejection}}\n"
    (tmp_path / "inner.yaml").write_text(f"{method}num_draft_tokens: 4\n")
    common = ("run", "--task", "mgsm", "--subset", "en", "--limit", "1", "--data", "sample", "--dry-run", "--method")
    code, out, err = specbench(*common, *words)
    assert (code, out) == (2, "") and says in " ".join(err.split()), err


def test_a_dry_run_of_all_methods_tells_those_that_lack_something(specbench: Specbench, tmp_path: Path) -> None:
    code, out, err = specbench(
        "run", "--task", "mgsm", "--method", "all", "--subset", "en", "--limit", "1", "--dry-run"
    )
    assert code == 0, err
    assert "methods: ar, " in " ".join(out.split())


def test_a_dry_run_tells_that_the_context_cuts_answers(specbench: Specbench) -> None:
    words = ("run", "--task", "mgsm", "--method", "sd", "--subset", "en,sw", "--limit", "1", "--dry-run")
    assert "answers are cut" not in specbench(*words)[1]
    code, out, err = specbench(*words, "--set", "generation.max_new_tokens=100000")
    told = " ".join(out.split())
    assert code == 0 and "answers are cut at the context of embedded:target, " in told, err
    limit, room = (int(re.search(rf"(\d+) {what}", told)[1]) for what in ("tokens: behind", "new tokens fit"))  # type: ignore[index]
    assert 0 < room < limit and "fit, not the 100000 of generation.max_new_tokens (nor in 1 other subset)" in told


def test_a_row_that_was_measured_on_a_busy_machine_is_marked(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = count(0, 10**9)  # a second for each generation
    monkeypatch.setattr("specbench.models.meters.cpu_waits", lambda: {"1": next(waits)})
    code, out, err = specbench("run", "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1",
                               "--set", "generation.max_new_tokens=4")  # fmt: skip
    told = " ".join(out.split())
    assert code == 0 and "† en: its threads waited for a CPU, together " in told and "speeds are too low" in told, err


def test_quiet_leaves_out_notes_but_no_warning_and_no_result(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbench.running.plan.others_load", lambda: 99.0)
    words = ("run", "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1",
             "--set", "generation.max_new_tokens=4")  # fmt: skip
    try:
        for number, quiet in enumerate(((*words, "-q"), ("--quiet", *words))):
            code, out, err = specbench(*quiet, "--output", f"run{number}")
            assert code == 0 and "mgsm" in out, err
            assert err.splitlines() and all(line.startswith("warning: ") for line in err.splitlines()), err
    finally:
        be_quiet(False)
    code, _, err = specbench(*words)
    assert code == 0 and "measuring 1 example into" in err


def test_verbose_tells_versions_the_engine_and_each_answer(specbench: Specbench) -> None:
    words = ("run", "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1",
             "--set", "generation.max_new_tokens=4")  # fmt: skip
    try:
        for number, verbose in enumerate(((*words, "-v"), ("--verbose", *words))):
            code, out, err = specbench(*verbose, "--output", f"run{number}")
            assert code == 0 and "speed-up" in out, err
            told = " ".join(err.split())
            assert "versions: python " in told and f"specbench {__version__}" in told and "commit: " in told
            assert "engine: eager (--engine auto: graphs on CUDA, else eager; the target is on cpu)" in told
            assert "method sd: 5 draft tokens, drafter embedded:drafter, rule rejection" in told
            assert re.search(r"mgsm/en example \S+: ar · 4 tokens · [\d.]+ s · [\d.]+ tok/s", told), err
            assert re.search(r" sd · 4 tokens · [\d.]+ s · [\d.]+ tok/s · τ [\d.]+ · α [\d.]+", told), err
            be_verbose(False)
        code, _, err = specbench(*words, "-v", "-q", "--output", "run2")
        assert code == 0 and "versions" not in err, "quiet wins"
    finally:
        be_quiet(False)
        be_verbose(False)


def test_a_shell_completes_commands_and_the_last_of_several_names(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(words: str) -> list[str]:
        monkeypatch.setenv("_SPECBENCH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        return specbench()[1].split()

    assert completed("specbench conf") == ["conformance"]
    assert completed("specbench run --task mgs") == ["mgsm"]
    assert completed("specbench run --task mgsm --method fsd,sli") == []
    assert "fsd,slem" in completed("specbench run --task mgsm --method fsd,sl")
    assert completed("specbench plot l") == ["load", "languages"]
    assert completed("specbench plot load RUN --format p") == ["pdf", "pgf", "png"]
    assert completed("specbench table RUN --format l") == ["latex"]
    assert completed("specbench advise RUN --goal g") == ["goodput"]
    assert completed("specbench run --task mgsm --engine e") == ["eager"]
    assert completed("specbench roofline --dtype b") == ["bfloat16"]
    assert completed("specbench profile RUN --export s") == ["sglang"]


def test_the_usage_line_has_arguments_as_they_are_declared(specbench: Specbench) -> None:
    for command, usage in (
        ("memory", "[OPTIONS] FILE [RUN]..."), ("advise", "[OPTIONS] RUN..."), ("list", "[OPTIONS] [KIND] [TASK]"),
        ("validate", "[OPTIONS] FILES..."), ("leaderboard show", "[OPTIONS] FILE..."),
    ):  # fmt: skip
        out = specbench(*command.split(), "--help")[1]
        assert f"Usage: specbench {command} {usage}" in " ".join(out.split()), out


def test_validate_prints_all_problems_of_a_file(specbench: Specbench, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nversion: 0\ntitel: Mine\nnum_draft_tokens: 99\n"
        "drafter: {type: model, temprature: 1}\nverification: {rule: fuzy}\n"
    )
    code, _, err = specbench("validate", "mine.yaml")
    lines = err.splitlines()
    assert code == 2 and all(line.startswith("error: mine.yaml: ") for line in lines)
    found = ("titel: unknown key", "'title' is missing", "version = 0", "drafter.temprature: unknown key",
             "unknown rule 'fuzy': did you mean 'fuzzy'", "num_draft_tokens = 99")  # fmt: skip
    assert len(lines) == len(found) and all(any(words in line for line in lines) for words in found), lines


def test_validate_refuses_what_every_run_refuses(specbench: Specbench, tmp_path: Path) -> None:
    """Trees of `auto` have other children at temperature 0, where a run may be refused; k_seq never fits."""
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nversion: 1\ntitle: Mine\nnum_draft_tokens: 1\n"
        "drafter: {type: model_tree, widths: [2]}\nverification: {rule: traversal}\n"
    )
    assert specbench("validate", "mine.yaml")[0] == 0
    (tmp_path / "mine.yaml").write_text((tmp_path / "mine.yaml").read_text().replace("traversal", "k_seq"))
    code, _, err = specbench("validate", "mine.yaml")
    assert code == 2 and "needs children that are drawn as independent" in err
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nversion: 1\ntitle: Mine\nnum_draft_tokens: 1\ndrafter: {type: model, temperature: 0}\n"
        "verification: {rule: fuzzy, divergence: js, threshold: 0.3, divergence_on: processed}\n"
    )
    code, _, err = specbench("validate", "mine.yaml")
    assert code == 2 and "set drafter.temperature above 0" in err


def test_a_missing_target_is_said_before_a_missing_drafter(specbench: Specbench) -> None:
    outcome = specbench("run", "--task", "mgsm", "--method", "sd", "--target", "/nonexistent")
    assert_one_line(outcome, "2 problems: (1) model folder '/nonexistent' does not exist")
    outcome = specbench("run", "--task", "mgsm", "--method", "sd", "--target", "embedded:nothing")
    assert_one_line(outcome, "embedded model 'nothing' does not exist: the choices are")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_runs_out_is_one_line(
    error: Exception, specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr("specbench.analysis.audit.audit.run_audit", failing)
    code, _, err = specbench("audit", "--method", "sd")
    assert code == 2 and err.startswith("error: out of memory: use a smaller model")
    error.args = ("another",)
    if isinstance(error, RuntimeError):  # a control
        with pytest.raises(RuntimeError, match="another"):
            specbench("audit", "--method", "sd")


def test_version_and_help(specbench: Specbench) -> None:
    assert specbench("--version")[:2] == (0, f"specbench {__version__}\n")
    code, out, _ = specbench("run", "--help")
    assert code == 0 and "--leaderboard" in out and out.count("bool") <= 1, "that of --help is not ours"
    code, out, err = specbench()
    assert code == 2 and "validate" in out + err


def test_the_help_says_which_command_has_a_former_name(specbench: Specbench) -> None:
    [line] = [line for line in specbench("--help")[1].splitlines() if " limit " in line]
    assert "ormer name of `roofline`" in line


def test_list(specbench: Specbench) -> None:
    code, out, _ = specbench("list", "methods")
    assert code == 0 and "fsd" in out and "mgsm" not in out
    for words in ("Medusa heads of", "an eagle3 head of", "an n-gram model", "a datastore of", "a layer for"):
        assert words in out
    headings = [line.strip() for line in out.splitlines() if line.strip() in ("a draft model", "earlier texts")]
    assert headings == ["a draft model", "earlier texts"] and out.index(headings[1]) < out.index(" suffix ")
    code, out, _ = specbench("list", "tasks")
    lines = out.splitlines()
    assert code == 0 and "57 subsets" in out and "…" not in out and max(map(len, lines)) <= 100
    for name, paper in (("multilingual_spec_bench", "arXiv:2406.16758"), ("low_resource_mt", "arXiv:2605.30580")):
        assert any(line.split()[0] == name and paper in line for line in lines if line.strip())
    code, out, _ = specbench("list", "tasks", "mmlu")
    assert code == 0 and "world_religions *" in out and "Multiple-choice" in out
    code, out, _ = specbench("list")
    assert code == 0 and len(out.splitlines()) <= 40 and max(map(len, out.splitlines())) <= 100
    assert all(f" {name} " in f"{' '.join(out.split())} " for name in (*task_names(), *method_names()))
    code, _, err = specbench("list", "methods", "fsd")
    assert code == 2 and "specbench show fsd" in err
    code, out, _ = specbench("list", "components")
    assert code == 0 and "prompt_lookup" in out and "threshold" in out and "union" in out and "number" in out
    code, _, err = specbench("list", "methodz")
    assert code == 2 and "did you mean 'methods'" in err


BAD_OPTIONS = {
    "unknown task": (("--task", "mgsn"), "unknown task 'mgsn': did you mean 'mgsm'"),
    "unknown method": (("--method", "fds"), "unknown method 'fds': did you mean 'fsd'"),
    "unknown language": (("--subset", "en,jp"), "no subset 'jp'"),
    "unknown override": (("--set", "verification.treshold=1"), "did you mean 'verification.threshold'"),
    "override without value": (("--set", "num_draft_tokens"), "key=value"),
    "negative threshold": (("--set", "verification.threshold=-0.1"), "greater than or equal to 0"),
    "threshold that is not a number": (("--set", "verification.threshold=low"), "threshold"),
    "limit of nothing": (("--limit", "0"), "--limit 0: give a number of examples from 1, or a share"),
    "no repeats": (("--repeats", "0"), "--repeats 0: give 1 or more"),
    "output that is a file": (("--output", "rows/mgsm_en.tsv"), "it is a file, not a folder"),
    "another rule": (
        ("--set", "verification.rule=rejection"),
        "cannot be changed with --set: a task or method with another value",
    ),
    "missing model folder": (("--target", "./nowhere"), "model folder './nowhere' does not exist"),
    "hub out of reach": (("--target", "nobody/nothing"), "cannot load model 'nobody/nothing'"),
    "unknown device": (("--device", "gpu"), "--device gpu: not available"),
    "unknown dtype": (("--dtype", "int3"), "dtype"),
    "missing data folder": (("--data", "nowhere"), "nowhere"),
    "no threads": (("--threads", "0"), "--threads 0"),
    "more threads than CPUs": (("--threads", "100000"), f"give 1 to {os.cpu_count()}"),
    "limit that is not a number": (("--limit", "abc"), "--limit abc: give a number of examples from 1"),
    "unknown option": (("--limt", "1"), "No such option: --limt (Possible options: --limit"),
    "empty output": (("--output", ""), "--output '': is empty"),
    "empty leaderboard": (("--leaderboard", ""), "--leaderboard '': is empty"),
    "long name of a leaderboard": (("--leaderboard", "x" * 300), "a name of 300 bytes"),
    "leaderboard below a file": (("--leaderboard", "rows/mgsm_en.tsv/b.json"), "nothing was measured"),
    "revision of a folder": (("--target-revision", "main"), "is not on the hub: leave the revision out"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_are_one_line_and_exit_code_2(
    name: str, specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path
) -> None:
    (key, value), expected = BAD_OPTIONS[name]
    options = {
        "--task": "mgsm",
        "--method": "fsd",
        "--subset": "en",
        "--data": rows,
        pair[0]: pair[1],
        pair[2]: pair[3],
    }
    arguments = [part for item in {**options, key: value}.items() for part in item]
    assert_one_line(specbench("run", *arguments), expected)
    assert not (tmp_path / "runs").exists()


def assert_one_line(outcome: tuple[int, str, str], expected: str) -> None:
    code, out, err = outcome
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and out == ""
    assert len(errors) == 1 and errors[0] == err.strip().splitlines()[-1], err
    assert expected in errors[0]
    assert "Traceback" not in err


def test_an_unknown_command_and_a_missing_option_are_one_line(specbench: Specbench) -> None:
    assert_one_line(specbench("rum"), "No such command 'rum'. Did you mean 'run'?")
    assert_one_line(specbench("run", "--method", "sd"), "Missing option '--task'")
    assert_one_line(specbench("run", "--task", "mgsm"), "--task and --method need at least one name each")


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_revision_of_an_embedded_model_is_refused(specbench: Specbench, role: str) -> None:
    base = ("run", "--task", "mgsm", "--method", "sd", f"--{role}-revision", "main")
    assert_one_line(specbench(*base), f"--{role}-revision main: needs --{role} with a hub id")
    named = specbench(*base, "--target", "embedded:target", "--drafter", "embedded:drafter")
    assert_one_line(named, f"'embedded:{role}' is not on the hub")


def test_yaml_that_does_not_parse_names_file_and_line(specbench: Specbench, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("name: broken\nversion: [1\ntitle: x\n")
    outcome = specbench("run", "--task", "broken.yaml", "--method", "sd")
    assert_one_line(outcome, "broken.yaml")
    assert "line 3" in outcome[2] or "line 2" in outcome[2]
    assert specbench("validate", "broken.yaml")[0] == 2


def test_unknown_key_names_file_and_nearest(specbench: Specbench, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "name: m\nversion: 1\ntitle: M\nnum_draft_tokens: 2\n"
        "drafter: {type: model}\nverification: {rule: fuzzy, divergence: js, treshold: 1}\n"
    )
    assert_one_line(specbench("run", "--task", "mgsm", "--method", "m.yaml"), "did you mean 'threshold'")


def no_weights(source: str, *_: Any) -> None:
    raise AssertionError(f"the weights of {source} are loaded")


def test_drafter_with_another_vocabulary(
    specbench: Specbench, tiny_pair: tuple[str, str], rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found before weights are read, and by a dry run."""
    other = tiny.save(tmp_path / "other", num_extra=3)
    monkeypatch.setattr("specbench.models.loading.load_network", no_weights)
    outcome = run(specbench, ("--target", tiny_pair[0], "--drafter", str(other)), rows)
    assert_one_line(outcome, "another vocabulary")
    assert "use a method for two vocabularies, such as tli or slem (" in outcome[2]
    assert f"`specbench vocab --target {tiny_pair[0]} --drafter {other}` tells which of them fit" in outcome[2]
    assert run(specbench, ("--target", tiny_pair[0], "--drafter", str(other), "--dry-run"), rows) == outcome


CHANGED = {  # words of another configuration: how the message names the change
    "--seed 1": "(--seed: 0 → 1)",
    "--chat never": '(--chat: "auto" → "never")',
    "--set num_draft_tokens=3": "(num_draft_tokens of method sd: 5 → 3)",
    "--set generation.max_new_tokens=5": "(generation.max_new_tokens of task mgsm: 4 → 5)",
    "--drafter embedded:drafter-scdf": '(drafter of method sd: "embedded:drafter" → "embedded:drafter-scdf")',
    "--method pld": "(method pld: absent → ",
    "--threads 2": "(--threads: 1 → 2)",
}


def test_a_folder_that_cannot_take_a_run_is_refused_before_weights_are_read(
    specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1", "--output", "mine",
             "--set", "generation.max_new_tokens=4"]  # fmt: skip
    assert specbench(*words)[0] == 0
    monkeypatch.setattr("specbench.models.loading.load_network", no_weights)
    monkeypatch.setattr("specbench.running.plan.others_load", lambda: 99.0)
    try:
        for changed, told in CHANGED.items():
            code, out, err = specbench(*words, *changed.split())
            assert (code, out) == (2, "") and len(err.splitlines()) == 1, "no warning of a busy machine before it"
            assert err.startswith(f"error: --output mine: holds records of another configuration {told}"), err
            command = shlex.join(["specbench", *words])
            assert err.endswith(f"choose another --output, or repeat the old command to resume it: {command}\n")
    finally:
        set_threads(1, True)
    code, out, err = specbench(*words)
    assert code == 0 and "busy" not in err, "nothing is measured, so nothing is slow"
    with locked(tmp_path / "mine" / ".lock", wait=False):
        code, out, err = specbench(*words, "--limit", "2")
    problem = "another process is using it: wait for it, or choose another --output"
    assert (code, out, err) == (2, "", f"error: --output mine: {problem}\n")


def test_empty_data_and_missing_column(specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path) -> None:
    (tmp_path / "rows" / "mgsm_ja.tsv").write_text("")
    assert_one_line(run(specbench, pair, rows), "mgsm_ja.tsv")
    (tmp_path / "rows" / "mgsm_ja.tsv").unlink()
    (tmp_path / "rows" / "mgsm_ja.jsonl").write_text('{"question": "what?", "answer_numbr": 1}\n')
    assert_one_line(run(specbench, pair, rows), "answer_number")


def test_reference_without_a_number(specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path) -> None:
    (tmp_path / "rows" / "mgsm_ja.tsv").write_text("what?\tmany\n")
    outcome = run(specbench, pair, rows)
    assert_one_line(outcome, "row 1: column 'answer_number' = 'many' holds no number: correct the row")
    assert not (tmp_path / "runs").exists()


def test_prompt_longer_than_the_context(specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path) -> None:
    (tmp_path / "rows" / "mgsm_ja.tsv").write_text("word " * 400 + "\t1\n")
    outcome = run(specbench, pair, rows)
    assert_one_line(outcome, "the context of the models is 1024 tokens")
    assert "mgsm/ja example 0" in outcome[2]


def test_output_that_cannot_be_written(specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_one_line(run(specbench, pair, rows, "--output", "file/run"), "cannot be written")


def test_leaderboard_that_is_none(specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path) -> None:
    (tmp_path / "board.json").write_text("{half")
    assert_one_line(run(specbench, pair, rows, "--leaderboard", "board.json"), "board.json")
    assert (tmp_path / "board.json").read_text() == "{half"


def test_chat_without_a_template(specbench: Specbench, pair: tuple[str, ...], rows: str) -> None:
    assert_one_line(run(specbench, pair, rows, "--chat", "always"), "no chat template")


def test_target_without_drafter(specbench: Specbench, tiny_pair: tuple[str, str], rows: str) -> None:
    assert_one_line(run(specbench, ("--target", tiny_pair[0]), rows), "--drafter")
    assert run(specbench, ("--target", tiny_pair[0]), rows, "--limit", "1", method="ar")[0] == 0


def test_the_folder_holds_the_rows_of_the_last_run_and_a_leaderboard_those_of_all(
    again: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for limit in ("1", "2"):
        assert again("--leaderboard", "board.json", "--limit", limit)[0] == 0
    assert {row.n for row in load(tmp_path / "out" / "leaderboard.json")} == {2, 4}
    assert {row.n for row in load(tmp_path / "board.json")} == {1, 2, 4}


def test_the_row_over_all_subsets_is_of_all_their_data(
    specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path
) -> None:
    def revisions(name: str) -> dict[str, str | None]:
        assert run(specbench, pair, rows, "--output", name, "--limit", "1", method="ar")[0] == 0
        return {row.subset: row.data_revision for row in load(tmp_path / name / "leaderboard.json")}

    (tmp_path / "rows" / "mgsm_ja.tsv").write_text("first?\t1\n")
    before = revisions("a")
    (tmp_path / "rows" / "mgsm_ja.tsv").write_text("first?\t2\n")
    after = revisions("b")
    assert before["en"] == after["en"] and before["all"] != after["all"]
    assert len({*before.values()}) == 3 and before["all"].startswith("all-")


def test_subsets_that_are_sampled_in_different_ways_have_no_row_over_all(
    specbench: Specbench, pair: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "two.yaml").write_text(
        "name: two\nversion: 1\ntitle: Two\nprompt: '{{ row.question }}'\ngeneration: {max_new_tokens: 4}\n"
        "subsets: {cold: {}, warm: {generation: {temperature: 0.5}}}\n"
    )
    (tmp_path / "two.jsonl").write_text(
        '{"question": "one", "subset": "cold"}\n{"question": "two", "subset": "warm"}\n'
    )
    code, out, err = specbench("run", "--task", "two.yaml", "--method", "sd", "--data", "two.jsonl", *pair)
    assert code == 0, err
    assert "greedy in cold; temperature 0.5 in warm" in out and "all" not in [line[:3] for line in out.splitlines()]


def test_names_are_printed_as_they_are(specbench: Specbench, pair: tuple[str, ...], rows: str) -> None:
    code, out, err = run(
        specbench, pair, rows, "--output", "m[/x]:x:[red]y", "--subset", "en", "--limit", "1", method="ar"
    )
    assert code == 0 and "m[/x]:x:[red]y/records.jsonl" in out and "m[/x]:x:[red]y" in err
    assert_one_line(specbench("run", "--task", "[/x]:x:", "--method", "sd"), "error: [/x]:x:: ")


def test_a_damaged_record_is_one_line(again: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    file = tmp_path / "out" / "records.jsonl"
    file.write_text(file.read_text().replace('"positions"', '"position"', 1))
    assert_one_line(again(), "records.jsonl, line 1: methods.ar.positions")


def test_a_stop_string_ends_a_generation_and_its_text(
    specbench: Specbench, pair: tuple[str, ...], finished: tuple[Path, list[str]], rows: str, tmp_path: Path
) -> None:
    texts = [record["methods"]["ar"]["text"] for record in records(finished[0] / "out")]
    stop = next(letter for letter in texts[0][1:] if letter.isascii() and letter.isprintable() and letter not in '"\\')
    assert (
        run(specbench, pair, rows, "--set", f"generation.stop={json.dumps([stop])}", "--output", "out", "--limit", "1")[
            0
        ]
        == 0
    )
    ends = [(text["finish"], text["text"]) for r in records(tmp_path / "out") for text in r["methods"].values()]
    assert ends[0] == ("stop", texts[0].partition(stop)[0])
    assert all(stop not in text for _, text in ends)
    assert all(finish in ("stop", "length", "eos") for finish, _ in ends)


def test_the_dtype_is_that_of_the_row(specbench: Specbench, pair: tuple[str, ...], rows: str) -> None:
    for dtype in ("auto", "bfloat16"):
        parsed = json.loads(
            run(specbench, pair, rows, "--dtype", dtype, "--limit", "1", "--subset", "en", "--json", method="ar")[1]
        )
        assert {row["dtype"] for row in parsed} == {dtype if dtype != "auto" else "float32"}


def test_the_chat_template_is_used_unless_it_is_not_wanted(specbench: Specbench, rows: str, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "target", num_hidden_layers=1)
    (folder / "chat_template.jinja").write_text("User: {{ messages[0].content }} Answer:")
    chatting = "--target", str(folder)
    num_tokens = {}
    for chat in ("auto", "always", "never"):
        code, out, err = run(
            specbench,
            chatting,
            rows,
            "--chat",
            chat,
            "--limit",
            "1",
            "--subset",
            "en",
            "--output",
            chat,
            "--json",
            method="ar",
        )
        assert code == 0, err
        assert {row["chat"] for row in json.loads(out)} == {chat != "never"}
        num_tokens[chat] = records(tmp_path / chat)[0]["prompt_tokens"]
    assert num_tokens["auto"] == num_tokens["always"] == num_tokens["never"] + len("User:  Answer:")


def test_repeats_of_a_sampled_example_differ(
    specbench: Specbench, pair: tuple[str, ...], rows: str, tmp_path: Path
) -> None:
    words = (
        "--set",
        "generation.temperature=1.0",
        "--repeats",
        "2",
        "--limit",
        "1",
        "--output",
        "out",
        "--subset",
        "en",
    )
    assert run(specbench, pair, rows, *words)[0] == 0
    for method in ("ar", "sd"):
        made = {
            (r["subset"], r["example"], r["repeat"]): r["methods"][method]["token_ids"]
            for r in records(tmp_path / "out")
        }
        assert len(made) == 2
        assert all(made[subset, example, 0] != made[subset, example, 1] for subset, example, _ in made)


def script(*arguments: str, encoding: str = "utf-8", **streams: Any) -> subprocess.CompletedProcess[bytes]:
    variables = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run([sys.executable, "-m", "specbench", *arguments], env=variables, check=False, **streams)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_encoding_without_a_letter_loses_the_letter_only(
    encoding: str, specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, io.BytesIO] = {}
    for name in ("stdout", "stderr"):
        written[name] = io.BytesIO()
        monkeypatch.setattr(f"sys.{name}", io.TextIOWrapper(written[name], encoding=encoding, write_through=True))
    assert specbench("list", "tasks")[0] == 0
    assert b"mgsm" in written["stdout"].getvalue() and written["stderr"].getvalue() == b""
    assert specbench("validate", "ا.yaml")[0] == 2
    assert written["stderr"].getvalue().startswith(b"error: ?.yaml: ")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_encoding_without_a_letter_loses_the_letter_only_in_a_process(encoding: str) -> None:
    listed = script("list", "tasks", encoding=encoding, capture_output=True)
    assert listed.returncode == 0 and b"mgsm" in listed.stdout and listed.stderr == b""
    refused = script("validate", "ا.yaml", encoding=encoding, capture_output=True)
    assert refused.returncode == 2 and refused.stderr.startswith(b"error: ") and b"Traceback" not in refused.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
@pytest.mark.parametrize("arguments", [pytest.param(["list", "tasks"], marks=pytest.mark.slow), ["--version"]])
def test_a_full_disk_under_the_output_is_no_traceback(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        written = script(*arguments, stdout=full, stderr=subprocess.PIPE)
    told = b"error: cannot write the output (No space left on device): choose another path\n"
    assert (written.returncode, written.stderr) == (2, told)


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams by a shell")
@pytest.mark.parametrize(
    ("closed", "code", "told"),
    [
        (">&-", 2, b"error: standard output is closed: leave out >&-, or write >/dev/null\n"),
        (">&- 2>&-", 2, b""),
        ("<&- 2>&- >/dev/null", 0, b""),
    ],
)
def test_a_closed_stream_is_no_traceback(closed: str, code: int, told: bytes) -> None:
    command = f"{shlex.quote(sys.executable)} -m specbench --version {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, told)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise")
@pytest.mark.parametrize("arguments", [pytest.param(["list", "tasks"], marks=pytest.mark.slow), ["--version"]])
def test_a_closed_pipe_is_no_traceback(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        written = script(*arguments, stdout=closed, stderr=subprocess.PIPE)
    assert written.returncode in (0, 141) and written.stderr == b""


def test_a_drafter_alone_in_tokens_of_its_own_has_no_speed_up(specbench: Specbench) -> None:
    code, out, _ = specbench(
        "run", "--task", "mgsm", "--method", "draft-only", "--target", "embedded:drafter", "--drafter",
        "embedded:drafter-bytes", "--data", "sample", "--subset", "en", "--limit", "1", *SHORT, "--json",
    )  # fmt: skip
    row = json.loads(out)[-1]
    assert code == 0 and row["method"].startswith("draft-only")
    assert row["metrics"]["tokens_per_second"]["value"] > 0
    assert row["metrics"]["speedup"]["value"] is None
