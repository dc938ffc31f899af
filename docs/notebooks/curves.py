# %% [markdown]
# # Curves
#
# `load_metrics` gives every row of every curve, from run folders or from records.

# %%
import sys

from rope_exp import load_metrics

records = sys.argv[1] if len(sys.argv) > 1 else "results/records/noise"
curves = load_metrics(records)
print(f"{len(curves):,} rows of {curves['where'].nunique()} runs")

# %% [markdown]
# Validation loss by tokens: the median over seeds, and how far the seeds lie apart.

# %%
validation = curves.dropna(subset=["val/loss"])
by_tokens = validation.groupby(["tokens", "pe"])["val/loss"]
print(by_tokens.median().unstack().round(3).to_string())
spread = by_tokens.max() - by_tokens.min()
print(spread.unstack().round(3).to_string())
