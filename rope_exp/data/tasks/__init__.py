"""Generated tasks that isolate the role of position, without text, files or torch.

Addition, copying, repeats and retrieval are rows of tokens for a decoder (`rows`); spikes are
events at real times. Row n of a split is a pure function of (seed, n), independent of other calls.
"""
