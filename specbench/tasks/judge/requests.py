"""Requests to a judge: settings, prompts, the request for each answer of a run, and the cache of replies.

The default texts are those of MT-bench's single-answer grading (Zheng et al., arXiv:2306.05685; FastChat's
judge_prompts.jsonl: single-v1, single-math-v1 and their multi-turn forms). arXiv:2406.16758, appendix F.4, has the
first of them too. The texts with a reference answer (math) are for MT-bench's categories math, reasoning and coding
(FastChat's NEED_REF_CATS).
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol, TypedDict

from specbench.core import bounded
from specbench.core.completions import Reply, check_url
from specbench.core.errors import ConfigError
from specbench.core.files import write_atomically, writing
from specbench.core.markdown import split_blocks
from specbench.core.reasoning import answer_in
from specbench.core.values import WHOLE, json_digest
from specbench.records.records import Key, Record
from specbench.specs import templates
from specbench.specs.components import Name, Spec, Text
from specbench.specs.task import TaskSpec
from specbench.tasks.examples import Example, TaskData

Message = dict[str, str]  # role, content

HELPFUL = "You are a helpful assistant."
TASK = (
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
LOWEST, HIGHEST = 1.0, 10.0
NUMBER = "{rating}"  # its place in the form of a rating
BRACKETS = f"[[{NUMBER}]]"
GAP = r"[\s*_]{0,8}"  # white space and emphasis within a rating


@cache
def rating_pattern(form: str) -> re.Pattern[str]:
    """Returns the expression for a rating; its group is the number. Brackets may be escaped, as in `\\[\\[8\\]\\]`."""
    before, after = (
        GAP.join(rf"\\?{re.escape(character)}" for character in part if not character.isspace())
        for part in form.split(NUMBER)
    )
    end = r"(?![\d.]*\d)" if after[-1:].isdigit() or not after else ""
    return re.compile(rf"{before}{GAP}(\d+(?:\.\d+)?){GAP}{after}{end}", re.IGNORECASE)


class JudgeTemplate(Spec):
    """Another prompt for a judge, in place of MT-bench's. `row` has the judged turn's `question` and `answer`, its
    `reference` if the task shows one, and `turns`, the list of all turns so far with these keys."""

    name: Name
    """Name of the template, for the rows."""
    system: Text = HELPFUL
    """System message."""
    prompt: Text
    """Template of the user message."""
    rating: Text = BRACKETS
    """Form of the rating that the prompt asks for, with {rating} for the number from 1 to 10."""

    def check(self) -> None:
        templates.check(self.prompt, "prompt")
        unknown = templates.used(self.prompt, "row") - {"question", "answer", "reference", "turns"}
        if unknown:
            raise ConfigError(
                f"prompt: a judge's row has no column '{min(unknown)}': use question, answer, reference or turns"
            )
        before, *rest = self.rating.split(NUMBER)
        if len(rest) != 1 or not (before.strip() or rest[0].strip()):
            raise ConfigError(
                f"rating = {self.rating!r:.60}: must have {NUMBER} once, with text around it, "
                f"such as 'Rating: {NUMBER}/10'"
            )

    @property
    def label(self) -> str:
        """Returns the name with a digest of the content, for signatures."""
        return f"template {self.name} {json_digest(self.model_dump(), 8)}"


class Turn(NamedTuple):
    """One turn of a conversation. `reference`: a right answer, or None."""

    question: str
    answer: str
    reference: str | None


def make_messages(turns: Sequence[Turn], template: JudgeTemplate | None = None) -> list[Message]:
    """Returns the messages that request a rating of the last answer. They show the references if all turns have one.

    A rating that a candidate wrote into an answer is shown with its number in parentheses, `[[(10)]]`, so that a judge
    that repeats it does not give it; in code too, since fences are the candidate's to write. Raises ConfigError if the
    template fails."""
    pattern = rating_pattern(template.rating if template else BRACKETS)

    def in_parentheses(found: re.Match[str]) -> str:
        start, end = found.start(1) - found.start(), found.end(1) - found.start()
        return f"{found[0][:start]}({found[1]}){found[0][end:]}"

    turns = [turn._replace(answer=pattern.sub(in_parentheses, turn.answer)) for turn in turns]
    has_references = all(turn.reference is not None for turn in turns)
    if template is not None:
        shown = [
            {key: text for key, text in turn._asdict().items() if key != "reference" or has_references}
            for turn in turns
        ]
        try:
            user = templates.render(template.prompt, {**shown[-1], "turns": shown}, {})
        except Exception as error:  # an expression of a template may raise any
            raise ConfigError(f"judge template {template.name}: prompt: {error}: correct it") from error
        system = template.system
    elif len(turns) == 1:
        criteria = MATH + COMPARE if has_references else GENERAL + EXPLAIN
        parts = [f"[Instruction]\n{TASK.format(displayed=' displayed below')}{criteria}{RATE}"]
        parts.append(f"[Question]\n{turns[0].question}")
        if has_references:
            parts.append(f"[The Start of Reference Answer]\n{turns[0].reference}\n[The End of Reference Answer]")
        parts.append(f"[The Start of Assistant's Answer]\n{turns[0].answer}\n[The End of Assistant's Answer]")
        system, user = HELPFUL, "\n\n".join(parts)
    else:
        number = "second" if len(turns) == 2 else "last"
        parts = []
        criteria = TASK.format(displayed=" displayed below") + GENERAL
        criteria += FOCUS.format(which=f"{number} user ") + EXPLAIN
        if has_references:
            criteria = TASK.format(displayed="") + MATH + FOCUS.format(which=f"{number} ") + COMPARE
            pairs = [(turn.question, turn.reference or "") for turn in turns]
            parts = [_dialogue("Reference Answer", "Reference answer", pairs)]
        pairs = [(turn.question, turn.answer) for turn in turns]
        parts.append(_dialogue("Assistant A's Conversation with User", "Assistant A", pairs))
        system, user = criteria + RATE + "\n\n", "\n\n\n".join(parts)
    texts = {"system": system, "user": user}
    # A model may write half of a surrogate pair, which cannot be sent.
    return [{"role": role, "content": text.encode("utf-8", "replace").decode()} for role, text in texts.items()]


def _dialogue(title: str, speaker: str, pairs: Sequence[tuple[str, str]]) -> str:
    spoken = [f"### User:\n{question}\n\n### {speaker}:\n{text}" for question, text in pairs]
    return "\n\n".join([f"<|The Start of {title}|>", *spoken, f"<|The End of {title}|>"])


TAIL = 32_768  # characters at the end of a reply that are searched for a verdict
QUOTED = re.compile(r""""[^"]*"|“[^“”]*”|„[^„“]*“|«[^«»]*»|「[^「」]*」|`[^`]+`|(?<!\w)'[^']*'(?!\w)""")
LABEL = r"[\W_]{0,20}(?:(?:final |overall )?(?:rating|score|verdict|grade))?[\W_]{0,20}"


