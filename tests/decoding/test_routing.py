"""A drafter for each language: which route a query takes, what its record and its rows say, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.core.errors import ConfigError
from specbench.decoding.build import SelectingDecoder, build_decoder, unused_routes
from specbench.decoding.decoder import DraftingDecoder, QueryInfo
from specbench.decoding.loop import StopRules
from specbench.decoding.sampling import Sampling
from specbench.models.causal_lm import CausalLM, ModelPair
from specbench.records.generation import Record, convert
from specbench.results.rows import drafter_options
from specbench.running.models import LoadedModels
from specbench.specs.catalogue import digest, load_method, load_task, with_overrides
from specbench.specs.components import build
from specbench.specs.method import MethodSpec
from specbench.specs.run import RunSpec
from tests.support import tiny
from tests.support.answers import metrics_of
from tests.support.specs import LANGUAGES, message

Specbench = Callable[..., tuple[int, str, str]]
STOP = StopRules(12)
PROMPT = list(range(40, 60))
SWAHILI = "Swali: Natalia aliuza vibanio kwa rafiki zake mwezi wa Aprili, kisha akauza nusu ya vibanio hivyo."
ENGLISH = "Question: Natalia sold clips to her friends in April, and then she sold half as many in May."
COPIES = {"type": "prompt_lookup"}
ROUTED: dict[str, Any] = {
    "name": "routed", "version": 1, "title": "Routed",
    "routes": {
        "sw": {"drafter": COPIES, "num_draft_tokens": 8}, "de": {"num_draft_tokens": 2},
        "default": {"drafter": {"type": "model"}},
    },
    "verification": {"rule": "exact_match"}, "num_draft_tokens": 4,
}  # fmt: skip


def routed(**changes: Any) -> MethodSpec:
    return build(MethodSpec, ROUTED | changes)


@pytest.fixture(scope="module")
def models() -> tuple[CausalLM, CausalLM]:
    return tiny.causal_lm(num_hidden_layers=1), tiny.causal_lm(seed=1, num_hidden_layers=1)


def decoder_of(method: MethodSpec, models: tuple[CausalLM, CausalLM]) -> SelectingDecoder:
    made = build_decoder(method, ModelPair(*models), Sampling(0.0))
    assert isinstance(made, SelectingDecoder)
    return made


def test_own_passes_are_those_of_the_route_that_decodes(models: tuple[CausalLM, CausalLM]) -> None:
    decoder = decoder_of(routed(), models)
    for seed in range(6):
        found = decoder.record_passes(PROMPT, STOP, seed, 4)
        assert found is not None and found.not_argmax is None
        assert found.token_ids[:5] == decoder.generate(PROMPT, STOP, seed).token_ids[:5]


def test_routes_are_methods_of_their_own() -> None:
    method = routed()
    parts = {part.name: (part.drafter.type, part.num_draft_tokens, part.routes) for part in method.parts}
    assert parts == {
        "routed/sw": ("prompt_lookup", 8, None), "routed/de": ("model", 2, None), "routed/default": ("model", 4, None)
    }  # fmt: skip
    assert (method.lossless, method.needs_drafter, method.most_draft_tokens) == (True, True, 8)
    assert method.language == "given" and not method.drafts_token_by_token
    assert MethodSpec.model_validate(method.model_dump()) == method
    assert "drafter" not in method.model_dump() and "routes" not in load_method("sd").model_dump()
    [longer] = with_overrides([], [method], ["num_draft_tokens=6", "routes.sw.num_draft_tokens=3"])[1]
    assert [part.num_draft_tokens for part in longer.parts] == [3, 2, 6]


def test_a_route_without_a_model_needs_no_bridge() -> None:
    method = routed(bridge="retokenize")
    assert [part.bridge.type for part in method.parts] == ["shared", "retokenize", "retokenize"]
    alone = {"default": {"drafter": COPIES}}
    assert "there is nothing to bridge" in message(lambda: routed(routes=alone, bridge="retokenize"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"routes": {}}, "routes = {}: write a mapping"),
        ({"routes": {"sw": {"drafter": COPIES}}}, "routes.default: the key 'default' is missing"),
        ({"routes": {"default": {}}}, "routes.default.drafter: the key 'drafter' is missing"),
        ({"routes": ROUTED["routes"] | {"klingon": {}}}, "routes.klingon: not a language code"),
        ({"routes": ROUTED["routes"] | {"fr": {"drafter": {"type": "modle"}}}}, "did you mean 'model'?"),
        ({"routes": ROUTED["routes"] | {"fr": {"gamma": 3}}}, "routes.fr.gamma: unknown key 'gamma'"),
        ({"routes": ROUTED["routes"] | {"fr": {"num_draft_tokens": 0}}}, "routes.fr: num_draft_tokens = 0: nothing is"),
        ({"drafter": {"type": "model"}}, "drafter: each route has its own"),
        ({"decodes_with": "drafter"}, "decodes_with: a method with routes always decodes with the target"),
        ({"language": "guessed"}, "language = 'guessed'"),
        ({"routes": None, "drafter": COPIES, "language": "given"}, "language = 'given': selects among routes"),
        ({"language": "identified", "routes": ROUTED["routes"] | {"swa": {}}}, "routes.swa: no language that can be"),
        ({"verification": {"rule": "fuzzy", "divergence": "js", "threshold": 0.3}}, "routes.sw: verification.rule"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], expected: str) -> None:
    assert expected in message(lambda: routed(**changes))


@pytest.mark.parametrize(
    ("language", "route"),
    [("sw", "sw"), ("swa", "sw"), ("sw-KE", "sw"), ("de", "de"), *((code, "default") for code in ("fr", "xx", None))],
)
def test_the_given_language_takes_its_route(
    models: tuple[CausalLM, CausalLM], language: str | None, route: str
) -> None:
    decoder = decoder_of(routed(), models)
    chosen = decoder.select_decoder(0, QueryInfo(language, ENGLISH))
    assert chosen.record_fields == {"route": route}
    alone = build_decoder(routed().route(route), ModelPair(*models), Sampling(0.0))
    own, other = (each.generate(PROMPT, STOP, 0) for each in (chosen, alone))
    assert (own.token_ids, own.steps) == (other.token_ids, other.steps)
    assert decoder.generate(PROMPT, STOP, 0).token_ids == own.token_ids  # greedy and lossless: every route's


@pytest.mark.parametrize(("text", "route"), [(SWAHILI, "sw"), (ENGLISH, "default"), ("12 + 12", "default")])
def test_the_language_is_identified_and_its_time_is_part_of_ttft(
    models: tuple[CausalLM, CausalLM], text: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of(routed(language="identified"), models)
    clock = iter([100.0, 100.0 + 1000.0])
    monkeypatch.setattr("specbench.decoding.build.perf_counter", lambda: next(clock))
    chosen = decoder.select_decoder(0, QueryInfo("de", text))
    assert isinstance(chosen, DraftingDecoder) and chosen.select_seconds == 1000.0
    assert chosen.record_fields == {"route": route}
    generation = chosen.generate(PROMPT, STOP, 0)
    assert generation.ttft_seconds is not None and 1000 < generation.ttft_seconds < 1100
    assert generation.decode_seconds < 100


def test_an_audit_meets_every_route(models: tuple[CausalLM, CausalLM], monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(DraftingDecoder, "generate", lambda self, *given: taken.append(self.record_fields["route"]))
    decoder = decoder_of(routed(), models)
    for seed in range(40):
        decoder.generate(PROMPT, STOP, seed)
    assert set(taken) == {"sw", "de", "default"}


def test_each_route_has_its_own_model(models: tuple[CausalLM, CausalLM]) -> None:
    other = tiny.causal_lm(seed=2, num_hidden_layers=1)
    method = routed()
    held = LoadedModels(models[0], {"routed/de": other, "routed/default": models[1]})
    pair = held.pair(method)
    decoder = build_decoder(method, pair, Sampling(0.0))
    assert isinstance(decoder, SelectingDecoder) and pair.drafter is None
    assert [getattr(decoder.decoders[name].drafter, "model", None) for name in ("sw", "de", "default")] == [
        None, other, models[1]
    ]  # fmt: skip


def run_spec(*methods: MethodSpec, **given: Any) -> RunSpec:
    from specbench.specs.task import TaskSpec

    return build(RunSpec, {"tasks": [build(TaskSpec, LANGUAGES)], "methods": methods, "target": "t"} | given)


def with_checkpoint(name: str, checkpoint: str | None) -> MethodSpec:
    method = load_method("sd").model_dump()
    return build(MethodSpec, method | {"name": name, "drafter": {"type": "model", "checkpoint": checkpoint}})


def test_whose_drafter_a_method_takes() -> None:
    own, none, embedded = (with_checkpoint(n, c) for n, c in (("a", "./mine"), ("b", None), ("c", "embedded:drafter")))
    spec = run_spec(own, none, drafter="d")
    assert (spec.drafter_of(own), spec.drafter_of(none)) == ("./mine", "d")
    assert run_spec(embedded, drafter="d").drafter_of(embedded) == "d", "an embedded one is of the embedded target"
    spec = run_spec(own, none, embedded, target="embedded:target")
    assert [spec.drafter_of(m) for m in (own, none, embedded)] == ["./mine", "embedded:drafter", "embedded:drafter"]
    assert "'c' needs a drafter model trained for 't' (embedded:drafter is not)" in message(lambda: run_spec(embedded))
    assert "names its own drafter, ./mine: remove --drafter, or give --set drafter.checkpoint=d" in message(
        lambda: run_spec(own, drafter="d")
    )
    assert digest(own) == digest(own.model_copy(update={"drafter": with_checkpoint("a", "b").drafter}))


def test_a_row_does_not_name_a_checkpoint_that_did_not_draft() -> None:
    own, embedded = with_checkpoint("a", "./mine"), with_checkpoint("c", "embedded:drafter")
    whole = own.drafter.model_dump()
    assert whole.pop("beyond_context") is None and drafter_options(own, "t") == whole  # as in earlier rows
    assert drafter_options(embedded, "embedded:target")["checkpoint"] == "embedded:drafter"
    found = drafter_options(embedded, "t")
    assert (found["checkpoint"], found["replaces"]) == (None, "embedded:drafter")
    part = load_method("routed").route("default")
    assert drafter_options(part, "t")["replaces"] == "embedded:drafter-scdf"


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two rows in Swahili and two in English on a random pair, for a method whose Swahili route copies."""
    monkeypatch.setattr("specbench.models.machine.commit", lambda checkout: None)  # of a checkout at work
    target = tiny.save(tmp_path / "target", num_hidden_layers=1)
    drafter = tiny.save(tmp_path / "drafter", seed=1, num_hidden_layers=1)
    for language, text in (("sw", SWAHILI), ("en", ENGLISH)):
        lines = [f"{text} {i} + {i}?\t{2 * i}" for i in range(2)]
        (tmp_path / f"mgsm_{language}.tsv").write_text("\n".join(lines), encoding="utf-8")
    routes = {"sw": {"drafter": COPIES, "num_draft_tokens": 8},
              "default": {"drafter": {"type": "model", "checkpoint": str(drafter)}}}  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(ROUTED | {"name": "mine", "routes": routes}, sort_keys=False))
    return ["--task", "mgsm", "--method", "mine.yaml", "--data", str(tmp_path), "--target", str(target),
            "--set", "generation.max_new_tokens=10", "--subset", "sw,en"]  # fmt: skip


