"""Tests of tables of kinds of attention: named rows, their caches, and published losses."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import make_records
from support.refused import refused
from support.reports import make_run, table_rows

from rope_exp.evidence.published import SEQUEL
from rope_exp.evidence.records import read_records
from rope_exp.plan.campaign_file import read_campaign
from rope_exp.report.charts.cached import front
from rope_exp.report.command import write, write_campaigns
from rope_exp.report.content import build
from rope_exp.report.sentences import notes

ROWS = ("mha", "mla", "mla_vo", "gqa1", "gqa2_s2", "gqa2_s2_not_back", "gqa2_v_unrotated")
CORES = ("softmax_qk", "softmax_vo", "linear_none", "linear_qk", "decay_none", "decay_vo")


def loss(row: str, seed: int) -> float:
    return 4.0 + 0.02 * len(row) + 0.001 * seed


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the files written from two campaigns' records."""
    folder = tmp_path_factory.mktemp("kinds")
    for campaign, names in (("sequel_mini", ROWS), ("cores", CORES)):
        listed = read_campaign(campaign, None).rows
        words = {name: [*listed[name], f"row_name={name}"] for name in names}
        make_records(folder / "records", campaign, rows=words, seeds=(0, 1), loss=loss)
        write_campaigns(folder / "records", campaign, folder)
    return folder


def test_rows_are_named_and_say_what_they_cache(results: Path) -> None:
    rows = table_rows(results / "sequel_mini", "row")
    assert set(rows) == set(ROWS)
    assert rows["mla"]["kind"] == "latent-kv_rank128-nope_dim32-value_dim32"
    assert (rows["mla"]["params"], rows["mla"]["cached"]) == ("4229888", "144")
    assert (rows["mha"]["params"], rows["mha"]["cached"]) == ("4212992", "512")

    cores = table_rows(results / "cores", "row")
    # Each of the two heads of 64 features keeps 64 x 64 numbers and 64 sums.
    assert (cores["linear_qk"]["cached"], cores["linear_qk"]["state"]) == ("0", "8320")


def test_a_row_says_what_it_caches_once(tmp_path: Path) -> None:
    """A token shift caches one input per layer, besides the keys and values of each token."""
    for name, shift in (("plain", "false"), ("shifted", "true")):
        words = [f"model.token_shift={shift}", f"row_name={name}"]
        make_run(tmp_path / "runs", group=name, overrides=words)
    write(tmp_path / "runs", "*", tmp_path / "out", factors=("row", "seed"))
    rows = table_rows(tmp_path / "out", "row")
    kept = {name: (row["cached"], row["state"]) for name, row in rows.items()}
    assert kept == {"plain": ("256", "0"), "shifted": ("256", "128")}
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "| 256 |" in table
    assert "| 256, plus 128 fixed |" in table
    assert "token_shift true" in table


def test_differences_are_to_plain_attention(results: Path) -> None:
    """The sequel's published losses are shown for the rows that it has."""
    rows = table_rows(results / "sequel_mini", "row")
    assert float(rows["mha"]["delta"]) == 0
    assert float(rows["mla_vo"]["delta"]) == pytest.approx(0.06)
    assert float(rows["gqa2_s2"]["published_loss"]) == SEQUEL.losses["row=gqa2_s2"]
    assert float(rows["gqa2_s2"]["published_delta"]) == pytest.approx(2.708 - 2.721)
    assert rows["mla_vo"]["published_loss"] == ""
    text = (results / "sequel_mini/table.md").read_text(encoding="utf-8")
    assert SEQUEL.source in text
    assert "144" in text

    cores = table_rows(results / "cores", "row")
    assert float(cores["softmax_qk"]["delta"]) == 0


def test_each_kind_of_a_campaign_has_its_variants_table(results: Path) -> None:
    """Softmax attention is compared with the published nine, and other kinds with nothing."""
    linear = table_rows(results / "cores/attn=linear")
    assert set(linear) == {"nope", "qk_rope"}
    assert {row["published_loss"] for row in linear.values()} == {""}
    softmax = table_rows(results / "cores/attn=softmax")
    assert float(softmax["vo_rope"]["published_loss"]) == 2.770
    text = (results / "cores/attn=linear/table.md").read_text(encoding="utf-8")
    assert "published" not in text.partition("Assumptions")[0].lower()

    # A kind without queries is compared with its variant that does not rotate.
    decay = table_rows(results / "cores/attn=decay")
    assert float(decay["vo_rope"]["delta"]) == pytest.approx(-0.04)

    # A kind with a single variant, or with rows of several sizes, has no table of variants.
    assert not (results / "cores/attn=retention").exists()
    assert not (results / "sequel_mini/attn=softmax").exists()
    inverse = table_rows(results / "sequel_mini/attn=shared-groups2")
    assert len(inverse) == 3


def test_the_grid_of_a_core_and_the_front_are_drawn(results: Path) -> None:
    assert (results / "cores/attn=linear/figures/grid.svg").exists()
    assert (results / "sequel_mini/figures/cached.svg").exists()
    # All rows of `cores` with a cache that grows have one of the same size.
    assert not (results / "cores/figures/cached.svg").exists()


def test_runs_of_no_campaign_have_no_names(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", pe="qk_rope")
    with refused("--factors row", "has no row_name"):
        write(tmp_path / "runs", None, tmp_path / "out", factors=("row", "seed"))


def test_how_often_a_sum_was_floored_is_noted(results: Path) -> None:
    """The note names the row, and gives the largest share of any layer."""
    runs = []
    for run in read_records(results / "records", "cores"):
        answers = {"floors": {"share": [0.0, 0.0125]}} if run.row == "linear_qk" else {}
        runs.append(replace(run, probes={**run.probes, **answers}))
    said = notes(build(runs, ["row"]))
    found = [line for line in said if "attn.eps" in line]
    assert [line.partition(":")[0] for line in found] == ["linear_qk, seed 0", "linear_qk, seed 1"]
    assert "at most 1.250% of a layer's denominators" in found[0]


points = st.lists(st.tuples(st.integers(1, 8), st.integers(-8, 8)), min_size=1)


@given(points)
def test_the_front_is_what_nothing_dominates(found: list[tuple[int, int]]) -> None:
    """By definition, a point dominates if neither bytes nor loss is larger, and one is smaller."""

    def dominated(num_bytes: int, delta: int) -> bool:
        return any(
            other[0] <= num_bytes and other[1] <= delta and other != (num_bytes, delta)
            for other in found
        )

    best = {point for point in found if not dominated(*point)}
    drawn = front(pd.DataFrame(found, columns=["num_bytes", "delta"], dtype=float))
    assert list(drawn.itertuples(index=False, name=None)) == sorted(best)
