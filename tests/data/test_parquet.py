"""Parquet files, whose rows may be many and long."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import TEXTS, data_config, write_parquet
from support.refused import refused

from rope_exp.data import parquet as parquet_module
from rope_exp.data.parquet import parquet_texts


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_texts_come_in_order_whatever_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_dictionary: bool
) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, TEXTS * 3, row_group_size=70, use_dictionary=use_dictionary)
    for batch_bytes in (1, 5000, 1 << 29):
        monkeypatch.setattr(parquet_module, "BATCH_BYTES", batch_bytes)
        assert list(parquet_texts(path, data_config(path=path))) == TEXTS * 3


def test_a_text_in_many_rows_is_counted_as_often(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.array([0] * 100_000, pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(rows, pa.array(["a" * 1000]))})
    pq.write_table(table, path, store_schema=False)
    with refused(f"data.path={path}: unpacks to ", "over 200 times its size"):
        list(parquet_texts(path, data_config(path=path)))
