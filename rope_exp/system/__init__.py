"""Utilities for files, processes, signals, the console, errors and the machine.

They import no other package of the project.
"""
