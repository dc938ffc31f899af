# %% [markdown]
# # What finished models answer
#
# Each record holds the probes of its model: the loss by position and at longer lengths, under a
# shift of all positions, and with one site's rotation switched off.

# %%
import argparse
from pathlib import Path

import pandas as pd

import rope_exp
from rope_exp.evidence.records import read_records

HERE = Path(rope_exp.__file__).parents[1]
parser = argparse.ArgumentParser()
parser.add_argument("--records", type=Path, default=HERE / "results/records/noise")
# An editor starts a kernel with words of its own.
folder = parser.parse_known_args()[0].records

# A run that diverged was asked nothing; of the pilot's, those at the campaigns' rate.
runs = [run for run in read_records(folder.parent, folder.name) if run.probes]
rate = min(run.config.optim.lr for run in runs)
runs = [run for run in runs if run.config.optim.lr == rate]

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
