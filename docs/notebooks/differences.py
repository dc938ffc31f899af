# %% [markdown]
# # Differences within a seed
#
# A campaign's records are enough: `rope-exp report` makes its tables from them, and so can you.
# Run this file as it is (`python docs/notebooks/differences.py [RECORDS]`), or cell by cell in an
# editor that knows `# %%`.

# %%
import sys

from rope_exp import load_runs

records = sys.argv[1] if len(sys.argv) > 1 else "results/records/noise"
runs = load_runs(records)
hours = runs["wall_s"].sum() / 3600
print(f"{len(runs)} runs of {runs['pe'].nunique()} variants, {hours:.1f} hours")

# %% [markdown]
# The pilot also computes cells otherwise: at another rate, or with another precision. Those that
# agree with most of them are looked at here.

# %%
how = ["optim.lr", "train.precision", "train.compile", "train.micro_batch_size"]
how += ["pe.precision", "launch.num_threads"]
spelled = runs[how].map(str)
runs = runs[(spelled == spelled.mode().iloc[0]).all(axis="columns")]
print(f"{len(runs)} of them at {spelled.mode().iloc[0].to_dict()}")

# %% [markdown]
# A block is what has the same seeds, of weights and of order: within it variants share initial
# weights, tokens and their order, which the hashes prove.

# %%
runs = runs.assign(order=runs["data.seed"].fillna(runs["seed"]).astype(int))
table = runs.pivot(index=["seed", "order"], columns="pe", values="val/loss")
print(table.round(4).to_string())

# %% [markdown]
# The difference to QK-RoPE within each block, and how far it deviates. Where it deviates less than
# the losses themselves do, pairing has taken noise away.

# %%
differences = table.drop(columns="qk_rope").sub(table["qk_rope"], axis="index").dropna()
summary = differences.agg(["count", "mean", "std"]).T
summary["std of the loss"] = table.std()
print(summary.round(4).to_string())
