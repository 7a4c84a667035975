"""docs/measured/gate.md says what the regression check does: repetitions without an alarm, regressions caught, shares
computed again."""

import re

import pytest

from specbench.gate.speed import DRIFTED, MIN_PROMPTS
from tools.gate import in_turns, measured
from tools.gate.__main__ import HEAD, INJECTED, NUM_CHECKS, NUM_REPETITIONS, PAGE, SIMULATED
from tools.gate.simulated import (
    CLOCKS,
    FALLS,
    MAX_REGRESSION,
    NUM_METHODS,
    PLACES,
    SIZES,
    TURN_CLOCKS,
    TURN_FALLS,
    shares,
    shares_in_turns,
)

TEXT = PAGE.read_text(encoding="utf-8")
GUIDE = " ".join((PAGE.parents[1] / "guide" / "guard.md").read_text(encoding="utf-8").split())
SHARED = "AR's too"  # in the name of what no speed-up shows
MOST_WITHOUT_VERDICT = 4  # of the repetitions, on a machine with other work
ALLOWED = f"{MAX_REGRESSION:.0%}"


def lines(title, text=TEXT):
    part = text.partition(f"## {title}")[2].partition("## ")[0]
    return [line[2:-2].split(" | ") for line in part.splitlines() if line.startswith("| ")][2:]


def simulated():
    """By machine, prompts, methods and what is allowed: by the fall, the shares of exit codes 0, 1 and 2 in %."""
    return {
        (name, int(num_prompts), int(num_methods), allowed): {
            fall: tuple(map(float, cell.split(" / "))) for fall, cell in zip(FALLS, cells, strict=True) if cell.strip()
        }
        for name, num_prompts, num_methods, allowed, *cells in lines("Simulated checks")
    }


def test_the_page_has_the_text_of_its_script():
    assert TEXT.startswith(HEAD) and INJECTED in TEXT and SIMULATED.format(num=f"{NUM_CHECKS:,}") in TEXT


def test_no_repetition_is_called_a_regression_and_few_have_no_verdict():
    found = lines("The same run again")
    assert [int(line[0]) for line in found] == list(range(1, NUM_REPETITIONS + 1))
    codes = [line[-1][0] for line in found]
    assert set(codes) <= {"0", "2"} and codes.count("2") <= MOST_WITHOUT_VERDICT


def test_every_injected_regression_is_caught_but_those_that_ar_shares():
    found = {line[0]: line[1:] for line in lines("Injected regressions")}
    assert list(found) == list(measured.REGRESSIONS)
    codes = {name: verdict[0] for name, (_, verdict) in found.items()}
    assert all(code == ("2" if "tokenizer" in name else "1") for name, code in codes.items() if SHARED not in name)
    shared = {name: float(re.search(r"([0-9.]+) times its speed", told)[1]) for name, (told, _) in found.items()
              if SHARED in name}  # fmt: skip
    assert len(shared) == 2, "shown by AR's own speed"
    assert all((codes[name] == "2") == (max(speed, 1 / speed) > DRIFTED) and codes[name] != "1"
               for name, speed in shared.items())  # fmt: skip
    assert sorted(codes[name] for name in shared) == ["0", "2"]


def test_simulated_false_alarms_are_at_most_one_of_a_hundred():
    """On a noisy machine of one method; of five the guide says the largest share."""
    found = simulated()
    places = [(name, n, m, f"{allowed:.0%}") for name, allowed in PLACES for n in SIZES for m in NUM_METHODS]
    assert list(found) == places and {name for name, _ in PLACES} == set(CLOCKS)
    assert all(shares[0.0][1] <= 1 for (name, _, m, _), shares in found.items() if name == "quiet" or m == 1)
    most = max(shares[0.0][1] for shares in found.values())
    assert most < 1.5 and f"({most} % of five methods" in GUIDE


@pytest.mark.parametrize(("name", "num_prompts", "fall"), [("quiet", MIN_PROMPTS, 0.2), ("noisy", MIN_PROMPTS, 0.2)])
def test_simulated_shares_are_computed_again(name, num_prompts, fall):
    published = simulated()[name, num_prompts, 1, ALLOWED][fall]
    assert f"shares of {NUM_CHECKS:,} checks" in TEXT
    for share, again in zip(published, shares(100, num_prompts, fall, CLOCKS[name]), strict=True):
        true = min(max(share / 100, 0.01), 0.99)
        assert abs(again - share / 100) < 4 * (true * (1 - true) * (1 / 100 + 1 / NUM_CHECKS)) ** 0.5


def test_the_figures_of_the_guide_are_those_of_the_page():
    found = simulated()
    rows = re.findall(r"\| (\d+) % \| (quiet|noisy) \| (\d+) % \| (\d+) % \| (\d+) % \|", GUIDE)
    assert len(rows) == 2 * len(CLOCKS)
    for fall, name, *cells in rows:
        expected = [f"{found[name, n, 1, ALLOWED][int(fall) / 100][1]:.0f}" for n in SIZES]
        assert cells == expected, (name, fall)


TURNS = in_turns.PAGE.read_text(encoding="utf-8")


def simulated_in_turns():
    """By clock and number of prompts: by the fall, the shares of exit codes 0, 1 and 2 in %."""
    return {
        (clock, int(num_prompts)): {
            fall: tuple(map(float, cell.split(" / "))) for fall, cell in zip(TURN_FALLS, cells, strict=True)
        }
        for clock, num_prompts, *cells in lines("Simulated checks", TURNS)
    }


def test_the_page_on_turns_has_the_text_of_its_script():
    told = in_turns.SIMULATED.format(num=f"{in_turns.NUM_CHECKS:,}")
    assert TURNS.startswith(in_turns.HEAD) and in_turns.NOISE in TURNS and told in TURNS


def test_interleaved_every_injected_slow_down_is_found_and_nothing_else():
    found = lines("Measured checks", TURNS)
    expected = [(name, str(case.num_prompts)) for name, case in in_turns.CASES.items() for _ in range(case.times)]
    assert [(name, num_prompts) for name, num_prompts, *_ in found] == expected
    assert all((line[-1] == "1 (regressed)") == (line[0] != "nothing") for line in found)
    assert {line[-1] for line in found} == {"0 (fine)", "1 (regressed)"}


def test_interleaved_simulated_falls_are_found_and_false_alarms_are_few():
    found = simulated_in_turns()
    assert list(found) == [(clock, num_prompts) for clock in TURN_CLOCKS for num_prompts in in_turns.SIZES]
    assert all(shares["none"][1] <= 1 for shares in found.values())
    assert found["waits left out", 30]["10 % of one"][1] >= 90
    assert found["waits left out", 100]["5 % of all"][1] >= 90


def test_simulated_shares_in_turns_are_computed_again():
    published = simulated_in_turns()["waits left out", 30]["10 % of one"]
    for share, again in zip(published, shares_in_turns(60, 30, "10 % of one", "waits left out"), strict=True):
        true = min(max(share / 100, 0.01), 0.99)
        assert abs(again - share / 100) < 4 * (true * (1 - true) * (1 / 60 + 1 / in_turns.NUM_CHECKS)) ** 0.5


def test_the_figures_on_turns_of_the_guide_are_those_of_the_page():
    found = simulated_in_turns()
    rows = re.findall(r"\| (\d+ % of \w+)[\w ,]* \| (\d+) % \| (\d+) % \|", GUIDE)
    assert [fall for fall, *_ in rows] == list(TURN_FALLS)[1:]
    for fall, *cells in rows:
        assert cells == [f"{found['waits left out', n][fall][1]:.0f}" for n in in_turns.SIZES], fall
