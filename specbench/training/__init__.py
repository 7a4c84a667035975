"""Training of drafters: one loop for every objective (s-CDF, distillation, pretraining and fine-tuning)."""
