"""`rope-exp check-records`: whether somebody's records are whole and comparable."""

from pathlib import Path

from rope_exp.commands._parser import Parser
from rope_exp.errors import EXIT_DONE, EXIT_FAILED, ConfigError, RecordError


def main(words: list[str]) -> int:
    """Check records, such as somebody else's: one sentence for each campaign and each fault."""
    from rope_exp.campaign.tables import tables_of
    from rope_exp.records import read_record, recorded_campaigns, stored_records

    parser = Parser("check-records", "Check records, such as somebody else's.")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="of campaigns' records")
    folder = parser.parse_args(words).folder
    names = recorded_campaigns(folder)
    if not names:
        raise ConfigError(
            "FOLDER", str(folder), "holds no CAMPAIGN/CELL.json and no CAMPAIGN.jsonl.gz"
        )

    code = EXIT_DONE
    for name in names:
        runs = []
        faults = []
        stored = {}
        try:
            stored = stored_records(folder, name)
        except RecordError as error:
            faults.append(error)
        for path, content in stored.items():
            try:
                runs.append(read_record(path, content))
            except RecordError as error:
                faults.append(error)

        verdict = ""
        if runs:
            verdict = ", and may be compared"
            try:
                tables_of(runs)
            except RecordError as error:
                verdict = f", and may not be compared: {error}"
                code = EXIT_FAILED
        print(f"{name}: {len(runs)} of {len(stored)} records are whole{verdict}")
        for fault in faults:
            print(f"  {fault}")
            code = EXIT_FAILED
    return code
