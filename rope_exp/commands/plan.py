"""`rope-exp plan`: what a config costs before it runs."""

import statistics

from rope_exp.commands._parser import Parser, configs_of
from rope_exp.config import DEFAULT_OUTPUT


def main(words: list[str]) -> int:
    """Print the cost of a config, or a sweep of them, before it runs."""
    from rope_exp.folder import read_result
    from rope_exp.origin import with_origin
    from rope_exp.plan.tables import cost_lines, sweep_lines
    from rope_exp.settle import resolve

    parser = Parser("plan", "Print what a config, or a sweep of them, costs before it runs.")
    configs = [resolve(with_origin(config)) for config in configs_of(parser, words, sweeps=True)]
    config = configs[0]
    folders = (DEFAULT_OUTPUT / config.group).glob("*/seed*")
    rates = [result["tokens_per_s"] for result in map(read_result, folders) if result]
    measured = statistics.median(filter(None, rates)) if any(rates) else None
    print("\n".join(cost_lines(config, measured)))
    if len(configs) > 1:
        alike = len({each.group for each in configs}) == 1
        print("\n".join(sweep_lines(configs, measured if alike else None)))
    return 0
