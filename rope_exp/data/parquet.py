"""Local Parquet files, read batch by batch by pyarrow itself.

The reader of `datasets` decodes ahead of a slow consumer, which a tokenizer is, and its memory
grows with the corpus.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rope_exp.config.sections import DataConfig
from rope_exp.data.documents import check_column, check_expansion, column_texts

# Documents can be long, and a batch of rows is held in memory.
ROWS = 64
BATCH_BYTES = 512 << 20


def parquet_texts(path: Path, data: DataConfig) -> Iterator[str]:
    """Yield the texts of a file; rows without text are left out.

    Raises:
        ConfigError: there is no such column, or it unpacks without bound.
    """
    import pyarrow.parquet

    size = path.stat().st_size
    with pyarrow.parquet.ParquetFile(path) as file:
        check_column(data, file.schema_arrow.names)
        sizes = [0, *_unpacked_sizes(file.metadata, data)]
        check_expansion(path, size, file.metadata.num_rows + sum(sizes))

        # A dictionary lets one long text stand in any number of rows for a few bits each. No text
        # is longer than the row group that holds it, so a batch of so few rows fits in memory,
        # whichever texts its rows name.
        rows = max(1, min(ROWS, BATCH_BYTES // max(1, *sizes)))
        num_bytes = 0
        for batch in file.iter_batches(rows, columns=[data.text_column]):
            num_bytes += batch.nbytes
            check_expansion(path, size, num_bytes)
            yield from column_texts([batch], data)


def _unpacked_sizes(footer: Any, data: DataConfig) -> Iterator[int]:
    """Yield how many bytes the text column of each row group unpacks to, as the footer claims."""
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.split(".")[0] == data.text_column:
                yield column.total_uncompressed_size
