"""Evaluation of trained models: held-out loss, probes and text generation."""
