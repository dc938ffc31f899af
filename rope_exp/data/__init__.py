"""Corpus -> tokenizer -> token blocks -> batch = f(seed, step)."""
