"""Readers of exported folders, in a process that cannot import rope_exp."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def read(folder: Path, tmp_path: Path) -> dict[str, Any]:
    printed = in_a_process(tmp_path, READER, str(folder), str(tmp_path / "again"), TEXT)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def in_a_process(tmp_path: Path, code: str, *words: str) -> str:
    """Run Python code with arguments and caches of its own, and return what it prints."""
    places = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | places,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
