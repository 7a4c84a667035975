"""Any other server with OpenAI's path /v1/completions: speed and scores, but no acceptance."""

from specbench.core.registry import ENGINES
from specbench.integrations.served.engine import Engine


@ENGINES.register("openai")
class OpenAiCompatible(Engine):
    """A server of an unknown engine. If its events have no ids, answers are tokenized here."""

    name = "openai"
    max_stops = 4
