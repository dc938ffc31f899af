"""Test the numbers of the pages that stand in no table, from the records."""

import itertools
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import power
import pytest
from scipy import stats
from support.configs import NINE, REPOSITORY
from tables import PAPER, RECORDS

import rope_exp
from rope_exp.compose import compose_runs, finalise
from rope_exp.costs import cost_lines
from rope_exp.published import TABLE
from rope_exp.stats import holm

load_runs = cache(rope_exp.load_runs)
FRONT = (REPOSITORY / "README.md").read_text(encoding="utf-8")
README = (REPOSITORY / "results/README.md").read_text(encoding="utf-8")
TABLE_FOLDER = PAPER / "results/nine_26m"
DETAILS = (PAPER / "results.md").read_text(encoding="utf-8")
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
    known = differences.dropna()
    test = stats.ttest_1samp(known, 0)
    low, high = test.confidence_interval()
    return len(known), f"{differences.mean():.4f}", f"{low:.4f} to {high:.4f}", float(test.pvalue)


def copying_runs(campaign: str) -> tuple[int, list[str]]:
    """Return the number of runs that have the probe `repeat`, and those of them that copy."""
    probes = rope_exp.load_probes(RECORDS / campaign).query("probe == 'repeat'")
    read = probes.pivot(index="where", columns="at", values="value")
    copying = read.index[read[1] - read[2] >= 0.3]
    return len(read), [where.partition("/")[2] for where in copying]


def test_relations_without_seed_16() -> None:
    """The intervals that contradict "≈" are Bonferroni's for eight, and have the margin inside."""
    table = losses("nine_26m").droplevel("optim.lr", axis="columns").drop(16)
    p = p_of_relations(table)
    assert p["nope", "o"] < 0.05
    assert p["nope", "v"] < 0.05
    lead = table["k"] - table["vo"]
    assert stats.ttest_1samp(lead, 0).confidence_interval(1 - 0.05 / 8).low > 0.01
    told = "K ≈ VO, NoPE > O and NoPE > V are contradicted."
    assert told in FRONT
    assert (table["nope"] - table["o"]).mean() > 0


def test_which_runs_copy() -> None:
    assert copying_runs("nine_26m") == (72, ["q_rope-s16"])
    assert "one of the 72 runs of the second test copies (Q, seed 16)" in README
    in_a = ["qk_rope-optim.lr=0.006-s22", "qkvo_rope-optim.lr=0.006-s23"]
    assert copying_runs("lead_26m") == (72, in_a)
    assert "two of the 72 of test A (QK on seed 22, QKVO on seed 23, both at 0.006)" in README
    assert copying_runs("open_26m") == (40, [])
    assert "none of the 40 of test B" in README


# The first positions of the bins of the probe `bins`, and the end of the last one.
BINS = (0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)


def mean_loss(bins: pd.DataFrame, first: int, end: int) -> pd.Series:
    """Return each run's mean loss at the positions from `first` to before `end`."""
    total = pd.Series(0.0, index=bins.index)
    for start, stop in itertools.pairwise(BINS):
        if first <= start < end:
            total += bins[start] * (stop - start)
    return total / (end - first)


def test_runs_of_seed_200_that_probably_copy() -> None:
    """Their loss falls by 0.18 or more between the positions 8 to 32 and 128 to 256."""
    probes = rope_exp.load_probes(RECORDS / "rates_26m").query("probe == 'bins'")
    bins = probes.pivot(index="where", columns="at", values="value")
    gain = mean_loss(bins, 8, 32) - mean_loss(bins, 128, 256)
    copying = gain[gain >= 0.18].rename(lambda where: where.partition("/")[2]).round(3)
    assert copying.to_dict() == {
        "qk_rope-optim.lr=0.0015-s200": 0.192,
        "qk_rope-optim.lr=0.006-s200": 0.227,
        "qkvo_rope-optim.lr=0.003-s200": 0.222,
    }
    told = "QK probably copies at two rates (0.0015 and 0.006) and QKVO at one (0.003)"
    assert told in README


