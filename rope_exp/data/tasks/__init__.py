"""Generated data, for questions in which position is all there is: no text, no files, no torch.

Addition, copying and retrieval are rows of tokens for a decoder (`rows`); spikes are events at real
times. Row n of a split is a pure function of (seed, n), whatever was asked for before or beside it.
"""
