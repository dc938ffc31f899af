# %% [markdown]
# # What finished models answer
#
# `load_probes` gives each number that a model was asked for, from run folders or from records: the
# loss by position and at longer lengths, under a shift of all positions, and with one site's
# rotation switched off. Run folders have answers where `train.probes` asked.

# %%
import argparse
from pathlib import Path

import rope_exp

HERE = Path(rope_exp.__file__).parents[1]
parser = argparse.ArgumentParser()
parser.add_argument("--records", default=HERE / "results/records/noise")
# An editor starts a kernel with words of its own.
answers = rope_exp.load_probes(parser.parse_known_args()[0].records)
print(f"{len(answers):,} numbers of {answers['where'].nunique()} runs")

if answers.empty:
    raise SystemExit("these runs were asked nothing: train.probes says what a run is asked")

# %% [markdown]
# Each number minus the first of its run, which is that of the model as trained: at its training
# length, without a shift, with every rotation. The pilot varies the rate, and its lowest is that of
# the campaigns.

# %%
answers = answers[answers["optim.lr"] == answers["optim.lr"].min()]
first = answers.groupby(["where", "probe"])["value"].transform("first")
answers = answers.assign(cost=answers["value"] - first)

# %% [markdown]
# What longer windows cost, what a shift does, and what a site's rotation is worth to a model that
# has learned with it: medians over runs.

# %%
for probe in ("positions", "shift", "ablation"):
    asked = answers[answers["probe"] == probe]
    table = asked.groupby(["pe", "at"], sort=False)["cost"].median().unstack()
    print(f"\n{probe}: loss minus that of the model as trained")
    print(table.round(3).to_string(na_rep="—"))
