"""Reader of exported folders, in a process that cannot import rope_exp."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# This code loads a folder as its README says, and prints its class, logits and generated text.
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
said = model.generate(**batch, max_new_tokens=8, do_sample=False)
model.save_pretrained(again)
narrow = AutoModelForCausalLM.from_pretrained(again, trust_remote_code=True, dtype="bfloat16")
print(json.dumps({
    "class": type(model).__name__,
    "ids": batch["input_ids"].tolist(),
    "last": logits[:, -1].tolist(),
    "said": [tokenizer.decode(ids) for ids in said[:, batch["input_ids"].shape[1]:]],
    "narrow": str(narrow.lm_head.weight.dtype),
}))
"""
TEXT = "Document 3. A text"


def read(folder: Path, tmp_path: Path) -> dict[str, Any]:
    """Return the output of `READER` for an exported folder."""
    places = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", READER, str(folder), str(tmp_path / "again"), TEXT],
        env=os.environ | places,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
