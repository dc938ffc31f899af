"""The decoder, its rotation, and the laws that both must obey."""
