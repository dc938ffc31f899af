# %% [markdown]
# # Differences within a seed
#
# A campaign's records are enough: `rope-exp report` makes its tables from them, and so can you.
# Run this file as it is (`python docs/notebooks/differences.py`), or cell by cell in an editor that
# knows `# %%`. `--records FOLDER` reads another campaign, or a folder of runs.

# %%
import argparse
from pathlib import Path

import rope_exp

HERE = Path(rope_exp.__file__).parents[1]
parser = argparse.ArgumentParser()
parser.add_argument("--records", default=HERE / "paper/records/noise")
# An editor starts a kernel with words of its own.
records = parser.parse_known_args()[0].records

runs = rope_exp.load_runs(records)
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
# A block is the runs of one seed: within it variants share initial weights, tokens and their order,
# which the hashes prove. In the pilot the order of batches may have another seed than the weights;
# such runs are left out, since seeds that come twice make blocks that are not independent.

# %%
order = runs["data.seed"].fillna(runs["seed"]).astype(int)
table = runs[order == runs["seed"]].pivot(index="seed", columns="pe", values="val/loss")
print(table.round(4).to_string())

# %% [markdown]
# The difference to QK-RoPE within each block, and how far it deviates, beside how far it would if
# the losses of a block had nothing in common: where it deviates less, pairing has taken noise away.

# %%
differences = table.drop(columns="qk_rope").sub(table["qk_rope"], axis="index").dropna()
summary = differences.agg(["count", "mean", "std"]).T
summary["std if unpaired"] = (table.var() + table["qk_rope"].var()) ** 0.5
print(summary.round(4).to_string())