def parse_rating(reply: str, answer: str = "", form: str = BRACKETS) -> float | None:
    """Returns the verdict of a reply: its last rating outside of reasoning and quotation, or None unless that is from
    1 to 10. `answer`: what the candidate wrote; `form`: of a rating, with {rating} for the number."""
    rating = rating_pattern(form)
    # 1. Reasoning, blocks of code, and lines quoted with >.
    pieces = [piece.content for piece in split_blocks(answer_in(reply)) if piece.language is None]
    outside = re.sub(r"^[^\S\n]*>.*", "", "".join(pieces), flags=re.MULTILINE)[-TAIL:]
    # 2. Quotation marks. Some judges put them around their verdict, as the prompt does around its example: around a
    # rating that is alone on its line they are not a quotation, unless the candidate wrote it.
    alone = re.compile(rf"{LABEL}{rating.pattern}[\W_]{{0,20}}", re.IGNORECASE)
    written = _squeeze(answer)

    def without_rating(quoted: re.Match[str]) -> str:
        if not rating.search(quoted[0]):
            return quoted[0]
        start, end = outside.rfind("\n", 0, quoted.start()) + 1, outside.find("\n", quoted.end())
        is_own = "\n" in quoted[0] or alone.fullmatch(outside, start, len(outside) if end < 0 else end)
        return quoted[0] if is_own and _squeeze(quoted[0][1:-1]) not in written else " "

    ratings = rating.findall(QUOTED.sub(without_rating, outside))
    value = float(ratings[-1]) if ratings else math.nan
    return value if LOWEST <= value <= HIGHEST else None


def _squeeze(text: str) -> str:
    """Returns a text without what differs between an answer, the form in which it was shown, and a copy of that."""
    return re.sub(r"[\s\\()*_]+", "", text).lower()


URL_VARIABLE = "OPENAI_BASE_URL"
DEFAULT_URL = "https://api.openai.com/v1"