def test_third_test_a() -> None:
    table = losses("lead_26m")
    # Each has a column for each rate.
    by_rate: Any = table["qk"] - table["qkvo"]
    lead = by_rate.mean(axis="columns")
    _, copying = copying_runs("lead_26m")
    seeds = {int(re.findall("s([0-9]+)$", where)[0]) for where in copying}
    assert len(copying) == 2
    assert seeds == {22, 23}

    count, _, interval, p = paired_t(-lead)
    assert count == 12
    assert f"{p:.3f}" == "0.011"
    assert f"-{lead.mean():.4f} ({interval}; p = {p:.3f})" in README
    _, mean, ends, _ = paired_t(lead)
    assert f"by {mean} nats ({ends}; p = {p:.3f})" in FRONT
    low, _, high = ends.partition(" to ")
    short = f"{float(mean):.3f} nats ({float(low):.3f} to {float(high):.3f})"
    assert f"a little more: {short} in the latest of three tests" in FRONT
    assert [rate for rate in by_rate if paired_t(by_rate[rate])[3] < 0.05] == [0.0015]
    _, mean, interval, _ = paired_t(lead.drop([*seeds]))
    assert f"without these seeds the lead is {mean} ({interval})" in README
    _, mean, interval, _ = paired_t(table["qk", 0.006] - table["qkvo", 0.003])
    assert f"on the twelve seeds by {mean} ({interval}; exploratory)" in README
    without = max(paired_t(lead.drop(seed))[3] for seed in lead.index)
    assert f"With any one seed left out, p is at most {without:.3f}." in README
    count, mean, _, p = paired_t(lead.loc[22:])
    assert count == 10
    assert f"Without the two seeds that ran on a CPU the lead is {mean} (p = {p:.3f})" in README


# The relations of the third test's second part: that of "≈", then two of ">".
OF_B = (("k", "vo"), ("nope", "o"), ("nope", "v"))


def losses_of_b() -> pd.DataFrame:
    """Return B's losses, by seed and variant."""
    return losses("open_26m").droplevel("optim.lr", axis="columns")


def verdicts_of_b(table: pd.DataFrame) -> tuple[list[float], list[str]]:
    """Return the adjusted p-values and the outcomes by the rule of protocol-3.md, B.

    No pair is shown to differ by less than the margin, so the rules for such pairs have no say.
    """
    leads = [table[first] - table[second] for first, second in OF_B]
    adjusted = holm(np.array([stats.ttest_1samp(lead, 0).pvalue for lead in leads]))
    for lead in leads:
        above = stats.ttest_1samp(lead, -0.01, alternative="greater").pvalue
        below = stats.ttest_1samp(lead, 0.01, alternative="less").pvalue
        assert max(above, below) > 0.05
    outcomes = ["open"] * len(leads)
    interval = stats.ttest_1samp(leads[0], 0).confidence_interval(1 - 0.05 / len(leads))
    if interval.low > 0.01 or interval.high < -0.01:
        outcomes[0] = "contradicted"
    for place in (1, 2):
        if adjusted[place] < 0.05:
            # The second variant's loss is lower, where the published relation says higher.
            outcomes[place] = "contradicted" if leads[place].mean() > 0 else "confirmed"
    return [*adjusted], outcomes


