"""The run folder: what a run says of itself."""