def test_a_run_records_routes_and_counts_each_with_its_own_length(
    specbench: Specbench, arguments: list[str], tmp_path: Path
) -> None:
    code, out, err = specbench("run", *arguments, "--output", "out", "--json")
    assert code == 0, err
    records = [json.loads(line) for line in (tmp_path / "out/records.jsonl").read_text().splitlines()]
    for record in records:
        own, ar = record["methods"]["mine"], record["methods"]["ar"]
        assert own["route"] == {"sw": "sw", "en": "default"}[record["subset"]] and own["token_ids"] == ar["token_ids"]
        assert "decoded_by" not in own and "route" not in ar
        assert max(step[0] for step in own["steps"]) <= {"sw": 8, "en": 4}[record["subset"]]
    rows = {row["subset"]: row for row in json.loads(out) if row["method"].startswith("mine@")}
    assert [rows[name]["num_draft_tokens"] for name in ("sw", "en", "all")] == [8, 4, 8]
    assert [rows[name]["options"]["taken"] for name in ("sw", "en", "all")] == [["sw"], ["default"], ["sw", "default"]]
    assert rows["en"]["drafter"] == f"sw prompt_lookup, default {tmp_path / 'drafter'}"
    assert rows["en"]["drafter_revision"].startswith("default local-")
    value = {name: {key: metric["value"] for key, metric in row["metrics"].items()} for name, row in rows.items()}
    assert value["en"]["cost_ratio"] > 0 and value["en"]["speedup_expected"] > 0
    assert value["all"]["cost_ratio"] is None and value["all"]["speedup_expected"] is None
    assert value["all"]["mean_acceptance_length"] is not None
    identity = json.loads((tmp_path / "out/run.json").read_text())
    assert "prompt_lookup" in json.dumps(identity) and "routes" in json.dumps(identity)
    code, out, err = specbench("run", *arguments, "--output", "out")
    assert code == 0 and "measured already" in err
    assert "by the language of the task: sw prompt_lookup, default" in " ".join(out.split())

    method = load_method(str(tmp_path / "mine.yaml"))
    del records[0]["methods"]["mine"]["route"]
    with pytest.raises(ValueError, match="mine: the method has no route None"):
        metrics_of([convert(record, Record) for record in records], method)


