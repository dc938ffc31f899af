"""`rope-exp plan`: what a config costs before it runs."""

from rope_exp.commands._parser import Parser, parse_runs


def main(argv: list[str]) -> int:
    """Print the cost of a config, or a sweep of them, before it runs."""
    parser = Parser("plan", "Print what a config, or a sweep of them, costs before it runs.")
    _, composed = parse_runs(parser, argv)

    # Imported late: a mistake is told before torch is imported.
    from rope_exp.compose import finalise
    from rope_exp.costs import cost_lines, sweep_lines
    from rope_exp.sweep import check_distinct_folders

    configs = [finalise(config, for_plan=True) for config in composed.configs]
    check_distinct_folders(configs)
    print("\n".join(cost_lines(configs[0])))
    if len(configs) > 1:
        print("\n".join(sweep_lines(configs)))
    return 0
