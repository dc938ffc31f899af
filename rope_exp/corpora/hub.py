"""data=hub: datasets of the Hugging Face hub."""

from typing import Any

from rope_exp.corpora._datasets import set_up_datasets, with_card
from rope_exp.corpus import Corpus
from rope_exp.hub import noting_silence, refuse_load_errors
from rope_exp.sections import DataConfig


def state(data: DataConfig) -> list[Any]:
    """Return plain values that change with the corpus."""
    return [data.path, data.subset, data.revision]


def open_corpus(data: DataConfig) -> Corpus:
    """Open a dataset, with the splits of its card or of its files' names."""
    set_up_datasets()
    place = refuse_load_errors("data.path", data.path, from_hub=True)
    with place, noting_silence("data.path", data.path):
        return with_card(data, str(data.path))
