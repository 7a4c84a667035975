"""The servers that a run starts: their logs, and their processes, which end with the run."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

from specbench.core.errors import ConfigError
from specbench.integrations.served import guard
from specbench.integrations.served.client import Client
from specbench.specs.run import StartSpec

PAUSE_SECONDS = 0.1  # between two checks whether a server is ready
END_SECONDS = 3 * guard.GRACE_SECONDS
LOG_CHARACTERS = 300  # number of a log's last characters in a message


class StartedServers:
    """Starts servers, and ends them when the block ends. A guard process ends each server if this process is killed.

    `folder`: the run's folder, to which the logs are moved in the end; None while it is unknown.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._guards: dict[str, subprocess.Popen[bytes]] = {}
        self._logs: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()
        self._move_logs()

    def is_up(self, name: str) -> bool:
        return name in self._guards

    def end_all(self) -> None:
        for process in self._guards.values():
            if process.stdin is not None:
                process.stdin.close()
        for process in self._guards.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
        self._guards.clear()

    def start(self, client: Client, spec: StartSpec) -> None:
        """Starts a server; `wait` returns when it is ready. Raises ConfigError if its address is already in use."""
        if client.listens():
            raise client.error("answers already, although the file has its start: end it, or leave start out")
        command = [sys.executable, guard.__file__, *spec.command]
        with self._log(client.name).open("ab") as log:
            self._guards[client.name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, **spec.environment},
                start_new_session=True,
            )  # fmt: skip

    def wait(self, client: Client, spec: StartSpec) -> None:
        """Returns when a server is ready. Raises ConfigError, with the end of its log, if it ends or takes too long."""
        start = time.monotonic()
        while not _is_ready(client, spec):
            code = self._guards[client.name].poll()
            if code is not None:
                raise client.error(f"ended with exit code {code} before it was ready: {self._end_of_log(client.name)}")
            if time.monotonic() - start > spec.timeout_seconds:
                raise client.error(
                    f"is not ready after {spec.timeout_seconds:g} s: set start.timeout_seconds higher, or correct its "
                    f"url or start.health ({spec.health}): {self._end_of_log(client.name)}"
                )
            time.sleep(PAUSE_SECONDS)

    def _log(self, name: str) -> Path:
        self._logs = self._logs or Path(mkdtemp(prefix="specbench-servers-"))
        return self._logs / f"server-{name}.log"

    def _end_of_log(self, name: str) -> str:
        log = self._log(name)
        text = " ".join(log.read_text(errors="replace").split())
        return f"{log} ends with: …{text[-LOG_CHARACTERS:]}" if text else f"{log} is empty"

    def _move_logs(self) -> None:
        """Appends the logs to those in the run's folder. Without a folder they stay where they are."""
        if self.folder is None or self._logs is None or not self.folder.is_dir():
            return
        for log in self._logs.iterdir():
            with (self.folder / log.name).open("ab") as file:
                file.write(log.read_bytes())
        shutil.rmtree(self._logs, ignore_errors=True)


def _is_ready(client: Client, spec: StartSpec) -> bool:
    try:
        return client.get(spec.health) is not None
    except ConfigError:
        return False
