"""A decoder that sends the token ids of a prompt to a server and reads the answer event by event."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from specbench.core.errors import ConfigError
from specbench.core.reasoning import part_answer
from specbench.core.registry import DECODERS
from specbench.decoding.decoder import Decoder
from specbench.decoding.drafters import COLD, SHUFFLED
from specbench.decoding.loop import (
    POSITION_COLUMNS,
    GenerationOutput,
    GenerationState,
    StopRules,
    WrittenText,
)
from specbench.decoding.proposal import Step
from specbench.decoding.sampling import Sampling
from specbench.integrations.served.acceptance import (
    VARYING,
    Acceptance,
    Impossible,
    contradiction,
    corrected_for_varying_drafts,
    from_passes,
    kept_counts,
    steps_of,
)
from specbench.integrations.served.engine import (
    MAX_HELD,
    Body,
    Counters,
    Engine,
    Event,
    EventContent,
    acceptance_between,
    held_ids,
    json_mapping,
)
from specbench.integrations.served.server import ServedPair, Server
from specbench.models.causal_lm import ModelPair
from specbench.records.generation import External
from specbench.specs.components import SERVED
from specbench.specs.method import MethodSpec
from specbench.specs.run import BASELINE

FAILED = ("abort", "error")  # finish reasons of answers that an engine aborted
NUM_CONTROLS = 20  # greedy answers per subset that the baseline gives twice
TEXTS = ("text", "reasoning")  # fields of an event that are not the last value of anything
BOUND = "α is an upper bound: one more token may have been verified in the step that ended an answer"
CONTRADICT = "its counts contradict each other ({})"
UNKNOWN = "none"  # prefix of the acceptance_source of an answer whose acceptance is not known


@dataclass
class Answer:
    """An answer while it is read: the tokens so far, (seconds, number of tokens) of each read, and the events.
    `reported`: the last value that the server sent for each field."""

    state: GenerationState
    reads: list[tuple[float, int]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    text: str = ""  # of a server that sends no ids
    first_text: str = ""  # its first part
    lengths: list[int] = field(default_factory=list)  # characters of `text` after each read
    answer_seconds: float | None = None  # of the first read with text of the answer proper; None: it has none
    is_reasoning: bool = False  # it ends with reasoning that the server sent in a field of its own
    seconds: float = 0.0  # time of the last event
    continues_after_end: bool = False  # the server wrote tokens after the pass that ended the answer
    reported: EventContent = field(default_factory=EventContent)

    def add(self, seconds: float, piece: EventContent) -> None:
        """Adds an event. All tokens of a read have the same time; tokens after the end of the answer do not count."""
        self.seconds = seconds
        before = self.state.num_new_tokens
        self.continues_after_end |= self.state.finished and bool(piece.token_ids)
        for token in piece.token_ids or ():
            if not self.state.finished:
                self.state.start(token)
        num_new = self.state.num_new_tokens - before
        text = ""
        if piece.token_ids is None:
            # Reasoning in a field of its own gets its tags again, so that it is parted as that of any other engine.
            tags = self.state.rules.reasoning
            was_reasoning = self.is_reasoning
            text = piece.reasoning + piece.text
            if tags is not None and (piece.reasoning or (was_reasoning and piece.text)):
                self.is_reasoning = not piece.text
                begin = "" if was_reasoning else tags.open
                text = f"{begin}{piece.reasoning}{tags.close * (not self.is_reasoning)}{piece.text}"
        self.text += text
        self.first_text = self.first_text or text
        if num_new or (text and not self.state.finished):
            self.reads.append((seconds, num_new))
            self.lengths.append(len(self.text))
        values = {name: value for name, value in vars(piece).items() if value is not None and name not in TEXTS}
        self.reported = replace(self.reported, **values)

    def has_stop(self, stops: Sequence[str]) -> bool:
        """Returns whether the text has one of the stop strings outside of its reasoning."""
        text = self.text[self._start_in(self.text) :]
        return any(stop in text for stop in stops)

    def _start_in(self, text: str) -> int:
        """Returns the place at which the answer proper starts, behind the reasoning and the blank lines after it."""
        rules = self.state.rules
        if rules.reasoning is None:
            return 0
        return part_answer(text, rules.reasoning, rules.opens_reasoning(self.state.prompt_ids)).start

    def first_read_of_answer(self) -> float | None:
        """Returns the seconds of the first read with text of the answer proper; None if all text is reasoning.

        Tokens that end the answer have no text. Must be called before the reads of an engine without ids are joined.
        """
        rules, ids = self.state.rules, self.state.new_ids
        if self.reported.token_ids is None:
            start, ends = self._start_in(self.text), self.lengths
        else:
            text = rules.decode(ids) if rules.reasoning else ""
            start = self._start_in(text)
            if start:  # in tokens
                start = bisect_right(range(1, len(ids) + 1), start, key=lambda num: len(rules.decode(ids[:num])))
            ends = list(accumulate(num for _, num in self.reads))
        return next((seconds for (seconds, _), end in zip(self.reads, ends, strict=True) if end > start), None)


def memory_of_server(engine: Engine, speculation: Mapping[str, object]) -> str | None:
    """Returns what the drafter of a server remembers of other requests, as its file declares or as is usual for the
    method; None if it has no memory."""
    usual = "run" if speculation.get("method") in engine.learning_methods else None
    return {"prompt": COLD, "run": SHUFFLED}.get(str(speculation.get("memory") or usual))


@dataclass(frozen=True)
class ServedDecoder(Decoder):
    """The decoder of one server. `others`: the servers that must be idle while it decodes."""

    server: Server
    others: tuple[Server, ...]
    sampling: Sampling
    controls: list[bool] = field(default_factory=list)  # `same_again` of the answers so far
    stopped_reasoning: list[bool] = field(default_factory=list)  # not empty if the server stopped in a reasoning

    @property
    def code_revision(self) -> str:
        """The digest of the configuration that the server reports."""
        return self.server.digest

    @property
    def memory(self) -> str | None:
        return memory_of_server(self.server.engine, self.method.decoder.options if self.method.decoder else {})

    def generate(self, prompt_ids: list[int], stop: StopRules, seed: int) -> GenerationOutput:
        """Decodes one prompt. Raises ConfigError, with the server's name, for an answer that cannot be measured."""
        # 1. The answer of a server that does nothing else.
        counters = [server.wait_until_idle() for server in (*self.others, self.server)]
        answer = self._read_answer(prompt_ids, stop, seed)
        self._check_prompt(answer)
        state, reported = answer.state, answer.reported
        assert state.finish is not None

        # 2. Its steps, or without single steps the counts up to its end.
        acceptance, source = self._acceptance(answer, counters[-1])
        num_tokens, most_tokens = state.num_new_tokens, state.num_new_tokens + state.num_remaining
        steps, kept, num_passes = list[Step](), None, None
        if acceptance is not None and acceptance.passes is not None:
            steps = steps_of(acceptance.passes, num_tokens, most_tokens)
        elif acceptance is not None:
            counts = kept_counts(acceptance, num_tokens, most_tokens, self.method.num_draft_tokens)
            kept = counts.accepted, counts.verified
            if counts.is_bound:
                source = replace(acceptance, note="; ".join(filter(None, (acceptance.note, BOUND)))).text
        if acceptance is not None:
            num_passes = len(steps) or acceptance.num_passes

        # 3. The baseline is its own control: it answers greedy prompts twice, but warm-ups (without end tokens) once.
        same_again = None
        is_control = self.method.name == BASELINE and self.sampling.greedy and stop.eos_token_ids
        if is_control and len(self.controls) < NUM_CONTROLS:
            self.server.wait_until_idle()
            same_again = self._read_answer(prompt_ids, stop, seed).state.new_ids == state.new_ids
            self.controls.append(same_again)

        first, last = answer.reads[0], answer.reads[-1]
        has_time = reported.impossible_time is None
        return GenerationOutput(
            token_ids=state.new_ids, finish=state.finish, steps=steps, positions=dict.fromkeys(POSITION_COLUMNS),
            target_passes=[], draft_passes=[], ttft_seconds=first[0], draft_prefill_seconds=None,
            decode_seconds=last[0] - first[0],
            external=External(
                num_first_tokens=first[1], num_target_passes=None if num_passes is None else num_passes + 1,
                acceptance_source=source,
                totals=None if acceptance is None else (
                    acceptance.num_drafted, acceptance.num_verified, acceptance.num_accepted
                ),
                kept=kept, events=rounded(answer.reads), cached_tokens=reported.num_cached,
                server_seconds=reported.seconds if has_time else None,
                server_decode_seconds=reported.decode_seconds if has_time else None,
                impossible_time=reported.impossible_time, same_again=same_again,
                was_idle=all(each.num_running == 0 for each in counters), answer_seconds=rounded_or_none(answer),
            ),
        )  # fmt: skip

    def generate_under_load(self, prompt_ids: list[int], stop: StopRules, seed: int, *, check: bool) -> dict[str, Any]:
        """Returns the fields of `LoadAnswer` that one answer of a window gives; the server answers several requests at
        once. `check`: whether a cached prompt is an error."""
        answer = self._read_answer(prompt_ids, stop, seed)
        if check:
            self._check_prompt(answer)
        num_tokens = answer.state.num_new_tokens
        passes: int | None = num_tokens - 1
        if self.method.name != BASELINE:
            acceptance, _ = self._acceptance(answer, None)
            passes = acceptance.num_passes if acceptance is not None else None
            if acceptance is not None and acceptance.passes is not None:
                passes = len(steps_of(acceptance.passes, num_tokens))
        written = WrittenText.of(stop, prompt_ids, answer.state.new_ids) if stop.reasoning else None
        return {
            "token_ids": answer.state.new_ids, "passes": passes, "reads": rounded(answer.reads),
            "answer_seconds": rounded_or_none(answer),
            "reasoning_tokens": 0 if written is None else written.num_reasoning_tokens,
            "reasoning_closed": written is None or written.is_closed,
        }  # fmt: skip

    def _read_answer(self, prompt_ids: list[int], stop: StopRules, seed: int) -> Answer:
        """Reads an answer to its end; only up to there if the engine sends its counts with every event."""
        server = self.server
        state = GenerationState(list(prompt_ids), stop)
        engine, client, answer = server.engine, server.client, Answer(state)
        # 1. A server would also stop inside reasoning, so that it gets no stop strings then.
        holds_back = bool(self.stopped_reasoning) or stop.opens_reasoning(prompt_ids)
        sent = () if holds_back else stop.stop_strings[: engine.max_stops]
        unsent = stop.stop_strings[len(sent) :]
        body = engine.request(list(prompt_ids), self.sampling, state.num_remaining, seed, list(sent), server.model)
        if engine.sends_text:
            text = self.model.tokenizer.decode(prompt_ids, skip_special_tokens=True)
            body["messages"] = [{"role": "user", "content": text}]

        # 2. The events.
        num_read = 0
        with closing(client.stream(engine.path, body)) as stream:
            for seconds, event in stream:
                with client.reading():
                    piece = engine.read(event, num_read)
                    ids = self._checked(piece.token_ids or ())
                    if piece.num_held > 0 and ids:  # the engine held back ids that complete no character
                        try:
                            held = held_ids(piece.text, ids[-1], piece.num_held, self.model.text_vocabulary)
                        except ConfigError as error:  # the bytes are not a character
                            every = self._ids_without_stream(body)[num_read:]
                            held = every[: piece.num_held]
                            if every[piece.num_held :][: len(ids)] != ids:
                                raise client.error(str(error)) from error
                        piece = replace(piece, token_ids=(*held, *ids))
                num_read += len(piece.token_ids or ())
                answer.events.append(event)
                answer.add(seconds, piece)
                # An engine that sends only text may have sent a stop string that the request left out.
                has_stop = answer.reported.token_ids is None and bool(unsent) and answer.has_stop(unsent)
                if has_stop or (state.finished and not engine.reports_at_end):
                    break
            else:
                self._check_end(answer, body, num_read)

        # 3. Its end. If the server ended it at a stop string inside reasoning, the next requests have no stop strings:
        #    the client looks for them.
        self._finish(answer)
        is_stopped = stop.stop_strings and answer.reported.finish not in (None, "length")
        if not is_stopped or self.stopped_reasoning or WrittenText.of(stop, prompt_ids, state.new_ids).is_closed:
            return answer
        self.stopped_reasoning.append(True)
        return self._read_answer(prompt_ids, stop, seed)

    def _check_end(self, answer: Answer, body: Body, num_read: int) -> None:
        """Adds the tokens that an engine held back, since they complete no character; at a limit they may be lost.
        Raises ConfigError for a stream that was cut, and for other numbers of tokens than the usage has."""
        client = self.server.client
        reported = answer.reported
        if reported.finish is None:
            raise client.error(
                f"ended its answer after {num_read} tokens without a reason: the stream was cut; see the server's log"
            )
        num_new = reported.num_new_tokens
        is_cut = reported.finish == "length" and num_new is not None and 0 <= num_new - num_read <= MAX_HELD
        if num_new not in (None, num_read) and reported.token_ids is not None and not is_cut:
            held = self._ids_without_stream(body)[num_read:]
            if num_read + len(held) != num_new:
                raise client.error(
                    f"counts {num_new} new tokens in its usage, but sent {num_read}: its counts cannot be used; "
                    "report it to the engine"
                )
            answer.add(answer.seconds, EventContent(token_ids=held))

    def _ids_without_stream(self, body: Body) -> tuple[int, ...]:
        """Requests the same answer once more without a stream, and returns its ids."""
        engine = self.server.engine
        answer = json_mapping(lambda path: self.server.client.get(path, {**body, "stream": False}), engine.path)
        with self.server.client.reading():
            return self._checked(EventContent(token_ids=engine.all_ids(answer)).token_ids or ())

    def _checked(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the ids. Raises ConfigError for a token that the target does not have."""
        wrong = [token for token in ids if not 0 <= token < self.model.vocab_size]
        if wrong:
            raise self.server.client.error(
                f"sent token {wrong[0]}, but the target has tokens 0 to {self.model.vocab_size - 1}: it serves another "
                "model"
            )
        return ids

    def _finish(self, answer: Answer) -> None:
        """Ends the state of an answer, and adds the end token, which some engines do not send, to the last read."""
        state, rules, reported = answer.state, answer.state.rules, answer.reported
        finish = str(reported.finish)
        sends_ids = reported.token_ids is not None
        if finish in FAILED:
            raise self.server.client.error("aborted the request: see the server's log")
        answer.answer_seconds = answer.first_read_of_answer()
        # 1. The text of an engine that sends no ids. The first read gets the tokens of its own text, the last read all
        #    others, since the server does not report more.
        if not sends_ids and answer.text:
            whole, first = (
                self.model.tokenizer(text, add_special_tokens=False)["input_ids"]
                for text in (answer.text, answer.first_text)
            )
            (begin, _), (end, _) = answer.reads[0], answer.reads[-1]
            is_single = len(answer.reads) == 1
            answer.add(end, EventContent(token_ids=tuple(whole)))
            total = state.num_new_tokens
            num_first = total if is_single else min(len(first), total)
            answer.reads[:] = [(begin, total)] if is_single else [(begin, num_first), (end, total - num_first)]
        # 2. The end token, or the limit.
        num_known = state.num_new_tokens if sends_ids else reported.num_new_tokens
        most_tokens = state.num_new_tokens + state.num_remaining
        if not state.finished and finish == "length" and num_known is not None and most_tokens - num_known > MAX_HELD:
            raise self.server.client.error(
                f"ended an answer after {num_known} tokens at its own limit: start it with a longer context"
            )
        if not state.finished and rules.eos_token_ids and finish != "length":
            state.start(min(rules.eos_token_ids))
            seconds, number = answer.reads.pop() if answer.reads else (answer.seconds, 0)
            answer.reads.append((seconds, number + 1))
        if not state.finished:  # the text has fewer tokens here, its last character is cut, or a warm-up has no end
            limit = rules.context_limit
            is_context = limit is not None and limit - len(state.prompt_ids) < rules.max_new_tokens
            state.finish = ("context" if is_context else "length") if finish == "length" else "eos"
        if not answer.reads:
            answer.reads.append((answer.seconds, 0))

    def _check_prompt(self, answer: Answer) -> None:
        """Raises ConfigError for a prompt that the server cut or had in its cache."""
        num_read, num_cached = answer.reported.num_prompt_tokens, answer.reported.num_cached
        num_sent = len(answer.state.prompt_ids)
        if num_read not in (None, num_sent) and not self.server.engine.sends_text:  # its template has tokens, too
            raise self.server.client.error(
                f"read {num_read} tokens of a prompt of {num_sent}: it cuts or changes prompts: start it with a "
                "longer context"
            )
        if num_cached:
            raise self.server.client.error(
                f"had {num_cached} of {num_sent} prompt tokens in its cache, so its times are not those of a "
                "new prompt: start it without a prefix cache"
            )

    def _acceptance(self, answer: Answer, before: Counters | None) -> tuple[Acceptance | None, str]:
        """Returns the acceptance of an answer and its source; None and the reason if it is not known. `before`: the
        counters before the request; None under load, where they count several requests.

        Raises ConfigError for a baseline that drafts.
        """
        server, method, num_tokens = self.server, self.method, answer.state.num_new_tokens
        # 1. By the events of the answer, else by the counters of the server.
        acceptance = None
        problem = server.engine.remedy
        try:
            with server.client.reading():
                acceptance = server.engine.acceptance(answer.events, method.num_draft_tokens)
            if acceptance is None and before is not None:
                acceptance = acceptance_between(before, server.wait_until_idle(), method.num_draft_tokens)
                if acceptance is None and before.num_drafted is not None:
                    problem = "server counters went backwards, so it was restarted"
        except Impossible as error:
            problem = CONTRADICT.format(error)
        options = method.decoder.options if method.decoder is not None else {}
        if acceptance is not None and str(options.get("method", "")).lower().startswith(VARYING):
            acceptance = corrected_for_varying_drafts(acceptance, num_tokens)
        # 2. The baseline has one pass for each token.
        if method.name == BASELINE:
            if acceptance is not None and acceptance.num_drafted:
                raise server.client.error(
                    f"drafts: {acceptance.num_drafted} draft tokens for one answer, but it is the baseline: start it "
                    "without speculation"
                )
            if acceptance is None and server.speculates is None:
                return None, f"{UNKNOWN}: {problem}"
            plain = from_passes([(0, 0)] * (num_tokens - 1))
            return plain, acceptance.source if acceptance else plain.source
        # 3. What the server counted after the end of the answer is left out, which takes single passes.
        if acceptance is not None and answer.continues_after_end:
            problem = "the server kept generating past a stop string"
            note = acceptance.note
            passes = acceptance.passes
            acceptance = None if passes is None else from_passes(passes[: len(steps_of(passes, num_tokens))])
            acceptance = None if acceptance is None else replace(acceptance, note=note)
        if acceptance is not None and (wrong := contradiction(acceptance, num_tokens, method.num_draft_tokens)):
            acceptance = None
            problem = CONTRADICT.format(wrong)
        return (None, f"{UNKNOWN}: {problem}") if acceptance is None else (acceptance, acceptance.text)


def rounded(reads: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Returns (seconds, number of tokens) of reads as files keep them."""
    return [(round(seconds, 6), number) for seconds, number in reads]


def rounded_or_none(answer: Answer) -> float | None:
    return None if answer.answer_seconds is None else round(answer.answer_seconds, 6)


@DECODERS.register(SERVED)
def served_decoder(method: MethodSpec, models: ModelPair, sampling: Sampling) -> ServedDecoder:
    """Returns the decoder of a server that `specbench run --servers` found."""
    if not isinstance(models, ServedPair) or models.server is None:
        raise ConfigError(f"method '{method.name}': decoder.type = 'served': only --servers can set it")
    if sampling.top_k is not None and not sampling.greedy and not models.server.engine.takes_top_k:
        raise models.server.client.error(
            f"takes no top_k, and the task has top_k {sampling.top_k}: give --set generation.top_k=null, or name the "
            "engine of the servers in their file"
        )
    return ServedDecoder(method, models.target, models.server, models.others, sampling)
