"""How often the second test finds a true difference between K and VO: `python paper/power.py`.

The noise is that of `nine_26m`, taken in two ways: with all covariances of the nine variants, and
as if variants were independent apart from an effect of the seed that they share. results/README.md
and results.md print the shares. It takes less than a minute.

Shapes: D drawn experiments, S seeds, V variants, P published relations.
"""

import numpy as np
from scipy import stats
from tables import RECORDS

import rope_exp
from rope_exp.published import TABLE
from rope_exp.stats import ALPHA, Array, holm

DRAWS = 20_000
DIFFERENCES = (0.04, 0.02)
VARIANTS = sorted(TABLE.losses)
RELATIONS = [(VARIANTS.index(a), VARIANTS.index(b)) for a, _, b in TABLE.relations]
K_AND_VO = (VARIANTS.index("k_rope"), VARIANTS.index("vo_rope"))


def losses() -> Array:
    """Return the losses of `nine_26m`, [S, V]."""
    runs = rope_exp.load_runs(RECORDS / "nine_26m")
    return runs.pivot(index="seed", columns="pe", values="val/loss")[VARIANTS].to_numpy()


def covariances() -> dict[str, Array]:
    """Return the covariance of the nine losses over seeds, taken in two ways."""
    loss_SV = losses()
    num_variants = len(VARIANTS)

    # Subtracting a seed's mean removes what the variants share, and a part of their own variance:
    # the variance left is own * (1 - 2 / V) + sum(own) / V^2.
    centred_SV = loss_SV - loss_SV.mean(axis=1, keepdims=True)
    left_V = centred_SV.var(axis=0, ddof=1)
    share_VV = np.eye(num_variants) * (1 - 2 / num_variants) + 1 / num_variants**2
    own_V = np.linalg.solve(share_VV, left_V)
    return {"correlated": np.cov(loss_SV.T), "independent": np.diag(own_V)}


def found(covariance_VV: Array, difference: float, num_draws: int = DRAWS) -> float:
    """Return the share of experiments in which K and VO are shown to differ.

    Args:
        covariance_VV: of the losses of one seed.
        difference: VO's true loss minus K's, in nats; all other variants have K's.
        num_draws: the number of experiments.
    Returns:
        A share between 0 and 1.
    """
    random = np.random.default_rng(0)
    num_seeds = len(losses())
    mean_V = np.zeros(len(VARIANTS))
    mean_V[K_AND_VO[1]] = difference
    loss_DSV = random.multivariate_normal(mean_V, covariance_VV, (num_draws, num_seeds))

    a_P, b_P = np.array(RELATIONS).T
    delta_DSP = loss_DSV[:, :, b_P] - loss_DSV[:, :, a_P]
    p_DP = np.asarray(stats.ttest_1samp(delta_DSP, 0, axis=1).pvalue)
    place = RELATIONS.index(K_AND_VO)
    is_found_D = [holm(p_P)[place] < ALPHA for p_P in p_DP]
    return float(np.mean(is_found_D))


def main() -> None:
    """Print the shares, with a line for each kind of noise."""
    for noise, covariance_VV in covariances().items():
        shares = [f"{100 * found(covariance_VV, difference):.0f} %" for difference in DIFFERENCES]
        print(f"{noise}: {' and '.join(shares)} (a difference of 0.04 and of 0.02 nats)")


if __name__ == "__main__":
    main()
