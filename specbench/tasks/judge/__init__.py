"""A language model as the judge of answers (MT-bench's single-answer grading): `judgements.judge_records`."""

from specbench.core.metric import Metric

JUDGED = "judge_score"  # the metric of the ratings
RATING = Metric(JUDGED, "1 … 10", "a judge model's rating", label="judge 1–10", bounds=(1.0, 10.0), digits=2)
JUDGEMENTS_FILE = "judgements.jsonl"  # in a run's folder
