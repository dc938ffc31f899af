"""Runs in child processes: one, or a sweep of many."""
