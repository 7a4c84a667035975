"""Statistics: the resampler, intervals, ratios and shares."""
