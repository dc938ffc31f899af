"""Tests of `rope-exp publish`: a data set of whole records that `datasets` reads, and its page."""

import json
from pathlib import Path

import pytest
from datasets import Dataset, load_dataset
from huggingface_hub import DatasetCard, RepoCard
from support.hub import Fault, Hub
from support.records import make_records
from support.refused import refused

from rope_exp.commands import check_records, publish
from rope_exp.system.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two campaigns, one with a key that the other lacks."""
    folder = tmp_path_factory.mktemp("records")
    make_records(folder, "mine", rows=("qk_rope", "nope"), seeds=(0, 1))
    make_records(
        folder, "rates", rows=("qk_rope",), seeds=(0,), factors={"optim.lr": [0.001, 0.003]}
    )
    return folder


def read(folder: Path, config: str, tmp_path: Path) -> Dataset:
    return load_dataset(str(folder), config, split="train", cache_dir=str(tmp_path / "cache"))


def test_a_published_campaign_is_read_by_datasets(records: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["mine", "rates", "mine", "--records", str(records)]
    words += ["--repo", "me/runs", "--to", str(out)]
    assert publish(words) == 0
    card = DatasetCard.load(out / "README.md")
    assert [each["config_name"] for each in card.data.to_dict()["configs"]] == ["runs", "curves"]
    assert 'load_dataset("me/runs", "runs", split="train")' in card.text

    # The data set holds every record byte for byte beside its numbers.
    runs = read(out, "runs", tmp_path)
    assert len(runs) == 6
    for line in runs:
        record = json.loads(line["record"])
        assert line["val/loss"] == record["result"]["val/loss"]
        assert line["optim.lr"] == record["config"]["optim"]["lr"]
        path = tmp_path / "again" / f"{line['where']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(line["record"], encoding="utf-8")
        assert path.read_bytes() == (records / f"{line['where']}.json").read_bytes()
        assert line["unit"] == "nats per token"
    assert check_records([str(tmp_path / "again")]) == 0

    curves = read(out, "curves", tmp_path)
    for line in runs:
        expected = json.loads(line["record"])["curve"]
        found = [each for each in curves if each["where"] == line["where"]]
        assert [each["step"] for each in found] == expected["step"]
        assert [each["val/loss"] for each in found] == expected["val/loss"]


def test_it_is_uploaded_as_a_data_set_and_a_space(
    records: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["mine", "--records", str(records), "--repo", "me/runs"]
    with Hub({}) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        assert publish(words) == 0
        sent = hub.uploaded
        assert sent["datasets/me/runs"].keys() == {"README.md", "runs.parquet", "curves.parquet"}
        assert sent["spaces/me/runs"].keys() == {"README.md", "index.html"}
        card = RepoCard(sent["spaces/me/runs"]["README.md"].decode())
        assert card.data.to_dict()["sdk"] == "static"
        assert b"QK-RoPE" in sent["spaces/me/runs"]["index.html"]
        # The page links to no file, as none lies beside it.
        assert b".csv" not in sent["spaces/me/runs"]["index.html"].partition(b"<h2")[2]
        assert b'href="records/' not in sent["spaces/me/runs"]["index.html"]
        assert capsys.readouterr().out.count("/commit/") == 2

        hub.faults = [Fault(403, "commit")]
        said = "the hub did not take the dataset"
        with refused("--repo=me/runs", said, "`rope-exp publish mine", by=DataError):
            publish(words)


def test_mistakes_write_nothing(records: Path, tmp_path: Path) -> None:
    to = ["--records", str(records), "--repo", "me/runs", "--to", str(tmp_path / "out")]
    with refused("CAMPAIGN=yours", "has no record", "there is mine, rates", by=ConfigError):
        publish(["mine", "yours", *to])
    with refused("--repo=me", "OWNER/NAME", by=ConfigError):
        publish(["mine", "--repo", "me"])
    with refused("--to=", "holds something", by=ConfigError):
        publish(["mine", *to[:-1], str(records)])
    with refused("--to=", "cannot be written", by=ConfigError):
        publish(["mine", *to[:-1], str(records / "mine" / "nope-s0.json" / "out")])
    assert not (tmp_path / "out").exists()
