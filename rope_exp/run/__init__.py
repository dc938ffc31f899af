"""The run folder: a run's config, metrics, checkpoints, results, origin and provenance."""
