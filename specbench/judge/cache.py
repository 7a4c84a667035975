"""Replies that were paid for, on disk, by what was asked: the same request is never made twice."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench import bounded
from specbench.completions import Reply
from specbench.errors import ConfigError
from specbench.files import write_atomically
from specbench.judge.prompts import Message
from specbench.judge.settings import JudgeSettings

TEMPERATURE = 0.0


def request_of(settings: JudgeSettings, messages: Sequence[Message]) -> dict[str, Any]:
    """All that a reply depends on, and nothing secret."""
    return {
        "url": settings.url, "model": settings.model, "temperature": TEMPERATURE,
        "max_tokens": settings.max_tokens, "messages": list(messages),
    }  # fmt: skip


def digest(request: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class Cache:
    """A file for each reply, written in one step: a process that is killed leaves a whole file or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, request: Mapping[str, Any]) -> Reply | None:
        """The reply to a request; None where there is none, or its file is damaged."""
        try:
            content = bounded.read_json(self.path(request), "delete it", strict=False)
            reply = Reply(**content["reply"])
            return reply if content["request"] == request else None
        except (ConfigError, ValueError, KeyError, TypeError):
            return None

    def put(self, request: Mapping[str, Any], reply: Reply) -> None:
        """Keep a reply. Raises ConfigError when the disk refuses."""
        text = json.dumps({"request": request, "reply": asdict(reply)}, ensure_ascii=False, indent=1)
        try:
            write_atomically(self.path(request), text)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: cannot keep the judge's replies there ({error.strerror or error}): free the disk, fix "
                "the permissions, or set XDG_CACHE_HOME to another folder"
            ) from error

    def path(self, request: Mapping[str, Any]) -> Path:
        """The file of the reply to a request."""
        name = digest(request)
        return self.folder / name[:2] / f"{name}.json"
