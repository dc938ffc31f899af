"""Tables, sentences and figures of what the evidence says."""
