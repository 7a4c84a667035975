"""What methods ask of every model of a run: the lengths of its passes, and room for what it reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.decoding.bridges.translation import Translation
from specbench.models.causal_lm import CausalLM
from specbench.models.chunks import PACKED
from specbench.running.models import Models, bridged, parts
from specbench.running.prompts import Texts, encode
from specbench.specs import MethodSpec

SPARE = 1.5  # room for answers that a drafter of another vocabulary writes in more tokens than it writes the prompts


@dataclass
class Need:
    """What methods ask of a model: the lengths of its passes, whether it drafts with tokens that are others than the
    target's, whether it reads several continuations at once, and whether it decodes alone. `limit`: the most tokens
    that it is ever given."""

    model: CausalLM
    target: CausalLM
    limit: int | None
    lengths: set[int] = field(default_factory=lambda: {1})
    has_own_tokens: bool = False
    packs: bool = False
    decodes: bool = False

    def room(self, ids: list[int], num_new: int) -> int:
        """The tokens that the model holds of a prompt and its answer, which are `ids` and `num_new` to the target."""
        num_read = len(ids)
        if self.has_own_tokens:
            num_read = len(Translation(self.target.text_vocabulary, self.model.text_vocabulary).start(ids))
            num_new = math.ceil(num_new * SPARE * max(1, num_read / max(len(ids), 1)))
        return min(num_read + num_new, self.limit or num_read + num_new)

    def room_for(self, texts: Texts, num_new: int, chat: str) -> int:
        """The same of a conversation; what decodes alone reads it in its own words."""
        most = self.room(encode(self.target, texts, chat), num_new)
        own = len(encode(self.model, texts, chat)) + num_new if self.decodes else 0
        return max(most, min(own, self.limit or own))


def needs(models: Models, methods: Sequence[MethodSpec]) -> list[Need]:
    """What methods ask of every model."""
    target, limit = models.target, models.context_limit(methods)
    found = {id(model): Need(model, target, limit) for model in (target, *models.drafters.values())}
    for part in parts(methods):
        drafter = models.drafters.get(part.name)
        if part.decodes_with != "target":
            if drafter is not None:
                found[id(drafter)].decodes = True
            continue
        verified = part.num_draft_tokens + 1
        found[id(target)].lengths.add(verified)
        if drafter is None:
            continue
        need = found[id(drafter)]
        need.lengths.add(2)  # where all its tokens stood it has not read the last of them
        if bridged(part):
            need.has_own_tokens, need.limit = True, drafter.context_limit
            need.lengths.add(verified)
        if part.bridge.type == "string":  # walks along the bytes of a token, and along many beginnings of one
            need.packs = True
            need.lengths |= set(PACKED)
    return list(found.values())
