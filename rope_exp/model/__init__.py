"""The decoder, its rotary position embedding, and the laws that both must obey."""
