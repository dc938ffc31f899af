"""From a corpus and a tokenizer to token blocks, and from these to the batch of a step."""
