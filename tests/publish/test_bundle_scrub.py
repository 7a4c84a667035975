"""What enters a bundle that is made in a hostile home: no secret of it, in no form, and no name of its user."""

import base64
import json
from pathlib import Path

import pytest

from specbench.publish.bundle.crate import About
from specbench.publish.bundle.make import make_bundle
from specbench.publish.bundle.scrub import HOME, REMOVED, Scrubber
from specbench.publish.bundle.verify import verified
from specbench.results.leaderboard import write
from specbench.results.rows import MeasuredRun
from specbench.results.runs import RecordedRun
from tests.support.bundles import files_in
from tests.support.runs import run_into

USER = "mallory-o'neil"
ONLY_THERE = "in-no-known-place"
HF, OPENAI, NETRC, REMOTE, ODD = (
    "hf_" + "Ab1" * 11, "sk-proj-" + "Zy9" * 8, "netrc-passw0rd", "remote-passw0rd", 'quoted"back\\slash\u00e9-key',
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a user's name, tokens in variables and files, and a proxy with a password."""
    path = tmp_path / "home" / USER
    (path / ".cache" / "huggingface").mkdir(parents=True)
    (path / ".netrc").write_text(f"machine example.org login mallory password {NETRC}\n")
    (path / ".netrc").chmod(0o600)
    (path / ".cache" / "huggingface" / "token").write_text("stored-token-1234\n")
    (path / ".git-credentials").write_text(f"https://mallory:{REMOTE}@git.example.org\n")
    variables = {
        "HOME": str(path), "HF_TOKEN": HF, "OPENAI_API_KEY": OPENAI, "MY_SERVICE_SECRET": ODD,
        "WANDB_API_KEY": "f" * 40,
        "HTTPS_PROXY": "http://proxy-user:proxy-passw0rd@proxy.example.org:8080", "SSH_AUTH_SOCK": "/tmp/ssh/agent",
    }  # fmt: skip
    for name in ("HF_HOME", "HF_TOKEN_PATH", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return path


def planted(folder: Path, home: Path) -> None:
    """Puts secrets and homes wherever a run's files have texts."""
    secret = f"{HF} {OPENAI} {NETRC} {ODD} {'f' * 40} stored-token-1234 https://mallory:{REMOTE}@git.example.org"
    path = folder / "measurements.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["measurements"][0]["command"] += (
        f" --target {home}/models/x --judge-base-url http://a:proxy-passw0rd@h {secret}"
    )
    content["measurements"][0]["request"] = {"model_args": secret, f"key {HF}": ["/home/someone-else/data", str(home)]}
    path.write_text(json.dumps(content), encoding="utf-8")
    path = folder / "run.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["target"]["name"] = f"{home}/models/target"
    content["remote"] = f"https://token:{ONLY_THERE}@github.com/a/b.git"
    path.write_text(json.dumps(content), encoding="utf-8")
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    for generation in lines[0]["methods"].values():
        generation["text"] = f"my key is {secret}, in {home}/.ssh, like /home/user on any machine"
    text = "".join(json.dumps(line, ensure_ascii=number % 2 == 0) + "\n" for number, line in enumerate(lines))
    (folder / "records.jsonl").write_text(text, encoding="utf-8")
    path = folder / "environment.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["environments"][0]["packages"]["mine"] = f"1.0 @ file://{home}/src"
    path.write_text(json.dumps(content), encoding="utf-8")
    (folder / "id_ed25519").write_text(
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA==\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    (folder / ".env").write_text(f"HF_TOKEN={HF}\n")


def test_a_bundle_made_in_a_hostile_home(tmp_path: Path, home: Path) -> None:
    folder = home / f"runs-of-{HF}"
    run_into(folder, "sd", subsets=("en",), limit=2)
    planted(folder, home)
    (folder / "leaderboard.json").unlink()

    run = RecordedRun(folder)
    write(
        folder / "leaderboard.json",
        MeasuredRun(run.identity, run.tasks, run.method_specs, run.measurements[0], run.answers).rows(),
    )
    assert HF in (folder / "leaderboard.json").read_text(encoding="utf-8"), "rows have the command"
    make_bundle([folder], tmp_path / "made.tar.gz", About(f"Measured in {home}"))
    files = files_in(tmp_path / "made.tar.gz")
    told = b"\n".join(files.values()) + "\n".join(files).encode()
    secrets = [HF, OPENAI, NETRC, REMOTE, ODD, ONLY_THERE, "proxy-passw0rd", "f" * 40, "stored-token-1234"]
    secrets += [USER, "someone-else", str(home), "PRIVATE KEY"]
    for secret in secrets:
        forms = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
        forms.add(base64.b64encode(secret.encode()).decode().rstrip("="))
        assert not [form for form in forms if form.encode() in told], secret
    assert b"/home/user on any machine" in told, "what a model wrote of other homes stays"
    assert f"--target {HOME}/models/x".encode() in told and REMOVED.encode() in told
    assert sorted(name for name in files if name.startswith("runs/")) == sorted(
        f"runs/runs-of--removed/{name}" for name in ("run.json", "specs.json", "measurements.json", "records.jsonl",
                                                    "leaderboard.json", "environment.json")
    )  # fmt: skip
    with verified([tmp_path / "made.tar.gz"]) as [found]:
        assert found.all_problems() == [] and {each.level.name for each in found.rows} == {"recomputed"}


@pytest.mark.parametrize(
    "text", ["hf_" + "a" * 34, "sk-" + "a" * 40, "ghp_" + "b" * 36, "github_pat_" + "c" * 40, "AKIAABCDEFGHIJKLMNOP",
             "xoxb-123456789012-abc", "glpat-" + "d" * 20, "Bearer " + "e" * 20]
)  # fmt: skip
def test_what_has_the_form_of_a_key_is_removed(text: str) -> None:
    assert Scrubber().text(f"before {text} after") == f"before {REMOVED} after"
    assert not Scrubber().is_clean_line(f'{{"text": "{text}"}}')


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("/home/ada/models", "~/models"), ("/Users/ada/models", "~/models"), ("C:\\Users\\ada\\models", "~\\models"),
        ("/root/models", "~/models"), ("/rooted/models", "/rooted/models"), ("file:///home/ada", "file://~"),
        ("https://ada:pw@host/x", "https://[removed]host/x"), ("https://host/x@y", "https://host/x@y"),
        ("/data/ada-home/x", "/data/ada-home/x"), ("HF_TOKEN=abc specbench run", "HF_TOKEN=[removed] specbench run"),
        ("http://h/v1?api_key=abc&x=1", "http://h/v1?api_key=[removed]&x=1"),
        ("run --token abc", "run --token [removed]"), ("--set drafter.mask_token=5", "--set drafter.mask_token=5"),
        ("--set generation.max_new_tokens=8", "--set generation.max_new_tokens=8"),
    ],
)  # fmt: skip
def test_homes_and_passwords_of_addresses(text: str, scrubbed: str) -> None:
    assert Scrubber().text(text) == scrubbed


def test_short_values_and_places_are_no_secrets(home: Path) -> None:
    """A token of four letters would be removed from every word."""
    found = Scrubber.of_user(
        {"HOME": str(home), "X_TOKEN": "abcd", "SSH_AUTH_SOCK": "/tmp/agent.123", "A_KEY": "long-enough"}
    )
    assert "long-enough" in found.secrets and not {"abcd", "/tmp/agent.123"} & {*found.secrets}
    assert found.text(f"{home}/x and {home}-not", is_written_by_model=True) == f"~/x and {home}-not"
