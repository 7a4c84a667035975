"""Who is left behind: acceptance, divergence and speed-up by language or task (arXiv:2510.02128)."""
