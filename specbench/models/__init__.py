"""A Hugging Face model with its own key-value cache, and the clocks of its passes."""
