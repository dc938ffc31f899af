"""Data: corpora and tokenizers, prepared token files, generated tasks, and batches."""
