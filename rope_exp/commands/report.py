"""`rope-exp report`: the table of the runs that are done."""

from pathlib import Path

from rope_exp.commands._parser import DEFAULT_RECORDS, Parser
from rope_exp.config import DEFAULT_OUTPUT
from rope_exp.errors import ConfigError


def main(words: list[str]) -> int:
    """Compile run folders into the table and its figures, if all runs may share one table."""
    from rope_exp.comparable import REFERENCE

    parser = Parser("report", "Compile run folders into the table and its figures.")
    parser.add_argument("--runs", type=Path, help=f"where groups of runs lie ({DEFAULT_OUTPUT})")
    parser.add_argument("--group", help="which of them; may be left out where there is one")
    parser.add_argument("--out", type=Path, help=f"where to write ({DEFAULT_OUTPUT.parent})")
    parser.add_argument("--reference", help=f"the row that differences are against ({REFERENCE})")
    rows = "what tells rows apart: pe (the default), optim.lr, model, ...; --group may hold *"
    parser.add_argument("--factors", nargs="+", metavar="KEY", help=rows)
    parser.add_argument("--campaign", metavar="NAME", help="records of one campaign, or of `all`")
    parser.add_argument("--records", type=Path, default=DEFAULT_RECORDS, help="(%(default)s)")
    asked = parser.parse_args(words)
    out = asked.out or DEFAULT_OUTPUT.parent
    if any(place.is_file() for place in (out, *out.parents)):
        raise ConfigError("--out", str(out), "must be a folder, not a file or below one")
    if asked.campaign is not None:
        for flag in ("runs", "group", "reference", "factors"):
            if getattr(asked, flag) is not None:
                reason = "is for the tables of runs, and --campaign takes records; leave one out"
                raise ConfigError(f"--{flag}", ..., reason)

        # Imported late, because figures take a second to import.
        from rope_exp.campaign.tables import write_campaigns

        name = None if asked.campaign == "all" else asked.campaign
        lines = write_campaigns(asked.records, name, out)
    else:
        from rope_exp.report import write

        factors = tuple(asked.factors or ["pe"])
        runs = asked.runs or DEFAULT_OUTPUT
        lines = write(runs, asked.group, out, asked.reference, factors)
    print("\n".join(lines))
    return 0
