# %% [markdown]
# # Curves
#
# `load_metrics` gives every row of every curve, from run folders or from records.

# %%
import argparse
from pathlib import Path

import rope_exp

HERE = Path(rope_exp.__file__).parents[1]
parser = argparse.ArgumentParser()
parser.add_argument("--records", default=HERE / "paper/records/noise")
# An editor starts a kernel with words of its own.
curves = rope_exp.load_metrics(parser.parse_known_args()[0].records)
print(f"{len(curves):,} rows of {curves['where'].nunique()} runs")

# %% [markdown]
# Validation loss by tokens: the median over runs, and how far they lie apart; at each rate by
# itself. The pilot's runs that were computed otherwise are left out.

# %%
how = ["train.precision", "train.compile", "train.micro_batch_size"]
how += ["pe.precision", "launch.num_threads"]
validation = curves.dropna(subset=["val/loss"])
# A column is there where it tells runs apart.
for key in validation.columns.intersection(how):
    spelled = validation[key].map(str)
    validation = validation[spelled == spelled.mode()[0]]
by_tokens = validation.groupby(["optim.lr", "tokens", "pe"])["val/loss"]
print(by_tokens.median().unstack().round(3).to_string())
spread = by_tokens.max() - by_tokens.min()
print(spread.unstack().round(3).to_string())
