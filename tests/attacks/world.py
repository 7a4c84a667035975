"""What hostile programs go for: a file in a home folder, a server, another process; and what became of these."""

import socket
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specbench.tasks.sandbox.run import Isolation, _works, strongest

SECRET = "kept-from-programs-7351"
DID_IT = "did it"  # what a program says that got what it wanted

MODES = ("strongest", "limits")


@cache
def isolation(mode: str) -> Isolation:
    """Limits alone, or the strongest isolation of this machine, which may be the same."""
    if mode == "limits":
        return "limits"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return strongest(_works)


@dataclass
class World:
    """The things, each of which a program finds by a word in its source: SECRET_FILE, SERVER_PORT, VICTIM_PID."""

    secret: Path
    port: int
    victim: subprocess.Popen[bytes]
    heard: list[bytes]

    def filled_in(self, program: str) -> str:
        program = program.replace("SECRET_FILE", repr(str(self.secret)))
        return program.replace("SERVER_PORT", str(self.port)).replace("VICTIM_PID", str(self.victim.pid))

    def harm(self, said: str) -> str:
        """What a program that said this achieved, "" for nothing."""
        with socket.create_connection(("127.0.0.1", self.port)) as own:
            own.recv(1)  # ends when the server has heard of this connection, and so of all before it
        happened = {
            DID_IT: DID_IT in said,
            "read the file": SECRET in said,
            "removed the file": not self.secret.exists(),
            "wrote a file": self.secret.with_name(self.secret.name + ".added").exists(),
            "killed another process": self.victim.poll() is not None,
            "reached the server": len(self.heard) > 1,
        }
        return ", ".join(text for text, true in happened.items() if true)


@contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as server:
        Path(home).chmod(0o777)  # what keeps a program out is the sandbox, not the user that it runs as
        secret, heard = Path(home) / "secret", list[bytes]()
        secret.write_text(SECRET)

        def listen() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                heard.append(b"connected")
                connection.close()

        threading.Thread(target=listen, daemon=True).start()
        with subprocess.Popen(["sleep", "600"]) as victim:
            try:
                yield World(secret, server.getsockname()[1], victim, heard)
            finally:
                victim.kill()
                server.shutdown(socket.SHUT_RDWR)
