"""What the Hugging Face hub shows: evaluation results of a model, benchmarks, model cards, and static Spaces."""
