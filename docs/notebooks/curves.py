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
# Validation loss by tokens: the median over runs, and how far they lie apart; at each rate by
# itself.

# %%
validation = curves.dropna(subset=["val/loss"])
by_tokens = validation.groupby(["optim.lr", "tokens", "pe"])["val/loss"]
print(by_tokens.median().unstack().round(3).to_string())
spread = by_tokens.max() - by_tokens.min()
print(spread.unstack().round(3).to_string())
