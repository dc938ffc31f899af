"""Tests of the folder that `rope-exp export` writes: its model and its card."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from support.command import in_a_process
from support.configs import composed
from support.refused import refused
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rope_exp import load_run
from rope_exp.commands.export import main as export
from rope_exp.decoder import weights_sha256
from rope_exp.errors import ConfigError, RunFolderError
from rope_exp.export import write
from rope_exp.export.write import tokenizer_of
from rope_exp.folder import read_result
from rope_exp.prepare import byte_tokenizer

# This code loads a folder as its README says, and prints its class and logits.
READER = """
import json, sys
sys.modules["rope_exp"] = None
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
folder, again, text = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
batch = tokenizer([text, text[5:]], return_tensors="pt", padding=True)
for trust in (True, False):
    auto = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
    assert auto([text, text[5:]], padding=True)["input_ids"] == batch["input_ids"].tolist()
with torch.no_grad():
    logits = model(**batch).logits
model.save_pretrained(again)
narrow = AutoModelForCausalLM.from_pretrained(again, trust_remote_code=True, dtype="bfloat16")
print(json.dumps({
    "class": type(model).__name__,
    "ids": batch["input_ids"].tolist(),
    "last": logits[:, -1].tolist(),
    "narrow": str(narrow.lm_head.weight.dtype),
}))
"""
TEXT = "Document 3. A text"


@pytest.fixture(scope="module")
def run(whole: tuple[Path, list[str]]) -> Path:
    return whole[0]


@pytest.fixture(scope="module")
def out(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the run's export."""
    folder = tmp_path_factory.mktemp("export") / "out"
    assert export([str(run), str(folder)]) == 0
    return folder


def test_a_process_without_rope_exp_reads_it(run: Path, out: Path, tmp_path: Path) -> None:
    printed = in_a_process(tmp_path, READER, str(out), str(tmp_path / "again"), TEXT)
    found = json.loads(printed.splitlines()[-1])
    assert found["class"] == "RopeExpForCausalLM"
    assert found["narrow"] == "torch.bfloat16"

    decoder, tokenizer = load_run(run)
    end = len(decoder.lm_head.weight) - 1
    texts = [TEXT, TEXT[5:]]
    prompts = [tokenizer.encode(text).ids for text in texts]
    assert found["ids"] == [prompts[0], [end] * 5 + prompts[1]]
    with torch.no_grad():
        for ids, last in zip(prompts, found["last"], strict=True):
            ours = decoder(torch.tensor([ids]))[0, -1]
            assert float((torch.tensor(last) - ours).abs().max()) < 1e-5 * float(ours.abs().max())


def test_files_are_for_everybody_and_text_is_plain(out: Path) -> None:
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o644
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    assert tokenizer.padding_side == "left"
    # As in training, the spelling of the end token within a document is ordinary text.
    assert len(tokenizer("<|endoftext|>")["input_ids"]) == len("<|endoftext|>")
    assert tokenizer.eos_token_id == 256
    assert tokenizer.pad_token_id == 256


def test_a_mask_is_the_id_after_the_tokenizers_own() -> None:
    """A vocabulary with holes has none: its id would be another one there than in our model."""
    config = composed("train.objective=mlm", "tokenizer=bytes")
    made = tokenizer_of(byte_tokenizer(), 256, config)
    assert made.mask_token_id == 257
    assert made("a<|mask|>b")["input_ids"] == [97, 257, 98]
    with refused("tokenizer.path=null: has holes among its ids"):
        tokenizer_of(Tokenizer(WordLevel({"a": 0, "b": 1, "c": 5}, unk_token="a")), 0, config)


def test_its_card_says_what_the_run_measured(run: Path, out: Path) -> None:
    card = ModelCard.load(out / "README.md")
    result = read_result(run)
    assert result is not None
    assert f"| validation loss | {result['val/loss']:.4f} nats per token |" in card.text
    for key in ("config_sha256", "init_sha256", "data_sha256", "order_sha256"):
        assert f"| {key} | {result[key]} |" in card.text
    assert weights_sha256(load_file(out / "model.safetensors")) in card.text
    assert '| pe.rotate | ["v", "o"] |' in card.text
    assert 'from_pretrained("out", trust_remote_code=True)' in card.text
    assert str(out.parent) not in card.content


def test_an_earlier_checkpoint_has_no_loss_of_the_last(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export([str(run), str(tmp_path / "out"), "--step", "50"])
    assert "trust_remote_code=True" in capsys.readouterr().out
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| validation loss | not measured at step 50 |" in text


def test_a_folder_that_holds_something_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with refused("OUT=", "holds something", by=ConfigError):
        export([str(run), str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with refused("OUT=", "run's own folder", by=ConfigError):
        export([str(run), str(run / "out")])
    with refused("no run", by=RunFolderError):
        export([str(tmp_path), str(tmp_path.parent / "no_run_out")])


def test_an_export_that_was_stopped_can_be_made_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error leaves nothing, a kill a hidden folder that the next export removes."""
    out = tmp_path / "out"
    with monkeypatch.context() as broken:
        broken.setattr(write, "write_code", Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="full"):
            export([str(run), str(out)])
    assert list(tmp_path.iterdir()) == []

    (tmp_path / ".saving-out").mkdir()
    (tmp_path / ".saving-out" / "config.json").write_text("half")
    # An empty folder is as good as none.
    out.mkdir()
    assert export([str(run), str(out)]) == 0
    assert list(tmp_path.iterdir()) == [out]


def test_two_exports_to_one_folder_do_not_meet(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused while the first one writes, and the first is whole."""
    out = tmp_path / "out"
    write_code = write.write_code

    def meanwhile(*given: Any) -> None:
        with refused("OUT=", "another process exports to it", by=ConfigError):
            export([str(run), str(out)])
        write_code(*given)

    monkeypatch.setattr(write, "write_code", meanwhile)
    assert export([str(run), str(out)]) == 0
    assert (out / "model.safetensors").exists()
    assert list(tmp_path.iterdir()) == [out]
