"""A setting of each kind of training, as --set takes it."""

EXAMPLES = {
    "scdf": "scdf.estimator=sampled",
    "distill": "distill.top_k=10",
    "finetune": "finetune.stage=pretrain",
    "ngram": "data.split=train",
}