def written_p(p: float) -> str:
    """Return a p-value as the pages write it."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}"


def test_third_test_b() -> None:
    """The cells of the table in section 2, and the leads in the text."""
    table = losses_of_b()
    assert [*table.index] == [*range(20, 28)]
    assert not table.isna().any(axis=None)
    p: dict[str, str] = {}
    for (first, second), adjusted, outcome in zip(OF_B, *verdicts_of_b(table), strict=True):
        p[second] = written_p(adjusted)
        _, delta, interval, _ = paired_t(table[second] - table[first])
        left, right = (name.upper().replace("NOPE", "NoPE") for name in (first, second))
        cell = f"{outcome}: {delta} ({interval}; {p[second]})"
        row = rf"^\| {left} [≈>] {right} \| .* \| open \| {re.escape(cell)} \|$"
        assert re.search(row, README, re.MULTILINE), cell

    leads = {second: table[first] - table[second] for first, second in OF_B}
    assert all((lead > 0).all() for lead in leads.values())
    mean = {second: f"{lead.mean():.4f}" for second, lead in leads.items()}
    assert f"VO is better than K by {mean['vo']} ({p['vo']}), O better than NoPE by" in FRONT
    assert f"by {mean['o']} ({p['o']}), and V better than NoPE by {mean['v']} ({p['v']})" in FRONT
    names_of_leads = ("VO leads K", "O leads NoPE", "V leads NoPE")
    for words, lead in zip(names_of_leads, leads.values(), strict=True):
        _, known, interval, _ = paired_t(lead)
        assert f"{words} by {known} ({interval})" in DETAILS
    assert f"{p['vo']}, {p['o']} and {p['v']}. Bonferroni's" in DETAILS
    wide = stats.ttest_1samp(leads["vo"], 0).confidence_interval(1 - 0.05 / 3)
    assert f"(Bonferroni) is {wide.low:.4f} to {wide.high:.4f}." in README
    assert f"for three relations, {wide.low:.4f} to {wide.high:.4f}, lies" in DETAILS


def test_third_test_b_where_it_is_closest() -> None:
    """NoPE and O: O's lead by seed, and the pair among all ten."""
    table = losses_of_b()
    o = (table["nope"] - table["o"]).sort_values()
    large, small = (f"{part.min():.3f} to {part.max():.3f}" for part in (o.iloc[5:], o.iloc[:5]))
    told = f"O's lead varies most: it is {large} on three seeds and {small} on the other five."
    assert told in README
    assert f"O's is {large} on three of them and {small} on the other five;" in DETAILS
    wide = stats.ttest_1samp(o, 0).confidence_interval(1 - 0.05 / 3)
    assert wide.low < 0 < wide.high

    pairs = [*itertools.combinations(table.columns, 2)]
    assert len(pairs) == 10
    tests = [stats.ttest_rel(table[first], table[second]).pvalue for first, second in pairs]
    p_of_pair = holm(np.array(tests))[pairs.index(("nope", "o"))]
    for page in (README, DETAILS):
        assert f"O and NoPE stay open (p = {p_of_pair:.3f})" in page


def test_third_test_b_without_a_seed_and_by_machine() -> None:
    table = losses_of_b()
    largest = dict.fromkeys(OF_B, 0.0)
    for seed in table.index:
        adjusted, outcomes = verdicts_of_b(table.drop(seed))
        assert outcomes == ["contradicted"] * 3
        for pair, p in zip(OF_B, adjusted, strict=True):
            largest[pair] = max(largest[pair], p)
    of_vo, of_o, of_v = largest.values()
    assert f"with one seed left out, p is up to {of_o:.3f}." in FRONT
    told = f"p is then at most {of_o:.3f} for NoPE > O and {max(of_vo, of_v):.4f} for the other two"
    assert told in README

    runs = load_runs(RECORDS / "open_26m")
    on_a_gpu = runs["device"].str.startswith("NVIDIA")
    assert {*runs.loc[on_a_gpu, "seed"]} == {*range(20, 24)}
    assert {*runs.loc[~on_a_gpu, "seed"]} == {*range(24, 28)}
    halves = []
    for first, second in OF_B:
        lead = table[first] - table[second]
        halves += [f"{lead.loc[20:23].mean():.3f}", f"{lead.loc[24:27].mean():.3f}"]
    told = """VO leads K by {} on the GPU's seeds and by {} on the CPU's, O leads NoPE by {} and {},
    and V leads NoPE by {} and {}."""
    assert " ".join(told.split()).format(*halves) in README


