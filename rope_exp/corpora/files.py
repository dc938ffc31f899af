"""data=files: a file or a folder of Parquet, Arrow, JSON, CSV, TSV or text, also packed."""

import glob
from pathlib import Path
from typing import Any

from rope_exp.corpora import _datasets as readers
from rope_exp.corpora._datasets import PACKED, TEXTS, format_of, is_unread
from rope_exp.corpus import TRAIN, Corpus
from rope_exp.errors import ConfigError
from rope_exp.hub import refuse_load_errors
from rope_exp.sections import DataConfig

_ENDINGS = f".{', .'.join(TEXTS)} (or {', '.join(PACKED)} after it)"


def state(data: DataConfig) -> list[Any]:
    """Return plain values that change with the files."""
    states: list[Any] = list_files(data)
    names = [name for name, *_ in states]
    if any(format_of(name) in ("csv", "json", "jsonl") for name in names):
        # Version 0.2.0 changed some texts of these formats: what it prepared is not used.
        states.append("as text")
    if any(map(_is_new_since_0_2_0, names)):
        # A corpus that version 0.2.0 prepared without such a file is not used, either.
        states.append("of every format")
    return states


def _is_new_since_0_2_0(name: str) -> bool:
    """Return whether a file is read or refused now, while version 0.2.0 left it out in silence."""
    is_packed = name.lower().endswith((".bz2", ".xz", ".zip"))
    return is_unread(name) or is_packed or format_of(name) in ("tsv", "ndjson", "feather")


def open_corpus(data: DataConfig) -> Corpus:
    """Open the corpus of data.path, with the splits of its dataset card or of its files' names."""
    readers.set_up_datasets()
    from huggingface_hub import metadata_load

    with refuse_load_errors("data.path", data.path):
        root = _root(data)
        _check_name(root)
        card = root / "README.md"
        if card.is_file() and "configs" in (metadata_load(card) or {}):
            return readers.with_card(data, str(root))
        return readers.corpus_of(data, _splits(data, root))


def list_files(data: DataConfig) -> list[tuple[str, int, int]]:
    """Return the name, size and time (in nanoseconds) of each file that is not hidden."""
    root = _root(data)
    # Path.rglob follows no links.
    names = sorted(map(Path, glob.glob("**", root_dir=root, recursive=True)))  # noqa: PTH207
    # `datasets` skips these names, too.
    names = [name for name in names if not any(part.startswith("__") for part in name.parts)]
    files = {str(name): root / name for name in names if (root / name).is_file()}
    if root.is_file():
        files = {root.name: root}
    return [(name, path.stat().st_size, path.stat().st_mtime_ns) for name, path in files.items()]


def _root(data: DataConfig) -> Path:
    path = Path(str(data.path)).expanduser().absolute()
    if not path.exists():
        raise ConfigError("data.path", data.path, "there is no such file or folder")
    # datasets resolves links to a folder when it names the folder's files.
    return path.resolve() if path.is_dir() else path


def _check_name(path: Path) -> None:
    """Refuse a name that `datasets` would read as something else."""
    if "::" in str(path):
        reason = "has :: in its name, which `datasets` reads as a chain of addresses; rename it"
        raise ConfigError("data.path", str(path), reason)
    if path.is_dir() and "[" in str(path):
        reason = "has [ in its name, which `datasets` reads as a pattern; rename the folder"
        raise ConfigError("data.path", str(path), reason)


def _splits(data: DataConfig, root: Path) -> dict[str, list[str]]:
    """Return the readable files of a file or folder by split, as their names tell."""
    if data.subset is not None:
        reason = "is for a folder with a dataset card, or the hub; data.path has none"
        raise ConfigError("data.subset", data.subset, reason)
    listed_names = [name for name, *_ in list_files(data)]
    names = [Path(name) for name in listed_names if format_of(name) in TEXTS]
    if any(name.suffix == ".arrow" for name in names):
        # `save_to_disk` of datasets writes JSON beside its .arrow files.
        described = ("dataset_dict.json", "dataset_info.json", "state.json")
        names = [name for name in names if name.name not in described]
    if not names:
        raise ConfigError("data.path", data.path, f"holds no file that ends in {_ENDINGS}")
    for name in names:
        _check_name(root / name)
    for unread in filter(is_unread, listed_names):
        reason = f"would be left out: its name says that it holds data, but not as {_ENDINGS}"
        remedy = "convert it, move it, or let data.path name the one file that is meant"
        raise ConfigError("data.path", str(root / unread), f"{reason}; {remedy}")
    if root.is_file():
        return {TRAIN: [str(root)]}

    from datasets.data_files import DataFilesDict, get_data_patterns

    files = {str(root / name) for name in names}
    listed = DataFilesDict.from_patterns(get_data_patterns(str(root)), base_path=str(root))
    splits = {str(split): [path for path in listed[split] if path in files] for split in listed}
    # If some names contain a split, datasets leaves out all others, and what is behind links.
    left_out = files.difference(*splits.values())
    if left_out:
        reason = f"would be left out beside the files of {', '.join(splits)}"
        raise ConfigError("data.path", min(left_out), f"{reason}; move it, or name it for a split")
    return {split: paths for split, paths in splits.items() if paths}
