"""Random allocation: each query is decoded by the target alone or by the drafter alone (arXiv:2502.20704, §5.3).

The baseline of tunability: with the share of the drafter its speed and its accuracy move on the line between the two
models, which a method that trades accuracy for speed must stay above.
"""

from dataclasses import dataclass

from specbench.decoding.drafters.none import NoDrafter
from specbench.decoding.ledger import StopRules
from specbench.decoding.loop import Generation
from specbench.decoding.sampling import Sampling
from specbench.models.pair import ModelPair
from specbench.running.compose import UNKNOWN, Decoder, QueryInfo, compose, stream_seed
from specbench.specs import MethodSpec

NUM_SEEDS = 2**63  # of stream_seed


@dataclass(frozen=True)
class RandomAllocation(Decoder):
    """`parts` decode alone: the target as `ar` does, the drafter as `draft-only` does."""

    alone: tuple[Decoder, Decoder]

    @property
    def parts(self) -> tuple[Decoder, ...]:
        """The target alone, the drafter alone."""
        return self.alone

    def chosen(self, seed: int, query: QueryInfo = UNKNOWN) -> Decoder:
        """Drawn anew for every query, from its own random stream: order of execution and resuming change nothing."""
        assert self.method.drafter_share is not None
        return self.alone[stream_seed(seed, "allocation") < self.method.drafter_share * NUM_SEEDS]

    def marks(self, chosen: Decoder) -> dict[str, str]:
        return {"decoded_by": chosen.method.decodes_with}

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Generation:
        """Decode one prompt with the model that its random stream chooses. Its passes are called the target's."""
        return self.chosen(seed).generate(prompt_ids, stop, seed)


def random_allocation(method: MethodSpec, models: ModelPair, sampling: Sampling) -> RandomAllocation:
    """The decoder of a method that shares the queries out; the pair must share a vocabulary."""
    target, drafter = (
        compose(method.model_copy(update={"decodes_with": model, "drafter_share": None}), models, sampling)
        for model in ("target", "drafter")
    )
    return RandomAllocation(method, models.target, NoDrafter(), target.rule, sampling, (target, drafter))
