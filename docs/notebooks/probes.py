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
parser.add_argument("--records", default=HERE / "paper/records/noise")
# An editor starts a kernel with words of its own.
answers = rope_exp.load_probes(parser.parse_known_args()[0].records)
if answers.empty:
    raise SystemExit("no answers: train.probes says what a run is asked")
print(f"{len(answers):,} numbers of {answers['where'].nunique()} runs")

# %% [markdown]
# The pilot varies the rate; its lowest is that of the campaigns.

# %%
rate = answers["optim.lr"].min()
answers = answers[answers["optim.lr"] == rate]
print(f"{answers['where'].nunique()} of them at a rate of {rate:g}")

# %% [markdown]
# What longer windows cost, what a shift does, and what a site's rotation is worth to a model that
# has learned with it: each number minus the first of its run, which is that of the model as it was
# trained (its length, no shift, every rotation). Medians over runs.

# %%
for probe in ("positions", "shift", "ablation"):
    asked = answers[answers["probe"] == probe]
    if asked.empty:
        continue
    table = asked.pivot(index=["pe", "where"], columns="at", values="value")[asked["at"].unique()]
    costs = table.sub(table.iloc[:, 0], axis="index").groupby(level="pe").median()
    print(f"\n{probe}: loss minus that of the model as trained")
    print(costs.round(3).to_string(na_rep="—"))
