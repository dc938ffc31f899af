"""`rope-exp sweep`: submit the runs of a sweep to a cluster."""

from rope_exp.commands._parser import Parser, parse_runs


def main(argv: list[str]) -> int:
    """Submit the runs of a sweep to a cluster that have no result, and do not wait for them."""
    from rope_exp.slurm import list_sweep, submit_sweep

    parser = Parser("sweep", "Submit the runs of a sweep to a cluster, and do not wait for them.")
    parser.add_argument("--list", action="store_true", help="print its runs, and submit none")
    args, composed = parse_runs(parser, argv, multirun=True)
    print(list_sweep(composed) if args.list else submit_sweep(composed))
    return 0
