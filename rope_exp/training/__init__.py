"""One run on one rank: the step, the loop, and what goes on after an interruption."""
