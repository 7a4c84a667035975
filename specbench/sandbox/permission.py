"""Whether programs that a model wrote may be run at all. They may not, until the user says so."""

_allowed = False


def allow(allowed: bool = True) -> None:
    """Say for this process that they may (`--allow-code-execution`)."""
    global _allowed
    _allowed = allowed


def allowed() -> bool:
    return _allowed
