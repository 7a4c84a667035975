"""Exports of profiles, read by parsers of the documented forms: bounds, order of rates, what excludes what."""

import json
import shlex

import numpy as np
import pytest
import yaml

from specbench.analysis.profile.exports import NAMES, export
from specbench.core.errors import ConfigError
from tests.support.profiles import drawn_steps, entry, profile

RATES = [0.7, 0.85, 0.6, 0.9]


def check_rates(rates: list[float], num_draft_tokens: int) -> float:
    """Checks unconditional rates as vLLM and llama.cpp do. Returns the length with the target's own token."""
    assert len(rates) == num_draft_tokens
    assert all(0 <= rate <= 1 for rate in rates)
    assert rates == sorted(rates, reverse=True)
    return 1 + sum(rates)


def check_length(length: float, num_draft_tokens: int) -> float:
    assert 1 <= length <= num_draft_tokens + 1
    return length


def read_vllm(text: str) -> tuple[float, int]:
    """The keys of a speculative config: `synthetic` needs exactly one of rates and length."""
    keys = json.loads(text)
    number = keys.pop("num_speculative_tokens")
    assert keys.pop("rejection_sample_method") == "synthetic"
    ((name, value),) = keys.items()
    check = {"synthetic_acceptance_rates": check_rates, "synthetic_acceptance_length": check_length}
    return check[name](value, number), number


def read_environment(text: str) -> dict[str, str]:
    """Lines that a shell reads."""
    return dict(word.split("=") for word in shlex.split(text, comments=True))


def read_sglang(text: str) -> float:
    values = {name.removeprefix("SGLANG_SIMULATE_ACC_"): value for name, value in read_environment(text).items()}
    assert values.keys() == {"LEN", "METHOD", "TOKEN_MODE"}
    assert values["METHOD"] in ("match-expected", "multinomial")
    assert values["TOKEN_MODE"] in ("fixed", "real-draft-token")
    return float(values["LEN"])


def read_tensorrt(text: str) -> float:
    ((name, value),) = read_environment(text).items()
    assert name == "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
    assert float(value) > 0  # 0 turns it off
    return 1 + float(value)


def read_llama_cpp(text: str) -> tuple[float, int]:
    words = text.split()
    options = dict(zip(words[::2], words[1::2], strict=True))
    number = int(options.pop("--spec-draft-n-max"))
    ((name, value),) = options.items()  # rates and length exclude each other
    if name == "--spec-synth-rates":
        return check_rates([float(rate) for rate in value.split(",")], number), number
    assert name == "--spec-synth-len"
    return check_length(float(value), number), number


def read_inferencex(text: str) -> dict[str, dict[str, dict[int, float]]]:
    """Model, thinking_on or thinking_off, draft length, and a length of two decimals."""
    models = yaml.safe_load(text)
    for modes in models.values():
        assert set(modes) <= {"thinking_on", "thinking_off"}
        for lengths in modes.values():
            for number, length in lengths.items():
                assert isinstance(number, int) and round(length, 2) == check_length(length, number)
    return models


def of_rates(rates: list[float], number: int = 400, seed: int = 0, cut: float = 0.1):
    return entry(drawn_steps(rates, number, seed, cut), len(rates))


@pytest.mark.parametrize("seed", range(12))
def test_every_engine_reads_its_export_and_means_the_same_length(seed: int) -> None:
    """Profiles of random rates, which may rise: of 3 to 300 steps, from drafts of 1 to 9 tokens."""
    draws = np.random.default_rng(seed)
    rates = draws.uniform(0, 1, draws.integers(1, 10)).tolist()
    made = of_rates(rates, number=int(draws.integers(3, 300)), seed=seed, cut=0.3)
    found = profile(made)
    known = made.cell().unconditional
    length = 1 + sum(known)
    for form in ("rates", "length"):
        for engine, read in (("vllm", read_vllm), ("llama.cpp", read_llama_cpp)):
            assert read(export(found, engine, form=form)[0]) == (pytest.approx(length, abs=1e-4), len(known))
    assert read_sglang(export(found, "sglang")[0]) == pytest.approx(length, abs=1e-4)
    if length > 1:
        assert read_tensorrt(export(found, "tensorrt-llm")[0]) == pytest.approx(length, abs=1e-4)
    measured = read_inferencex(export(found, "inferencex")[0])
    pooled = made.cell().mean_acceptance_length.pooled.value
    assert measured == {"org/target": {"thinking_off": {len(rates): pytest.approx(pooled, abs=0.005)}}}


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_at_the_bounds_lengths_are_1_and_k_plus_1(rate: float) -> None:
    found = profile(of_rates([rate] * 3, cut=0.0))
    length = 1 + 3 * rate
    assert read_vllm(export(found, "vllm")[0])[0] == read_sglang(export(found, "sglang")[0]) == length
    if rate:
        assert read_tensorrt(export(found, "tensorrt-llm")[0]) == length
    else:
        with pytest.raises(ConfigError, match="0 accepted tokens, which turns forcing off"):
            export(found, "tensorrt-llm")


