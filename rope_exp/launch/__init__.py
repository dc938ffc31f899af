"""Launching of runs in child processes: one run, a sweep or a campaign."""
