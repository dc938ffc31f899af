# %% [markdown]
# # What finished models answer
#
# Each record holds the probes of its model: the loss by position and at longer lengths, under a
# shift of all positions, and with one site's rotation switched off.

# %%
import sys
from pathlib import Path

import pandas as pd

from rope_exp.evidence.records import read_records

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/records/noise")
# A run that diverged was asked nothing.
runs = [run for run in read_records(folder.parent, folder.name) if run.probes]

# %% [markdown]
# Loss at 1, 2, 4 and 8 times the training length, minus that at the training length.

# %%
lines = {}
for run in runs:
    positions = run.probes["positions"]
    longer = dict(zip(positions["lengths"], positions["loss_at_length"], strict=True))
    lines[run.where] = {"pe": run.config.pe.label, **longer}
lengths = pd.DataFrame(lines).T.set_index("pe").astype(float)
print(lengths.sub(lengths.iloc[:, 0], axis="index").groupby(level=0).median().round(3).to_string())

# %% [markdown]
# What a shift costs, and what a site's rotation is worth to a model that has learned with it.

# %%
for probe, key in (("shift", "start"), ("ablation", "without")):
    found = []
    for run in runs:
        answer = run.probes[probe]
        costs = [loss - answer["loss"][0] for loss in answer["loss"]]
        found.append({"pe": run.config.pe.label, **dict(zip(answer[key], costs, strict=True))})
    print(f"\n{probe}: loss minus that of the model as trained")
    print(pd.DataFrame(found).groupby("pe").median().round(3).to_string(na_rep="—"))