@dataclass(frozen=True)
class JudgeSettings:
    """The settings of a judge. `base_url`: any server with OpenAI's chat completions; None: the server in
    OPENAI_BASE_URL, else OpenAI's. `prices`: US dollars per million prompt tokens and reply tokens; None: the cost is
    unknown.

    Raises ConfigError for an invalid value.
    """

    model: str
    base_url: str | None = None
    prices: tuple[float, float] | None = None
    max_tokens: int = 2048  # of a reply, as in FastChat's judge
    concurrency: int = 4
    timeout_seconds: float = 120.0  # of one attempt, from the connection to the last byte
    num_retries: int = 6
    backoff_seconds: float = 1.0  # before the first retry; doubled for every further one
    cache: Path = field(
        default_factory=lambda: Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specbench" / "judge"
    )
    template: JudgeTemplate | None = None  # None: MT-bench's

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ConfigError("--judge: no model is named: name a model of the server, such as --judge gpt-4o")
        check_url(self.url, "--judge-base-url")
        if self.prices is not None and not all(0 <= price < math.inf for price in self.prices):
            raise ConfigError(f"--judge-prices {self.prices[0]:g},{self.prices[1]:g}: must be finite and not negative")

    @property
    def url(self) -> str:
        return (self.base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")

    @property
    def signature(self) -> str:
        """Returns a description of how ratings were made, for rows; it holds no secret."""
        prompt = self.template.label if self.template else "MT-bench single answer"
        return f"{self.model} at {self.url}, {prompt}, temperature 0"

    @property
    def rating_form(self) -> str:
        return self.template.rating if self.template else BRACKETS

    def cost(self, num_prompt_tokens: int | None, num_reply_tokens: int | None) -> float | None:
        """Returns the cost in US dollars; None if a price or a count is unknown."""
        if self.prices is None or num_prompt_tokens is None or num_reply_tokens is None:
            return None
        return (num_prompt_tokens * self.prices[0] + num_reply_tokens * self.prices[1]) / 1e6


JudgementKey = tuple[Key, str]  # a record, and a method of it


class JudgeRequest(TypedDict):
    """What a judge is asked, and where."""

    url: str
    model: str
    temperature: float
    max_tokens: int
    messages: list[Message]


Questions = Mapping[tuple[str, str, int], Example]  # by task, subset and index


class JudgedSubset(Protocol):
    """A subset of a task with its examples, such as that of a run."""

    @property
    def task(self) -> TaskSpec: ...

    @property
    def subset(self) -> str: ...

    @property
    def data(self) -> TaskData: ...


def index_examples(subsets: Iterable[JudgedSubset]) -> Questions:
    return {(each.task.name, each.subset, example.index): example for each in subsets for example in each.data.examples}


def make_requests(
    records: Iterable[Record], questions: Questions, settings: JudgeSettings
) -> dict[JudgementKey, JudgeRequest]:
    """Returns the request for every answer: all that its reply depends on, and no secrets. It has the conversation up
    to the answer, with the method's own answers from the records, and references that are texts if the judge sees
    references. Raises ConfigError if the judge's template fails."""
    by_key = {record.key: record for record in records}
    requests: dict[JudgementKey, JudgeRequest] = {}
    for key, record in by_key.items():
        task, subset, index, repeat, turn = key
        example = questions[task, subset, index]
        so_far = [by_key[task, subset, index, repeat, number] for number in range(turn + 1)]
        for method in record.methods:
            turns = [
                Turn(
                    text,
                    part.methods[method].answer,
                    _join_texts(part) if example.judge_sees_reference else None,
                )
                for text, part in zip(example.turns, so_far, strict=False)
            ]
            requests[key, method] = {
                "url": settings.url, "model": settings.model, "temperature": 0.0, "max_tokens": settings.max_tokens,
                "messages": make_messages(turns, settings.template),
            }  # fmt: skip
    return requests


def _join_texts(record: Record) -> str | None:
    """Returns the reference as one text, with empty lines between alternatives; None for tests of code."""
    reference = record.reference
    texts = [reference] if isinstance(reference, str) else reference if isinstance(reference, list) else []
    return "\n\n".join(text for text in texts if text.strip()) or None


def digest(request: Mapping[str, object]) -> str:
    return json_digest(request, WHOLE)


class ReplyCache:
    """One file per reply, written atomically: a killed process leaves a complete file or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, request: Mapping[str, object]) -> Path:
        """Returns the file of the reply to a request."""
        name = digest(request)
        return self.folder / name[:2] / f"{name}.json"

    def get(self, request: Mapping[str, object]) -> Reply | None:
        """Returns the reply to a request; None if there is none, or its file is damaged."""
        try:
            content = bounded.read_json(self.path(request), "delete it", strict=False)
            reply = Reply(**content["reply"])
            return reply if content["request"] == request else None
        except (ConfigError, ValueError, KeyError, TypeError):
            return None

    def put(self, request: Mapping[str, object], reply: Reply) -> None:
        """Stores a reply. Raises ConfigError if the disk is not writable."""
        text = json.dumps({"request": request, "reply": asdict(reply)}, ensure_ascii=False, indent=1)
        remedy = "free the disk, fix the permissions, or set XDG_CACHE_HOME to another folder"
        with writing(self.folder, remedy):
            write_atomically(self.path(request), text)
