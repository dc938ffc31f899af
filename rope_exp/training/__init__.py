"""Training of one run on one rank: the step, the loop, and resuming from a checkpoint."""
