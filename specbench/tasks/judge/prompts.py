"""The prompts of a judge, and the rating in its reply.

The texts are MT-bench's for single-answer grading (Zheng et al., arXiv:2306.05685, in the version of FastChat's
judge_prompts.jsonl: single-v1, single-math-v1 and their multi-turn forms); the first is also that of arXiv:2406.16758,
appendix F.4. Those with a reference answer (math) are for MT-bench's categories math, reasoning and coding: FastChat's
NEED_REF_CATS.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

Message = dict[str, str]  # role, content

HELPFUL = "You are a helpful assistant."
ASKED = (
    "Please act as an impartial judge and evaluate the quality of the response provided by an AI assistant to the user "
    "question{displayed}. "
)
GENERAL = (
    "Your evaluation should consider factors such as the helpfulness, relevance, accuracy, depth, creativity, and "
    "level of detail of the response. "
)
MATH = (
    "Your evaluation should consider correctness and helpfulness. You will be given a reference answer and the "
    "assistant's answer. "
)
FOCUS = "You evaluation should focus on the assistant's answer to the {which}question. "  # as it is printed
EXPLAIN = "Begin your evaluation by providing a short explanation. "
COMPARE = (
    "Begin your evaluation by comparing the assistant's answer with the reference answer. Identify and correct any "
    "mistakes. "
)
RATE = (
    "Be as objective as possible. After providing your explanation, you must rate the response on a scale of 1 to 10 "
    'by strictly following this format: "[[rating]]", for example: "Rating: [[5]]".'
)
RATING = re.compile(r"\[\[\s*(\d+(?:\.\d+)?)\s*\]\]")
LOWEST, HIGHEST = 1.0, 10.0


class Turn(NamedTuple):
    """One turn of a conversation; `reference`: a right answer, if there is one."""

    question: str
    answer: str
    reference: str | None


def messages(turns: Sequence[Turn]) -> list[Message]:
    """Returns the request to rate the answer of the last turn. It shows the references if all turns have one."""
    has_references = all(turn.reference is not None for turn in turns)
    make = _single if len(turns) == 1 else _conversation
    system, user = make(turns, has_references)
    texts = {"system": system, "user": user}
    # Half of a surrogate pair, which a model may write, cannot be sent.
    return [{"role": role, "content": text.encode("utf-8", "replace").decode()} for role, text in texts.items()]


def _single(turns: Sequence[Turn], has_references: bool) -> tuple[str, str]:
    (turn,) = turns
    criteria = MATH + COMPARE if has_references else GENERAL + EXPLAIN
    parts = ["[Instruction]\n" + ASKED.format(displayed=" displayed below") + criteria + RATE]
    parts.append(f"[Question]\n{turn.question}")
    if has_references:
        parts.append(f"[The Start of Reference Answer]\n{turn.reference}\n[The End of Reference Answer]")
    parts.append(f"[The Start of Assistant's Answer]\n{turn.answer}\n[The End of Assistant's Answer]")
    return HELPFUL, "\n\n".join(parts)


def _conversation(turns: Sequence[Turn], has_references: bool) -> tuple[str, str]:
    number = "second" if len(turns) == 2 else "last"
    if has_references:
        criteria = ASKED.format(displayed="") + MATH + FOCUS.format(which=f"{number} ") + COMPARE
    else:
        criteria = (
            ASKED.format(displayed=" displayed below") + GENERAL + FOCUS.format(which=f"{number} user ") + EXPLAIN
        )
    parts = []
    if has_references:
        pairs = [(turn.question, turn.reference or "") for turn in turns]
        parts = [_dialogue("Reference Answer", "Reference answer", pairs)]
    pairs = [(turn.question, turn.answer) for turn in turns]
    parts.append(_dialogue("Assistant A's Conversation with User", "Assistant A", pairs))
    return criteria + RATE + "\n\n", "\n\n\n".join(parts)


def _dialogue(title: str, speaker: str, pairs: Sequence[tuple[str, str]]) -> str:
    spoken = [f"### User:\n{question}\n\n### {speaker}:\n{text}" for question, text in pairs]
    return "\n\n".join([f"<|The Start of {title}|>", *spoken, f"<|The End of {title}|>"])


def rating(reply: str) -> float | None:
    """Returns the rating in a reply, 1 … 10; None if there is none, or several, or one outside the scale."""
    found = {float(number) for number in RATING.findall(reply)}
    value = found.pop() if len(found) == 1 else None
    return value if value is not None and LOWEST <= value <= HIGHEST else None
