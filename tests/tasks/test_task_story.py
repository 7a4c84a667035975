"""Stories: their prompts, and how they are judged."""

import json

from specbench.specs.catalogue import load_task
from specbench.tasks.scoring import make_scorer


def test_stories_are_sampled_as_in_the_paper_and_judged_without_a_reference():
    task = load_task("story")
    generation = task.generation
    assert (generation.max_new_tokens, generation.temperature) == (128, 1.0)
    assert (generation.top_k, generation.top_p) == (100, 0.9)
    assert " ".join(task.subset_names[4:]) == "amh ber chr grn haw ibo npi oci que yor zgh"
    scorer = make_scorer(task.subset("de"))
    told = scorer("Es war einmal ein Fuchs, der im Wald lebte.", "").values
    looping = scorer("Es war einmal. " * 20, "").values
    assert told["loop_free"] == 1 and told["repetition_rate"] == 0
    assert looping["loop_free"] == 0 and looping["repetition_rate"] > 0.9


def test_samples_are_topics_only():
    from random import Random

    from tools.world import documents as story

    row = story.story_draw("fr", True, Random(1))
    assert {key for key in row if key[0] != "_"} == {"subset", "adjective", "noun"}
    assert json.loads(json.dumps(row)) == row
