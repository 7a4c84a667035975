"""Any other server with OpenAI's /v1/completions: speed and scores, but no acceptance."""

from specbench.core.registry import ENGINES
from specbench.served.engine import Engine


@ENGINES.register("openai")
class OpenAiCompatible(Engine):
    """A server of which only the protocol is known. Without ids in its events, answers are tokenized here."""

    name = "openai"
    max_stops = 4
