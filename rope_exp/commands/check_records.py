"""`rope-exp check-records`: whether somebody's records are whole and comparable."""

from pathlib import Path

from rope_exp.commands._parser import Parser
from rope_exp.errors import EXIT_DONE, EXIT_FAILED, ConfigError, RunFolderError


def main(argv: list[str]) -> int:
    """Check records, such as somebody else's: one sentence for each campaign."""
    from rope_exp.campaign.records import read_records, recorded_campaigns
    from rope_exp.campaign.tables import tables_of

    parser = Parser("check-records", "Check records, such as somebody else's.")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="of campaigns' records")
    folder = parser.parse_args(argv).folder
    names = recorded_campaigns(folder)
    if not names:
        reason = "holds no CAMPAIGN/CELL.json and no CAMPAIGN.jsonl.gz"
        raise ConfigError("FOLDER", str(folder), reason)

    code = EXIT_DONE
    for name in names:
        try:
            runs = read_records(folder, name)
            # A campaign that varies the order of tokens in every cell has no table.
            may = "and may be compared" if tables_of(runs) else "and make no table"
            print(f"{name}: {len(runs)} records are whole, {may}")
        except RunFolderError as error:
            print(f"{name}: {error}")
            code = EXIT_FAILED
    return code
