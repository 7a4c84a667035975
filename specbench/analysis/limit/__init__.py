"""What the hardware allows a pair of models, side by side with what is measured."""
