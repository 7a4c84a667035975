"""--sweep: which points it means, which options they change, and mistakes."""

import pytest

from specbench.core.errors import ConfigError
from specbench.specs.run_options import RunOptions
from specbench.specs.sweep import read_points

PLAIN = RunOptions()


def test_a_point_changes_the_option_of_its_condition() -> None:
    changed = {
        "context=2k,4096": [{"overrides": ("max_prompt_tokens=2048",)}, {"overrides": ("max_prompt_tokens=4096",)}],
        "temperature=0,0.5": [
            {"overrides": ("generation.temperature=0",)}, {"overrides": ("generation.temperature=0.5",)}
        ],
        "chat=on,off": [{"chat": "always"}, {"chat": "never"}],
        "thinking=off,on": [
            {"chat_template_args": ("enable_thinking=false",)}, {"chat_template_args": ("enable_thinking=true",)}
        ],
        "template.effort=low,high": [{"chat_template_args": ("effort=low",)}, {"chat_template_args": ("effort=high",)}],
        "seed=0,7": [{}, {"seed": 7}],
        "verification.threshold=0.1,0.2": [
            {"overrides": ("verification.threshold=0.1",)}, {"overrides": ("verification.threshold=0.2",)}
        ],
    }  # fmt: skip
    for text, expected in changed.items():
        assert [point.options(PLAIN).changed() for point in read_points([text], PLAIN)] == expected, text


def test_two_conditions_and_seeds_are_all_combinations_with_a_folder_each() -> None:
    points = read_points(["context=2k,4k", "thinking=on,off", "seed=0,1"], PLAIN)
    assert len({point.name for point in points}) == 8
    assert points[0].values == {"context": 2048, "thinking": "on", "seed": 0}
    assert points[0].name == "context=2048,thinking=on,seed=0"
    (point, _) = read_points(["drafter.path=a/b,c d"], PLAIN)
    assert point.name == "drafter.path=a_b"


def test_other_options_of_the_command_stay() -> None:
    options = RunOptions(overrides=("num_draft_tokens=3",), chat_template_args=("effort=low",))
    first = read_points(["temperature=0,1", "thinking=on,off"], options)[0].options(options)
    assert first.overrides == ("num_draft_tokens=3", "generation.temperature=0")
    assert first.chat_template_args == ("effort=low", "enable_thinking=true")


MISTAKES = {
    "context": "--sweep context: write it as CONDITION=VALUE,VALUE, such as context=2k,4k",
    "context=": "write it as CONDITION=VALUE,VALUE",
    "context=2k": "has one value: give several",
    "context=2k,2048": "2048 is given twice",
    "context=2k,big": "big is not a value of it: write numbers of tokens, such as 2k,4k,8k",
    "temperature=0,warm": "warm is not a value of it: write numbers, such as 0,0.6,1",
    "chat=on,maybe": "maybe is not a value of it: write on,off",
    "chat=on,true": "True is not a value of it: write on,off",
    "seed=0,-1": "-1 is not a value of it: write whole numbers",
    "seed=0,1.5": "1.5 is not a value of it",
    "num_draft_tokens=2,[3]": r"\[3\] is not a value of it: write words or numbers",
    "num_draft_tokens=2,": "has one value",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=MISTAKES[text]):
        read_points([text], PLAIN)


def test_a_condition_is_set_once() -> None:
    for text, options, word in (
        ("temperature=0,1", RunOptions(overrides=("generation.temperature=0.5",)), "--set generation.temperature=0.5"),
        ("chat=on,off", RunOptions(chat="never"), "--chat never"),
        ("thinking=on,off", RunOptions(chat_template_args=("enable_thinking=true",)), "--chat-template-args"),
        ("seed=1,2", RunOptions(seed=3), "--seed 3"),
    ):
        with pytest.raises(ConfigError, match=f"{word}.* sets the same condition"):
            read_points([text], options)
    with pytest.raises(ConfigError, match="context is swept twice"):
        read_points(["context=2k,4k", "context=8k,16k"], PLAIN)
    with pytest.raises(ConfigError, match="3 conditions, but at most 2 besides seeds"):
        read_points(["context=2k,4k", "temperature=0,1", "chat=on,off", "seed=0,1"], PLAIN)
