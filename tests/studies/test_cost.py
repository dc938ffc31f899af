"""Test of the table of campaigns' costs."""

from support.pages import make_runs

from rope_exp.studies import cost


def test_the_costs_are_sums_over_runs() -> None:
    """Tokens and hours are summed on a line for each campaign, and on one for all."""
    campaigns = {"mini": make_runs("mini", ["qk_rope", "nope"], [0, 1])}
    campaigns["large"] = make_runs("large", ["nope"], [0])
    for number, run in enumerate(run for runs in campaigns.values() for run in runs):
        run.result.update(tokens=1_000_000 * (number + 1), wall_s=3600.0 * (number + 1))

    text = cost.files(campaigns, campaigns, {})["cost.md"].decode()
    lines = [line.split(" | ") for line in text.splitlines()[4:]]
    assert [line[:4] for line in lines] == [
        ["| `large`", "1", "5.0", "5.0"],
        ["| `mini`", "4", "10.0", "10.0"],
        ["| all", "5", "15.0", "15.0"],
    ]