def test_the_relations_of_b_over_all_seeds() -> None:
    """Those of the second test, of `tokens` and of B: adjusted over the eight relations."""
    table = pd.concat([losses(name) for name in ("nine_26m", "tokens", "open_26m")])
    variants = table.columns.get_level_values(0).unique()
    whole = pd.DataFrame({pe: table[pe, TUNED.get(pe, 0.0015)] for pe in variants})
    adjusted = p_of_relations(whole)
    told = {}
    for first, second in OF_B:
        lead = (whole[first] - whole[second]).dropna()
        assert len(lead) == 19
        value = adjusted[first, second]
        told[second] = f"by {lead.mean():.3f}, {written_p(value)}"
        assert value < 0.05
    interval = stats.ttest_1samp(whole["k"] - whole["vo"], 0, nan_policy="omit")
    assert interval.confidence_interval(1 - 0.05 / len(adjusted)).low > 0.01
    assert f"VO leads {told['vo']}" in README
    assert f"O leads {told['o']}" in README
    assert f"V leads {told['v']}" in README


def test_differences_from_nope_over_all_seeds() -> None:
    later = losses("open_26m").join(losses("lead_26m").loc[20:27])
    table = pd.concat([losses("nine_26m"), losses("tokens"), later])
    variants = table.columns.get_level_values(0).unique()
    columns = {pe: table[pe, TUNED.get(pe, 0.0015)] for pe in variants}
    rows = re.findall(r"^\| (\w+) \| (\S+) \((\S+) to (\S+)\) \| ([0-9]+) \|$", README, re.M)
    assert len(rows) == 8
    assert f"| NoPE | reference | {columns['nope'].count()} |\n" in README
    for name, delta, *ends, seeds in rows:
        count, mean, interval, _ = paired_t(columns[name.lower()] - columns["nope"])
        assert int(seeds) == count
        assert delta == mean
        assert interval == " to ".join(end.removeprefix("+") for end in ends)


def significant(p: Iterable[float]) -> int:
    """Return the number of p-values that Holm's rule rejects at 5 %."""
    ordered = sorted(p)
    rejected = [value < 0.05 / (len(ordered) - place) for place, value in enumerate(ordered)]
    return [*rejected, False].index(False)


def test_orders_that_the_published_relations_imply() -> None:
    """Variants of one group of `A ≈ B > C, D` have no order."""
    groups = [["qk", "qkvo"], ["k", "vo"], ["qkv"], ["nope"], ["o", "q", "v"]]
    place = {f"{pe}_rope": number for number, group in enumerate(groups) for pe in group}
    place["nope"] = place.pop("nope_rope")
    pairs = pd.read_csv(TABLE_FOLDER / "pairs.csv")
    ordered = pairs[pairs["a"].map(place) != pairs["b"].map(place)]
    better = ordered["a"].where(ordered["sign"] == ">", ordered["b"]).map(place)
    worse = ordered["b"].where(ordered["sign"] == ">", ordered["a"]).map(place)
    is_significant = ordered["sign"] != "?"
    assert (pairs["sign"] != "?").sum() == 26
    assert (len(ordered), is_significant.sum()) == (31, 25)
    assert (is_significant & (better < worse)).sum() == 22
    told = "25 of them among the 31 pairs that Su's relations put in order: 22 in Su's direction"
    assert told in README


def test_what_rotating_q_and_k_gains() -> None:
    """From the closest to the farthest of the means of the two groups of variants."""
    mean = losses("nine_26m").droplevel("optim.lr", axis="columns").mean()
    with_both = mean[["qkvo", "qk", "qkv"]]
    others = mean.drop(with_both.index)
    assert len(others) == 6
    least = others.min() - with_both.max()
    most = others.max() - with_both.min()
    assert f"a loss {least:.2f} to {most:.2f} nats below the other six" in FRONT


