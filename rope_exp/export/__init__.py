"""Trained models for other libraries: a run's model for transformers, and rotations for theirs."""
