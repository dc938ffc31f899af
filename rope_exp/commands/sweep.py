"""`rope-exp sweep`: submit the runs of a sweep to a cluster."""

from rope_exp.commands._parser import CONFIG_DIR, Parser


def main(words: list[str]) -> int:
    """Submit the runs of a sweep to a cluster that have no result, and do not wait for them."""
    from rope_exp.compose import compose_jobs
    from rope_exp.slurm.cluster import list_sweep, submit_sweep

    parser = Parser("sweep", "Submit the runs of a sweep to a cluster, and do not wait for them.")
    parser.add_argument(
        "overrides", nargs="+", metavar="key=value", help="as `rope-exp train -m` takes them"
    )
    parser.add_argument("--list", action="store_true", help="print its runs, and submit none")
    parser.add_argument("--config-dir", **CONFIG_DIR)
    asked = parser.parse_intermixed_args(words)
    jobs = compose_jobs(asked.overrides, asked.config_dir, multirun=True)
    print(list_sweep(jobs) if asked.list else submit_sweep(jobs, asked.overrides))
    return 0