def test_qk_at_the_rate_of_qkvo() -> None:
    """Every difference from QK is larger by QK's gain there, on the second test's seeds."""
    gain = losses("nine_26m")["qk", 0.006] - losses("qk_rate_26m")["qk", 0.003]
    assert gain.count() == 8
    assert f"{gain.mean():.3f} is added to every Δ to QK in section 1" in README
    assert f"With QK at 0.003 too, {gain.mean():.3f} is added to every Δ" in FRONT
    _, _, ends, _ = paired_t(gain)
    low, _, high = ends.partition(" to ")
    interval = f"{float(low):.3f} to {float(high):.3f}"
    told = f"{gain.mean():.3f} lower than at its own rate of 0.006 ({interval}; eight more runs"
    assert told in FRONT


def test_rates_chosen_on_two_seeds() -> None:
    """`rates_26m` alone gives them: of the two rates on both seeds, that with less mean loss."""
    means = losses("rates_26m").dropna(axis="columns").mean()
    best = {pe: means[pe].idxmin() for pe in means.index.get_level_values(0).unique()}
    assert best == {pe.removesuffix("_rope"): 0.0015 for pe in NINE} | TUNED


def test_seed_10_averaged_over_two_machines() -> None:
    """Its second losses are those of the GPU; p is adjusted over the eight relations."""
    second = load_runs(PAPER / "replicates" / "nine_26m").set_index("pe")["val/loss"]
    second.index = second.index.str.removesuffix("_rope")
    table = losses("nine_26m").droplevel("optim.lr", axis="columns")
    first = table.loc[10].copy()
    table.loc[10] = (first + second) / 2
    p = p_of_relations(table)
    assert f"NoPE > V would be contradicted (p = {p['nope', 'v']:.3f})" in README
    assert f"QKVO would differ from QK (p = {p['qk', 'qkvo']:.3f};" in README

    table.loc[10] = second
    p = p_of_relations(table)
    v, qkvo = (f"{p[pair]:.3f}" for pair in (("nope", "v"), ("qk", "qkvo")))
    assert f"with those of the GPU alone, p is {v} and {qkvo}." in README
    told = (
        f"better than QK (p = {qkvo}; QK ≈ QKVO stays open), and NoPE > V is contradicted (p = {v})"
    )
    assert told in FRONT
    lead = table["qk"] - table["qkvo"]
    assert stats.ttest_1samp(lead, 0).confidence_interval(1 - 0.05 / 8).low < 0.01


