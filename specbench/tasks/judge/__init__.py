"""A language model as the judge of answers (MT-bench's single-answer grading): `judgements.judge_records`."""

JUDGED = "judge_score"  # the metric of the ratings
JUDGEMENTS_FILE = "judgements.jsonl"  # in a run's folder
