"""Test the numbers of results/README.md that stand in no table, from the records."""

import itertools
import re
from collections.abc import Iterable
from functools import cache

import pandas as pd
from scipy import stats
from support.configs import NINE, REPOSITORY
from tables import RECORDS

import rope_exp

load_runs = cache(rope_exp.load_runs)
README = (REPOSITORY / "results/README.md").read_text(encoding="utf-8")
TUNED = {"qkvo": 0.003, "qk": 0.006, "qkv": 0.003}  # the others: 0.0015


def losses(campaign: str) -> pd.DataFrame:
    """Return the losses of a campaign at 26M tokens by seed, and by variant and learning rate."""
    runs = load_runs(RECORDS / campaign)
    long = runs[runs["steps"] == 6400]
    variant = long["pe"].str.removesuffix("_rope")
    return long.assign(pe=variant).pivot(
        index="seed", columns=["pe", "optim.lr"], values="val/loss"
    )


def paired_t(differences: pd.Series) -> tuple[int, str, str, float]:
    """Return the count, the mean and the interval as written, and p, of a paired t test."""
    test = stats.ttest_1samp(differences.dropna(), 0)
    low, high = test.confidence_interval()
    return test.df + 1, f"{differences.mean():.4f}", f"{low:.4f} to {high:.4f}", float(test.pvalue)


def test_third_test_a() -> None:
    table = losses("lead_26m")
    by_rate = table["qk"] - table["qkvo"]
    lead = by_rate.mean(axis="columns")
    probes = rope_exp.load_probes(RECORDS / "lead_26m").query("probe == 'repeat'")
    read = probes.pivot(index="where", columns="at", values="value")
    copying = read.index[read[1] - read[2] >= 0.3]
    seeds = {int(re.findall("s([0-9]+)$", where)[0]) for where in copying}
    assert (len(copying), seeds) == (2, {22, 23})

    count, _, interval, p = paired_t(-lead)
    assert (count, f"{p:.3f}") == (12, "0.011")
    assert f"-{lead.mean():.4f} ({interval}; p = {p:.3f})" in README
    assert [rate for rate in by_rate if paired_t(by_rate[rate])[3] < 0.05] == [0.0015]
    _, mean, interval, _ = paired_t(lead.drop([*seeds]))
    assert f"without these seeds the lead is {mean} ({interval})" in README
    _, mean, interval, _ = paired_t(table["qk", 0.006] - table["qkvo", 0.003])
    assert f"on the twelve seeds by {mean} ({interval}; exploratory)" in README
    count, mean, _, p = paired_t(lead.loc[22:])
    assert count == 10
    assert f"Without the two seeds that ran on a CPU it is {mean} (p = {p:.3f})" in README


def test_differences_from_nope_over_all_seeds() -> None:
    later = losses("open_26m").join(losses("lead_26m").loc[20:23])
    table = pd.concat([losses("nine_26m"), losses("tokens"), later])
    columns = {pe: table[pe, TUNED.get(pe, 0.0015)] for pe in table.columns.levels[0]}
    rows = re.findall(r"^\| (\w+) \|.*\| (\S+) \((\S+) to (\S+)\) \| ([0-9]+) \|", README, re.M)
    assert len(rows) == 8
    assert f" | reference | {columns['nope'].count()} | " in README
    for name, delta, *ends, seeds in rows:
        count, mean, interval, _ = paired_t(columns[name.lower()] - columns["nope"])
        assert (int(seeds), delta) == (count, mean)
        assert interval == " to ".join(end.removeprefix("+") for end in ends)


def significant(p: Iterable[float]) -> int:
    """Return the number of p-values that Holm's rule rejects at 5 %."""
    ordered = sorted(p)
    rejected = [value < 0.05 / (len(ordered) - place) for place, value in enumerate(ordered)]
    return [*rejected, False].index(False)


def test_pairs_without_one_seed() -> None:
    whole = losses("nine_26m")
    counts = []
    for seeds in (whole.index, *(whole.index.drop(seed) for seed in whole.index)):
        pairs = itertools.combinations(whole.loc[seeds].to_numpy().T, 2)
        counts.append(significant(stats.ttest_rel(a, b).pvalue for a, b in pairs))
    assert counts[0] == 26
    written = f"{min(counts[1:])} to {max(counts[1:])}"
    assert f"With any one seed left out, {written} of the 36 pairs" in README


# The campaigns that section 4 counts.
COUNTED = """distance documents english heads layers length lr nine_26m rates_26m shift_26m size
table table_warmup tokens warmup warmup_200"""


def test_counts_across_settings() -> None:
    """A setting is a `group_sha256` with QK and QKVO at one seed; tuned rates are one each."""
    runs = pd.concat([load_runs(RECORDS / x).assign(of=x) for x in COUNTED.split()])
    runs = runs[runs["pe"].isin(NINE) & runs["pe.precision"].isin([None, "float32"])]
    tuned = runs["of"].isin(["nine_26m", "shift_26m"]) & (runs["steps"] == 6400)
    groups = runs.groupby(runs["group_sha256"].mask(tuned, runs["of"]))
    tables = [x.pivot_table("val/loss", "seed", "pe").reindex(columns=[*NINE]) for _, x in groups]
    tables = [table for table in tables if (table["qk_rope"] + table["qkvo_rope"]).any()]
    assert f"We counted {len(tables)} [settings]" in README

    rows = re.findall(r"^\| (\w+) before (\w+) \| .* \| (.*) \| (.*) \|$", README, re.M)
    assert len(rows) == 9
    for *pair, in_settings, in_runs in rows:
        first, second = ("nope" if name == "NoPE" else f"{name.lower()}_rope" for name in pair)
        leads = pd.DataFrame([table[second] - table[first] for table in tables])
        means, every = leads.mean(axis="columns").dropna(), leads.stack().dropna()
        assert in_settings == f"{(means > 0).sum()} of {len(means)}"
        assert in_runs == f"{(every > 0).sum()} of {len(every)}"
