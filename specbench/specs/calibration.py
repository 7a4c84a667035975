"""What a tuned method's file says about the examples that it was tuned on (key `calibration`)."""

from typing import Annotated

from pydantic import Field

from specbench.specs.components import Spec, Text

PromptDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class CalibrationSpec(Spec):
    """Which examples a method was tuned on: by the digests of their prompts, which the order of the rows, a limit or
    another copy of the data leave alone."""

    task: Text
    data: Text
    revision: str | None = None
    prompts: dict[str, tuple[PromptDigest, ...]]  # by subset
