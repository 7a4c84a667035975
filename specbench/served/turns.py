"""Measures servers in turns, if only one can be up at a time: each part of a run is measured with one server after the
other, in the order A B, B A, A B, …"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console

from specbench.core.progress import ProgressBar
from specbench.decoding.decoder import Decoder
from specbench.running.plan import Block
from specbench.running.records import Key, Record, RecordFile, record_key
from specbench.running.run_folder import RunFolder
from specbench.running.runner import check_same_examples, measure_method, record_of
from specbench.running.warm_up import WarmUp, forget_warm_up, longest_conversation, warm_up
from specbench.specs.run import RunSpec

PLACE = ("task", "subset", "example", "repeat", "turn")  # the names of a block key's elements
TURNS = "turns.jsonl"  # in a run's folder: the answers of single servers, until the part is complete
BringUp = Callable[[str], bool]  # see `ServedModels.bring_up`
Answers = dict[tuple[Key, str], dict[str, Any]]  # by block and server


def split_plan(plan: Sequence[Block], number: int) -> Iterator[list[Block]]:
    """Yields the blocks in `number` parts of about equal size, or fewer if there are fewer examples. All turns of a
    conversation are in the same part."""
    examples = [list(group) for _, group in groupby(plan, lambda block: block.key[:4])]
    number = min(number, len(examples))
    for part in range(number):
        own = examples[part * len(examples) // number : (part + 1) * len(examples) // number]
        yield [block for blocks in own for block in blocks]


def measure_in_turns(
    spec: RunSpec, plan: Sequence[Block], folder: RunFolder, done: dict[Key, Record], bring_up: BringUp,
    console: Console,
) -> None:  # fmt: skip
    """Measures the blocks that are not recorded yet, and adds their records to `done`. Each answer is written to disk
    before the next one begins."""
    assert spec.servers is not None and spec.servers.turns is not None
    check_same_examples(plan, done, folder)
    file = RecordFile(folder.path / TURNS)
    lines = file.read() if file.path.exists() else []
    answers: Answers = {(record_key(line), line["method"]): line["answer"] for line in lines}
    num_servers = len(plan[0].order) if plan else 0
    with ProgressBar(console, "turns", len(plan) * num_servers) as progress:
        for number, part in enumerate(split_plan(plan, spec.servers.turns)):
            order = part[0].cell.decoders if number % 2 == 0 else part[0].cell.decoders[::-1]
            names = [decoder.method.name for decoder in order]
            for name in names:
                missing = [block for block in part if block.key not in done and (block.key, name) not in answers]
                warm_ups = _warm_up(missing, name, spec, bring_up) if missing else {}
                for block in missing:
                    texts = [answers[key, name]["text"] for key in block.earlier_keys]
                    answer = measure_method(block, _decoder(block.cell.decoders, name), spec, texts)
                    answer["warm_up"] = warm_ups[id(block.cell)].as_json()
                    answers[block.key, name] = answer
                    file.append({**dict(zip(PLACE, block.key, strict=True)), "method": name, "answer": answer})
                    progress.update(f"turn {number + 1} · {name}", len(answers))
            for block in part:
                if block.key not in done:
                    measured = {name: answers[block.key, name] for name in names}
                    earlier = [done[key] for key in block.earlier_keys]
                    record = record_of(block, spec, measured, earlier) | {"part": number}
                    folder.records.append(record)
                    done[block.key] = record


def _warm_up(blocks: Sequence[Block], name: str, spec: RunSpec, bring_up: BringUp) -> dict[int, WarmUp]:
    """Brings a server up and warms it up for the cells of blocks. Returns the warm-ups by id of the cell."""
    is_new, found = bring_up(name), {}
    num_planned = sum(block.cell.task.generation.max_new_tokens for block in blocks)
    for cell in {id(block.cell): block.cell for block in blocks}.values():
        decoder = _decoder(cell.decoders, name)
        if is_new:
            forget_warm_up(decoder)
        length = longest_conversation(cell, decoder.model, spec.chat)
        num_new = cell.task.generation.max_new_tokens
        found[id(cell)] = warm_up([decoder], length, cell.context_limit, num_planned, num_new)
    return found


def _decoder(decoders: Sequence[Decoder], name: str) -> Decoder:
    return next(decoder for decoder in decoders if decoder.method.name == name)