def test_short_drafts_are_left_out_or_count_as_rejected() -> None:
    """A look-up that finds one token in every second step, always right, and else the two tokens that are asked for."""
    made = entry([(1, 1, 1, 2), (2, 2, 2, 3)] * 40, 2)
    text, notes = export(profile(made), "vllm")
    assert json.loads(text)["synthetic_acceptance_rates"] == [1.0, 1.0]
    assert "50% of the steps drafted fewer than 2 tokens: the measured length is 2.50" in notes[0]
    text, notes = export(profile(made), "vllm", short_drafts="reject")
    assert json.loads(text)["synthetic_acceptance_rates"] == [1.0, 0.5] and not notes
    ended = entry([(1, 1, 1, 2), (2, 2, 2, 3), (2, 1, 1, 1)] * 40, 2)  # and steps in which the text ends after a token
    assert json.loads(export(profile(ended), "vllm", short_drafts="reject")[0]) == json.loads(text)


def test_positions_that_were_never_verified_are_not_exported() -> None:
    made = entry([(2, 2, 2, 3), (2, 1, 0, 1)] * 10, 4)
    text, notes = export(profile(made), "llama.cpp")
    assert read_llama_cpp(text) == (2.0, 2)
    assert "positions 3 to 4 were never verified: this is for 2 draft tokens" in notes[-1]


def test_trees_have_a_length_and_no_rates() -> None:
    tree = entry(drawn_steps(RATES, 100, 0), 4, shape="tree")
    for engine in ("vllm", "llama.cpp"):
        with pytest.raises(ConfigError, match=r"levels are not positions of a chain.*--form length"):
            export(profile(tree), engine)
    text, notes = export(profile(tree), "sglang")
    assert read_sglang(text) > 1 and "counts levels" in notes[0]


def test_inferencex_has_measured_lengths_and_others_only_on_request() -> None:
    short, long = (entry(drawn_steps(RATES[:number], 300, number), number) for number in (2, 4))
    text, notes = export(profile(short, long), "inferencex")
    assert list(read_inferencex(text)["org/target"]["thinking_off"]) == [2, 4]
    assert not notes and "computed" not in text
    text, notes = export(profile(short, long), "inferencex", lengths=[1, 2, 3])
    lengths = read_inferencex(text)["org/target"]["thinking_off"]
    assert list(lengths) == [1, 2, 3, 4]
    computed = [line for line in text.splitlines() if "# computed" in line]
    assert [line.split(":")[0].strip() for line in computed] == ["1", "3"]
    assert lengths[3] == pytest.approx(1 + sum(long.cell().unconditional[:3]), abs=0.005)
    assert [note.partition(" draft")[0][-1] for note in notes] == ["1", "3"]
    with pytest.raises(ConfigError, match="--lengths 5: cannot be computed"):
        export(profile(short, long), "inferencex", lengths=[5])


def test_inferencex_parts_thinking_and_refuses_two_lengths_of_one_place() -> None:
    off = of_rates(RATES)
    on = off.model_copy(update={"id": "sd-k4#2", "conditions": off.conditions.model_copy(update={"thinking": "on"})})
    assert set(read_inferencex(export(profile(off, on), "inferencex")[0])["org/target"]) == {
        "thinking_off", "thinking_on"
    }  # fmt: skip
    other = off.model_copy(update={"id": "pld-k4", "method": "pld@1:0"})
    with pytest.raises(ConfigError, match="sd-k4 and pld-k4 are both 4 draft tokens on org/target"):
        export(profile(off, other), "inferencex")
    assert read_inferencex(export(profile(off, other), "inferencex", entry="pld")[0])


@pytest.mark.parametrize(
    ("engine", "options", "told"),
    [
        ("trt", {}, "--export trt: the choices are"),
        ("sglang", {"form": "rates"}, "--form rates: sglang takes no rates: give --form length"),
        ("inferencex", {"form": "rates"}, "InferenceX takes lengths only"),
        ("vllm", {"form": "shape"}, "--form shape: the choices are length, rates"),
        ("vllm", {"short_drafts": "drop"}, "--short-drafts drop"),
        ("vllm", {"lengths": [2]}, "--lengths: is for --export inferencex"),
        ("vllm", {"entry": "eagle"}, "has no entry 'eagle'"),
        ("vllm", {"cell": "language=xx"}, "entry sd-k4 has no cell 'language=xx'"),
    ],
)
def test_what_an_engine_does_not_take_is_refused(engine: str, options: dict, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        export(profile(of_rates(RATES)), engine, **options)
    assert told in str(refused.value)


@pytest.mark.parametrize("engine", NAMES)
def test_exports_of_a_file_go_to_a_file_or_to_stdout(specbench, tmp_path, engine: str) -> None:
    (tmp_path / "p.json").write_text(profile(of_rates(RATES)).model_dump_json(), encoding="utf-8")
    code, out, err = specbench("profile", "p.json", "--export", engine)
    assert code == 0 and not err
    code, _, err = specbench("profile", "p.json", "--export", engine, "--output", "made.txt")
    assert code == 0 and (tmp_path / "made.txt").read_text(encoding="utf-8") == out


def test_a_profile_stands_alone_and_other_files_are_refused(specbench, tmp_path) -> None:
    (tmp_path / "p.json").write_text(profile(of_rates(RATES)).model_dump_json(), encoding="utf-8")
    code, _, err = specbench("profile", "p.json", "p.json", "--export", "vllm")
    assert code == 2 and "is a profile, not a run: give it alone" in err
    (tmp_path / "p.json").write_text('{"profile_format": 9}', encoding="utf-8")
    code, _, err = specbench("profile", "p.json", "--export", "vllm")
    assert code == 2 and "profile_format = 9: this version of specbench reads format 1 only" in err
