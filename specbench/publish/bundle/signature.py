"""Signatures of files by ssh keys, as git makes them: `ssh-keygen -Y`. Nothing is sent, and no key is read here."""

import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

from specbench.core.errors import ConfigError

NAMESPACE = "specbench-bundle"
SECONDS = 600  # of a program that hashes a file; a signer may have to type a passphrase
SUFFIX = ".sig"


def sign(file: Path, key: Path) -> Path:
    """Signs the exact bytes of a file with a private key, or with the key of an agent whose public key is given.
    Returns FILE.sig, which is replaced if it exists. Raises ConfigError if that fails."""
    if not file.is_file():
        raise ConfigError(f"{file}: no such file: give a bundle that `specbench bundle` made")
    if not key.is_file():
        raise ConfigError(f"--key {key}: no such file: give an ssh key, such as ~/.ssh/id_ed25519")
    made = file.with_name(file.name + SUFFIX)
    made.unlink(missing_ok=True)
    done = _run("sign", "-f", str(key), "-n", NAMESPACE, str(file), interactive=True)
    if done.returncode or not made.is_file():
        raise ConfigError(f"--key {key}: cannot sign {file}: {_reason(done)}: check the key and its passphrase")
    return made


def signer_of(file: Path, allowed_signers: Path | None) -> tuple[str | None, str]:
    """Returns who signed a file as FILE.sig says, by a file of allowed signers, and a sentence about it. None: there is
    no signature, it is of other bytes, or its key is nobody's in the file."""
    signature = file.with_name(file.name + SUFFIX)
    if not signature.is_file():
        return None, f"no signature ({signature.name} is absent)"
    if shutil.which("ssh-keygen") is None:
        return None, MISSING
    if allowed_signers is None:
        done = _run("check-novalidate", "-n", NAMESPACE, "-s", str(signature), stdin=file)
        fingerprint = re.search(r"SHA256:\S+", _told(done))
        if done.returncode or fingerprint is None:
            return None, f"{signature.name} is not a signature of this file ({_reason(done)})"
        return None, f"a key signed it, {fingerprint[0]}, but whose it is needs --signers FILE"
    if not allowed_signers.is_file():
        raise ConfigError(f"--signers {allowed_signers}: no such file: give allowed signers, as git takes them")
    found = _run("find-principals", "-f", str(allowed_signers), "-s", str(signature))
    names = found.stdout.split("\n") if not found.returncode else []
    for name in filter(None, map(str.strip, names)):
        done = _run("verify", "-f", str(allowed_signers), "-I", name, "-n", NAMESPACE, "-s", str(signature), stdin=file)
        if not done.returncode:
            return name, f"signed by {name}"
        return None, f"{signature.name} is not a signature of this file ({_reason(done)})"
    return None, f"{signature.name} is by a key that {allowed_signers.name} does not have"


def signature_problem(file: Path) -> str | None:
    """Returns why FILE.sig is not a signature of a file by any key; None if it is one, or if there is none."""
    signature = file.with_name(file.name + SUFFIX)
    if not signature.is_file():
        return None
    done = _run("check-novalidate", "-n", NAMESPACE, "-s", str(signature), stdin=file)
    return f"is not a signature of {file.name} ({_reason(done)})" if done.returncode else None


MISSING = "ssh-keygen is not installed, so signatures cannot be checked: install OpenSSH 8.1 or newer"


def _run(
    action: str, *arguments: str, stdin: Path | None = None, interactive: bool = False
) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("ssh-keygen")
    if program is None:
        raise ConfigError(MISSING)
    try:
        with nullcontext(subprocess.DEVNULL) if stdin is None else stdin.open("rb") as given:
            return subprocess.run(
                [program, "-Y", action, *arguments], stdin=None if interactive else given, capture_output=True,
                encoding="utf-8", errors="replace", timeout=SECONDS,
            )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"ssh-keygen -Y {action}: no answer after {SECONDS} s: try again") from error


def _told(done: "subprocess.CompletedProcess[str]") -> str:
    return f"{done.stdout}\n{done.stderr}"


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    return next((line.strip()[:200] for line in _told(done).splitlines() if line.strip()), "no reason given")
