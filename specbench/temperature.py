"""The sampling temperature as a checked number."""

from typing import Annotated

from pydantic import AfterValidator, Field

MIN_TEMPERATURE = 0.01  # below it, logits divided by it would overflow
MAX_TEMPERATURE = 100.0  # above it, float32 tells few logits apart: tokens would be drawn from noise
RANGE = f"0 (greedy), or {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}"


def greedy_or_warm(temperature: float) -> float:
    """The temperature itself. Raises ValueError between 0 and 0.01, and above 100."""
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"input should be 0 (greedy) or at least {MIN_TEMPERATURE}")
    if temperature > MAX_TEMPERATURE:
        raise ValueError(f"input should be at most {MAX_TEMPERATURE:g}")
    return temperature


Temperature = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False, json_schema_extra={"range": RANGE}),
    AfterValidator(greedy_or_warm),
]
DraftTemperature = Annotated[
    Temperature | None,
    Field(description="Temperature of the drafts, top-k and top-p staying the run's; null: the run's own temperature."),
]
