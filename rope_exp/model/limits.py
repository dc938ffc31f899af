"""Limits of the computation that memory estimates share with it."""

# Tokens per chunk of the loss. Each chunk passes once over the head's gradient, which takes a
# tenth of the time of its products.
TOKENS_OF_A_CHUNK = {"cpu": 512, "cuda": 8192}
# Longest sequence with explicit attention weights, on a CPU: their memory grows with the square
# of the length.
MAX_WRITTEN_OUT = 2048
# Tokens between two states held in training, for kinds with a state.
CHUNK = 64
