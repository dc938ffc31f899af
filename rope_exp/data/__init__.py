"""Corpus -> tokenizer -> token blocks -> batch = f(seed, step). Importing it loads nothing heavy."""

from rope_exp.data.batches import Batches, chain_sha256, validation_ids
from rope_exp.data.blocks import Prepared, prepare
from rope_exp.data.documents import DataError
from rope_exp.data.tokens import load_tokenizer

__all__ = ["Batches", "DataError", "Prepared", "chain_sha256", "load_tokenizer", "prepare", "validation_ids"]
