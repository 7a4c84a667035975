"""Decoders with a loop of their own: measured, counted and audited like any other method.

A method names the code: `decoder: {type: external, entry: "package.module:name"}` (or "path/to/file.py:name", where the
path starts at the YAML file). The code is one of two things:

- a function, called once per generation: `decode(prompt_ids, *, …, **options)`;
- a class, constructed once per pair and way of sampling, outside the clock, as `Name(*, …, **options)`, with a method
  `generate(prompt_ids, *, …)` that is called once per generation and starts afresh each time.

Each is passed, of the following, the keywords that its signature names (everything where it takes `**kwargs`). To a
class, the first four are passed when it is constructed; `generate` may name any of the eight.

target: LoadedModel             the target and its tokenizer; shared with all other methods: copy what you alter
drafter: LoadedModel | None     the draft model, where the YAML says `drafter: same_vocabulary` or `other_vocabulary`
num_draft_tokens: int           the most draft tokens of a step
sampling: Sampling              temperature (0 is greedy), top_k, top_p; code that does not take it is run greedily only
max_new_tokens: int             the most tokens that count: those beyond are cut, but their time is not
eos_token_ids: list[int]        every token that ends an answer; what follows it is cut. Empty in the warm-up: then
                                an answer has max_new_tokens tokens
seed: int                       of this generation; torch's own generators are seeded with it already
on_token: callable              takes a new token, or several, as soon as they are there; its first call stops the clock
                                of the time to first token. It returns True once the answer has ended, also at a stop
                                string, so that the decoder may return. Without a call the whole time, prompt included,
                                counts as decoding.

Returned are the new token ids without the prompt, or a `Decoded` (or any object with its attributes). The least of it:

    import torch

    def decode(prompt_ids, *, target, max_new_tokens, eos_token_ids, on_token):
        ids = torch.tensor([prompt_ids])
        for _ in range(max_new_tokens):
            best = target.model(ids).logits[0, -1].argmax()
            ids = torch.cat([ids, best.view(1, 1)], dim=1)
            if on_token([int(best)]) or int(best) in eos_token_ids:
                break
        return ids[0, len(prompt_ids) :].tolist()
"""

from specbench.external.contract import Decoded, LoadedModel

__all__ = ["Decoded", "LoadedModel"]
