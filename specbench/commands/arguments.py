"""What several commands parse in the same way."""

from pathlib import Path

from specbench.errors import ConfigError


def split(names: str) -> list[str]:
    """The parts of a comma-separated option, without blanks."""
    return [part.strip() for part in names.split(",") if part.strip()]


def path(option: str, text: str | None) -> Path | None:
    """The path that an option gives. Raises ConfigError for an empty one, which would mean the current folder."""
    if text is not None and not text.strip():
        raise ConfigError(f"{option} '{text}': is empty: give a path, or leave the option out")
    return None if text is None else Path(text)
