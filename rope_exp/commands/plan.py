"""`rope-exp plan`: what a config costs before it runs."""

import statistics

from rope_exp.commands._parser import Parser, parse_jobs
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.folder import read_result


def main(words: list[str]) -> int:
    """Print the cost of a config, or a sweep of them, before it runs."""
    parser = Parser("plan", "Print what a config, or a sweep of them, costs before it runs.")
    _, jobs = parse_jobs(parser, words)

    # Imported late: a mistake is told before torch is imported.
    from rope_exp.origin import with_origin
    from rope_exp.plan.tables import cost_lines, sweep_lines
    from rope_exp.settle import resolve

    configs = [resolve(with_origin(config)) for config in jobs.configs]
    folders = (DEFAULT_OUTPUT / configs[0].group).glob("*/seed*")
    speeds = [result["tokens_per_s"] for result in map(read_result, folders) if result]
    measured = statistics.median(filter(None, speeds)) if any(speeds) else None
    print("\n".join(cost_lines(configs[0], measured)))
    if len(configs) > 1:
        alike = len({config.group for config in configs}) == 1
        print("\n".join(sweep_lines(configs, measured if alike else None)))
    return 0
