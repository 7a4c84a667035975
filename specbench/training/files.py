"""The output folder of a training: unfinished work is in `.training`, and a finished folder is a checkpoint."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.filesize import decimal
from safetensors import SafetensorError

from specbench.core import bounded
from specbench.core.errors import ConfigError
from specbench.core.files import TRAINING_RECORD, locked, write_atomically
from specbench.core.resumable_folder import flatten
from specbench.training.state import STATE

WORK = ".training"
LOCK = "lock"
WITHOUT_EFFECT = ("output", "checkpoint_every", "device")  # a resumed training may have others


class OutputFolder:
    """Takes one training, which the same command resumes. A finished one, and anything else, is never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / WORK

    def check(self) -> None:
        """Raise ConfigError for a folder that no training can go on in. Needs no model: it is said at once."""
        with self._reached():
            if (self.path / TRAINING_RECORD).exists():
                raise ConfigError(
                    f"--output {self.path}: a finished training is there, and it is not overwritten: choose another "
                    "--output, or delete it"
                )
            if self.path.is_dir():
                others = sorted(path.name for path in self.path.iterdir() if path.name != WORK)
                if others and not self.work.is_dir():
                    raise ConfigError(
                        f"--output {self.path}: is no unfinished training (it holds {others[0]}): choose another "
                        "--output"
                    )
            elif self.path.exists() or self.path.is_symlink():
                raise ConfigError(f"--output {self.path}: is a file: give a folder")

    def check_writable(self) -> None:
        """Raise ConfigError for a folder that cannot be made or takes no file. Leaves nothing behind."""
        with self._reached(), ExitStack() as made:
            for folder in reversed((self.path, *self.path.parents)):  # the deepest is removed first
                if not folder.exists():
                    made.callback(remove_empty, folder)
            self.path.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.path):
                pass

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"--output {self.path}: cannot be written ({error.strerror or error}): choose another --output, or fix "
                "the permissions"
            ) from error

    def check_room(self, num_bytes: int) -> None:
        """Raise ConfigError where the disk has less room than the training will take, beyond what it has written."""
        num_bytes -= sum(path.stat().st_size for path in self.work.rglob("*") if path.is_file())
        there = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        free = shutil.disk_usage(there).free
        if free < num_bytes:
            raise ConfigError(
                f"--output {self.path}: the training takes {decimal(num_bytes)} more there and {decimal(free)} are "
                "free: make room, or choose another --output"
            )

    @contextmanager
    def open(self, identity: Mapping[str, Any], is_main: bool = True) -> Iterator[None]:
        """Hold the folder for as long as the block runs; of several processes of one training the main one does.

        Raises ConfigError when another training has it, or when the unfinished one in it is another, with what differs.
        """
        if not is_main:
            yield
            return
        with ExitStack() as held:
            try:
                with self.writing():
                    held.enter_context(locked(self.work / LOCK, wait=False))
                    self._claim(json.loads(json.dumps(identity)))
            except BlockingIOError as error:
                raise ConfigError(
                    f"--output {self.path}: another process trains into it: wait for it, or choose another --output"
                ) from error
            yield

    def _claim(self, identity: dict[str, Any]) -> None:
        path = self.work / "identity.json"
        if not path.exists():
            write_atomically(path, json.dumps(identity, indent=2, ensure_ascii=False) + "\n")
            return
        changed = differences(bounded.read_mapping(path, f"delete {self.work} to begin anew", strict=False), identity)
        if changed:
            raise ConfigError(
                f"--output {self.path}: an unfinished training with other settings is there ({changed}): repeat its "
                "command, choose another --output, or delete it"
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A disk that is full, or takes nothing, ends in one line that says what is kept."""
        try:
            yield
        except BlockingIOError:
            raise
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"--output {self.path}: cannot write there ({getattr(error, 'strerror', None) or error}); "
                f"{self.kept()}: make room and repeat the command, or choose another --output"
            ) from error

    def kept(self) -> str:
        """What a training that ends now leaves for the same command to go on with."""
        if any(self.work.glob(f"*/{STATE}")):
            return f"the last checkpoint is kept in {self.path}, and the same command resumes it"
        return "nothing is kept yet"

    def publish(self, finished: Path) -> None:
        """Move a finished checkpoint into place, its record last, and drop the work."""
        names = sorted((path.name for path in finished.iterdir()), key=lambda name: name == TRAINING_RECORD)
        for name in names:
            os.replace(finished / name, self.path / name)
        shutil.rmtree(self.work, ignore_errors=True)


def remove_empty(folder: Path) -> None:
    """Remove a folder that may be there; one with something in it stays."""
    with suppress(OSError):
        folder.rmdir()


def differences(old: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The keys that two nested mappings differ in, with both values; empty where they are the same."""
    before, after = flatten(old), flatten(now)
    return "; ".join(
        f"{key}: {before.get(key, 'absent')} → {after.get(key, 'absent')}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )
