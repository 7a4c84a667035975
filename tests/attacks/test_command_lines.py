"""Words that no command can take: one line on stderr and exit code 2, before anything is measured. Interrupts: 130,
and 143 by SIGTERM."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specbench import __main__ as entry
from specbench.core import environment

Specbench = Callable[..., tuple[int, str, str]]
ATTACKS = yaml.safe_load(Path(__file__).with_name("command_lines.yaml").read_text(encoding="utf-8"))
SHORT = {
    "BIG": str(10**30), "DIGITS": "9" * 5000, "LONG": "x" * 300, "THREE_BYTES": "\u4e09" * 100, "DEEP": "o/" * 3000,
}  # fmt: skip
RUN = ["run", "--task", "mgsm", "--method", "sd", "--subset", "en", "--limit", "1"]
ROOT = environment.PACKAGE.parent


def written_out(text: str) -> str:
    for short, long in SHORT.items():
        text = text.replace(short, long)
    return text


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack["name"] for attack in ATTACKS])
def test_it_is_refused_with_one_line_before_anything_is_measured(
    attack: dict, specbench: Specbench, tmp_path: Path
) -> None:
    words = [written_out(word) for word in attack["words"]]
    code, out, err = specbench(*(RUN + words[1:] if words[0] == "RUN" else words))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("error: ")
    assert written_out(attack["says"]) in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("typer", signal.SIGINT), ("torch", signal.SIGINT), ("typer", signal.SIGTERM),
        pytest.param("transformers", signal.SIGINT, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_an_interrupt_while_a_module_is_imported_is_one_line(
    module: str, number: signal.Signals, tmp_path: Path
) -> None:
    """The module stands in front of the library's, and turns the exception into another, as some libraries do."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores interrupts
    (tmp_path / f"{module}.py").write_text(
        "import os, signal\n"
        f"try:\n    os.kill(os.getpid(), {int(number)})\n    [None for _ in range(10**6)]\n"
        "except BaseException:\n    raise ImportError('not whole')\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "specbench", *RUN], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "interrupted\n")


def test_an_interrupt_before_anything_is_measured_is_one_line(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specbench.running.execute.execute", interrupted)
    assert specbench(*RUN) == (130, "", "interrupted\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_end_is_one_line_and_the_exit_code_that_shells_give_it(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*given: object, **options: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr("specbench.running.execute.execute", ended)
    monkeypatch.setattr(sys, "argv", ["specbench", *RUN])
    monkeypatch.setattr(entry, "received", [])
    earlier = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as done:
            entry.main()
    finally:
        for each, handler in earlier.items():
            signal.signal(each, handler)
    assert (done.value.code, *capsys.readouterr()) == (code, "", "interrupted\n")