def p_of_relations(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return the p-values of the published relations, adjusted among them, by their variants.

    A relation is tested on the seeds that both of its variants have.
    """
    relations = [(a.removesuffix("_rope"), b.removesuffix("_rope")) for a, _, b in TABLE.relations]
    first, other = (table[[*side]].to_numpy() for side in zip(*relations, strict=True))
    p = stats.ttest_rel(first, other, nan_policy="omit").pvalue
    return dict(zip(relations, holm(np.asarray(p)), strict=True))


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
COUNTED = """distance documents english heads layers lead_26m length lr nine_26m noise open_26m
rates_26m shift_26m size table table_warmup tokens warmup warmup_200"""
# The pilot's runs whose weights and order have one seed: at 0.0015, which is the setting of
# `english`, and at the preset's 0.003.
PLAIN_PILOT = r"noise/\w+-data.seed=(\d+)(-optim.lr=0.0015)?-s\1"


def counted_settings() -> list[pd.DataFrame]:
    """Return the losses of each setting by seed and variant: those with QK and one more variant.

    A setting is a `group_sha256`; tuned rates are one each, and the pilot's have another name.
    """
    runs = pd.concat([load_runs(RECORDS / x).assign(of=x) for x in COUNTED.split()])
    runs = runs[runs["pe"].isin(NINE) & runs["pe.precision"].isin([None, "float32"])]
    of_pilot = runs["of"] == "noise"
    runs = runs[~of_pilot | runs["where"].str.fullmatch(PLAIN_PILOT)]
    [of_english] = runs.loc[runs["of"] == "english", "group_sha256"].unique()
    tuned = runs["of"].isin(["nine_26m", "shift_26m"]) & (runs["steps"] == 6400)
    setting = runs["group_sha256"].mask(tuned | (runs["of"] == "noise"), runs["of"])
    setting = setting.mask((setting == "noise") & (runs["optim.lr"] == 0.0015), of_english)

    tables = []
    for _, members in runs.groupby(setting):
        table = members.pivot_table("val/loss", "seed", "pe").reindex(columns=[*NINE])
        with_qk = table[table["qk_rope"].notna()].drop(columns="qk_rope")
        if with_qk.notna().any(axis=None):
            tables.append(table)
    return tables


def test_counts_across_settings() -> None:
    tables = counted_settings()
    assert f"We counted {len(tables)} [settings]" in README
    whole = [table for table in tables if table.notna().any().all()]
    assert f"The {len(whole)} settings with all nine" in DETAILS
    qk_led = sum((table["qkv_rope"] - table["qk_rope"]).mean() > 0 for table in whole)
    assert f"over the same seeds, QK leads in {qk_led} of {len(whole)}." in DETAILS
    assert all((table["qkv_rope"] - table["qkvo_rope"]).mean() > 0 for table in whole)
    assert "QKVO's mean is lower than QKV's in each" in DETAILS
    without = sum(0 not in table.index for table in tables)
    alone = sum([*table.index] == [0] for table in tables)
    assert without == 5
    assert "all but five contain seed 0" in README
    assert f"All but five contain seed 0, and {alone} have no other" in DETAILS

    rows = re.findall(r"^\| (\w+) before (\w+) \| .* \| (.*) \| (.*) \|$", README, re.M)
    assert len(rows) == 9
    for *pair, in_settings, in_runs in rows:
        first, second = ("nope" if name == "NoPE" else f"{name.lower()}_rope" for name in pair)
        leads = pd.DataFrame([table[second] - table[first] for table in tables])
        means, every = leads.mean(axis="columns").dropna(), leads.stack().dropna()
        assert in_settings == f"{(means > 0).sum()} of {len(means)}"
        assert in_runs == f"{(every > 0).sum()} of {len(every)}"
        assert f"| {in_settings} | {in_runs} |" in DETAILS


def test_settings_that_are_exceptions() -> None:
    """The pages say where VO leads QK, on how many seeds, and where QK leads QKVO."""
    told = []
    for first, second in (("qk_rope", "vo_rope"), ("qkvo_rope", "qk_rope")):
        for table in counted_settings():
            lead = (table[first] - table[second]).dropna()
            if lead.mean() > 0:
                told.append((first, f"{lead.mean():.3f}", (lead > 0).sum(), len(lead)))
    assert sorted(told) == [
        ("qk_rope", "0.032", 1, 2),
        ("qk_rope", "0.039", 1, 5),
        ("qkvo_rope", "0.001", 1, 3),
    ]
    for page in (README, DETAILS):
        assert "by 0.039, though VO is better on only one of five seeds" in page
        assert "by 0.032, where VO is better on one of two" in page
        assert "lower than QKVO's by 0.001, with QK better on one of three seeds" in page


def test_power_of_the_second_test() -> None:
    """Fewer draws than those of the pages give their shares within four standard errors."""
    number = r"([0-9]+)"
    correlated = rf"0\.04 nats between K and VO in {number} %, (?:one )?of 0\.02 in {number} %"
    independent = rf"without correlations, in {number} (?:% )?and {number} %"
    for page in (README, DETAILS):
        for noise, pattern in (("correlated", correlated), ("independent", independent)):
            [shares] = re.findall(pattern, page)
            covariance_VV = power.covariances()[noise]
            for difference, share in zip(power.DIFFERENCES, shares, strict=True):
                drawn = power.found(covariance_VV, difference, num_draws=1000)
                assert drawn == pytest.approx(int(share) / 100, abs=0.06)


def test_a_noise_without_the_means_of_seeds_is_too_small() -> None:
    """K and VO as they were simulated first, and as if independent but for the seed's effect."""
    own_V = power.covariances()["independent"].diagonal()
    own = sum(own_V[place] for place in power.K_AND_VO) ** 0.5
    assert f"{1 - (0.0196**2 + 0.0137**2) ** 0.5 / own:.0%}" == "5%"
    assert "its noise was 5 % too small" in README
    assert "the SD of the difference between K and VO was 5 % too small" in DETAILS


def test_the_runs_after_the_page_on_cost() -> None:
    """cost.md is frozen; its head and the pages that name it count the runs since then."""
    page = (PAPER / "results" / "cost.md").read_text(encoding="utf-8")
    [then] = re.findall(r"^\| `lead_26m` \| ([0-9]+) \| [^|]+ \| ([0-9.]+) \|", page, re.MULTILINE)
    lead = load_runs(RECORDS / "lead_26m")
    other = load_runs(RECORDS / "open_26m")
    hours = (lead["wall_s"].sum() + other["wall_s"].sum()) / 3600 - float(then[1])
    later = len(lead) - int(then[0])
    on_a_gpu = lead["device"].str.startswith("NVIDIA").sum()
    others_on_a_gpu = other["device"].str.startswith("NVIDIA").sum()
    told = f"""before the last {later + len(other)} of the 1,274 runs:** {later} of `lead_26m`
    ({on_a_gpu} of them on a GPU) and {len(other)} of `open_26m` ({others_on_a_gpu} of them on a
    GPU), {hours:.1f} hours."""
    assert " ".join(told.split()) in page
    for text in (README, DETAILS):
        assert f"before the last {later + len(other)} of the 1,274 runs" in text


def test_a_p_beside_a_verdict_of_another_family() -> None:
    """paper/README.md names every setting whose p does not fit its verdict."""
    settings = pd.read_csv(PAPER / "results" / "settings" / "settings.csv")
    settings = settings[settings["num_seeds"] > 1].dropna(subset="p_holm")
    differs = ~settings["verdict"].isin(["open", "equivalent"])
    odd = settings[differs != (settings["p_holm"] < 0.05)].set_index("setting")
    assert odd["pe"].eq("qkvo_rope").all()
    assert odd["verdict"].to_dict() == {
        "nine_26m": "open",
        "layers": "better",
        "precision": "better",
    }
    page = (PAPER / "README.md").read_text(encoding="utf-8")
    for setting, p in odd["p_holm"].items():
        assert f"`{setting}` ({p:.3f})" in page

    table = (PAPER / "results" / "nine_26m" / "table.md").read_text(encoding="utf-8")
    [published] = re.findall(r"^\| QK-RoPE ≈ QKVO-RoPE \|.* \| (0\.[0-9]+) \| 8 \|", table, re.M)
    assert f"adjusted among the published relations ({float(published):.3f} in `nine_26m`)" in page


def test_the_memory_of_the_sequel() -> None:
    """scale.md prints what `rope-exp plan` estimates."""
    words = ["+experiment=nine", "seed=0,1,2,3,4", "model=sequel", "data=c4"]
    configs = compose_runs(words, multirun=True).configs
    lines = cost_lines(finalise(configs[0], for_plan=True))
    [memory] = [line for line in lines if line.startswith("memory")]
    [gib] = re.findall("[0-9.]+ GiB", memory)
    page = (PAPER / "scale.md").read_text(encoding="utf-8")
    assert f"| memory on a GPU, estimated | {gib} | |" in page
