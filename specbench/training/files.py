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

from specbench.errors import ConfigError
from specbench.files import TRAINING_RECORD, write_atomically
from specbench.running.file_lock import locked
from specbench.running.run_folder import flatten
from specbench.training.state import STATE

WORK = ".training"
LOCK = "lock"


class OutputFolder:
    """Takes one training, which the same command resumes. A finished one, and anything else, is never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / WORK

    def check(self) -> None:
        """Raise ConfigError for a folder that no training can go on in. Needs no model: it is said at once."""
        if (self.path / TRAINING_RECORD).exists():
            raise ConfigError(
                f"--output {self.path}: a finished training is there, and it is not overwritten: choose another "
                "--output, or delete it"
            )
        if self.path.is_dir():
            others = sorted(path.name for path in self.path.iterdir() if path.name != WORK)
            if others and not self.work.is_dir():
                raise ConfigError(
                    f"--output {self.path}: is no unfinished training (it holds {others[0]}): choose another --output"
                )
        elif self.path.exists() or self.path.is_symlink():
            raise ConfigError(f"--output {self.path}: is a file: give a folder")

    def check_writable(self) -> None:
        """Raise ConfigError for a folder that cannot be made or takes no file. Leaves nothing behind."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise ConfigError(
                f"--output {self.path}: cannot be written ({error.strerror or error}): choose another --output, or fix "
                "the permissions"
            ) from error
        finally:
            for folder in missing:
                with suppress(OSError):
                    folder.rmdir()

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
        try:
            old = flatten(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, RecursionError, AttributeError) as error:
            raise ConfigError(f"{path}: not valid JSON ({error}): delete {self.work} to begin anew") from error
        now = flatten(identity)
        changed = [f"{key}: {old.get(key, 'absent')} → {now.get(key, 'absent')}"
                   for key in sorted({*old, *now}) if old.get(key) != now.get(key)]  # fmt: skip
        if changed:
            raise ConfigError(
                f"--output {self.path}: an unfinished training with other settings is there ({'; '.join(changed)}): "
                "repeat its command, choose another --output, or delete it"
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
