"""Task and method files that would take all memory or time, run code, or pass one kind of value for another."""

from pathlib import Path

import pytest

from specbench.specs import yaml_files
from tests.attacks.bounds import refused, within_bounds

FILES = sorted((Path(__file__).parent / "data" / "yaml").glob("*.yaml"))
MADE = {  # text → what the error tells
    "many brackets": ("a: " + "[" * 200_000, "exceeds 64 levels"),
    "more than a megabyte": ("a: " + "x" * 2_000_000, "exceeds 1,048,576 bytes"),
    "a number of 200,000 digits": ("a: " + "9" * 200_000, "is not a valid int"),
    "a long sexagesimal number": ("a: " + "1:" * 60_000 + "1.5", "is not a valid float"),
    "a long prefix in many tags": (f"%TAG !a! {'b' * 100_000}\n---\n[{'!a!x 1,' * 19_000}]", "a tag of more than"),
    "many words": ("a b " * 25_000, "is not a mapping"),
    "not UTF-8": ("name: é".encode("latin-1"), "not UTF-8"),
    "NUL": ("name: \0", "unacceptable character"),
    "nothing": ("", "is not a mapping"),
}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What the command imports is none of the attack's time."""
    from specbench.specs.catalogue import load_method, load_task

    load_task("mgsm"), load_method("fsd")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_refused(specbench, file):
    told = file.read_text(encoding="utf-8").split("\n")[0].removeprefix("# refused: ")
    with within_bounds():
        outcome = specbench("validate", file)
    refused(outcome, told)


@pytest.mark.parametrize("name", MADE)
def test_a_made_file_is_refused(specbench, tmp_path, name):
    text, told = MADE[name]
    (tmp_path / "x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with within_bounds():
        outcome = specbench("validate", "x.yaml")
    refused(outcome, told)


def assert_refused_at(bound, specbench, file, text):
    file.write_text(text)
    with within_bounds():
        outcome = specbench("validate", file.name)
    refused(outcome, f"exceeds {bound} keys and values")


@pytest.mark.parametrize(
    "text", [f"a: [{'a,' * 500_000}]", "".join(f"a{i}: 1\n" for i in range(90_000))], ids=("values", "keys")
)
def test_no_more_is_read_than_the_bound(specbench, tmp_path, monkeypatch, text):
    """A megabyte of values or keys takes a minute to read. It is refused where it exceeds the bound, which is lower
    here than that of the command."""
    monkeypatch.setattr(yaml_files, "MAX_NODES", 2_000)
    assert_refused_at("2,000", specbench, tmp_path / "x.yaml", text)


@pytest.mark.slow
def test_no_more_is_read_than_the_bound_of_the_command(specbench, tmp_path):
    assert_refused_at("20,000", specbench, tmp_path / "x.yaml", "".join(f"a{i}: 1\n" for i in range(21_000)))


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["--set", "generation.top_k=" + "[" * 5000], "exceeds 64 levels"),
        (["--set", "generation.top_k=" + "9" * 5000], "is not a valid int"),
        (["--set", "generation.max_new_tokens=true"], "input should be a valid integer"),
        (["--set", "generation.max_new_tokens=" + "1" * 30], "input should be less than or equal to"),
    ],
    ids=("deep", "long number", "true", "beyond 63 bits"),
)
def test_a_value_of_the_command_line_is_refused(specbench, command, told):
    with within_bounds():
        outcome = specbench("run", "--task", "mgsm", "--method", "ar", *command, "--limit", "1")
    refused(outcome, told)


def test_a_table_of_the_settings_of_a_training_is_refused(specbench, tmp_path):
    aliases = "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))
    (tmp_path / "x.yaml").write_text("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + aliases)
    with within_bounds():
        outcome = specbench("train", "scdf", "--config", "x.yaml", "--output", "out")
    refused(outcome, "exceeds 20,000 keys and values")
