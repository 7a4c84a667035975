"""Training of drafters: one loop for all objectives (s-CDF, distillation, pretraining, fine-tuning), and n-gram
counting."""