def test_it_is_not_tuned_but_swept(specbench: Specbench, arguments: list[str]) -> None:
    code, _, err = specbench("tune", *arguments)
    assert code == 2 and "drafter and a draft length for each language" in " ".join(err.split())
    swept = ["--path", "routes.sw.num_draft_tokens", "--values", "2,4", "--limit", "1", "--json"]
    code, out, err = specbench("sweep", *arguments, *swept)
    assert code == 0, err
    assert [each["value"] for each in json.loads(out)["measured"]] == [2, 4]


def test_what_is_wrong_with_a_route_is_told_by_its_key(specbench: Specbench, arguments: list[str]) -> None:
    code, _, err = specbench("run", *arguments, "--set", "routes.default.drafter.checkpoint=./absent")
    assert code == 2 and "'mine': routes.default.drafter.checkpoint = './absent': " in " ".join(err.split())
    code, _, err = specbench("run", *arguments, "--set", "routes.default.drafter.type=ngram")
    assert code == 2 and "has the key" in " ".join(err.split())


def test_the_shipped_routes(models: tuple[CausalLM, CausalLM]) -> None:
    method = load_method("routed")
    assert {part.name: part.drafter.type for part in method.parts} == {"routed/sw": "ngram", "routed/default": "model"}
    with pytest.raises(ConfigError, match=r"routes\.sw\.drafter\.path is missing.*--set routes\.sw\.drafter\.path=DIR"):
        build_decoder(method, ModelPair(*models), Sampling(0.0))


def test_a_route_that_no_subset_takes_is_told() -> None:
    tasks = [load_task("mgsm"), load_task("humaneval")]
    method = build(MethodSpec, {**ROUTED, "routes": {**ROUTED["routes"], "sww": {"num_draft_tokens": 1}}})
    (line,) = unused_routes(method, tasks)
    assert "method 'routed': no subset of mgsm, humaneval has the language of route 'sww'" in line and "'sw'" in line
    assert unused_routes(build(MethodSpec, {**ROUTED, "language": "identified"}), tasks) == []
    assert unused_routes(load_method("sd"), tasks) == unused_routes(build(MethodSpec, ROUTED), tasks) == []
