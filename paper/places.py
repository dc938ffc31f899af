"""Where the paper's files are."""

from pathlib import Path

PAPER = Path(__file__).parent
RECORDS = PAPER / "records"
# The campaigns of protocols 2 and 3, whose tests pair; README.md shows the first one.
TESTED = ("nine_26m", "lead_26m", "open_26m", "qk_rate_26m", "rates_26m", "shift_26m")


def folder_of(campaign: str) -> Path:
    """Return the folder of a campaign's tables."""
    return PAPER / "results" / campaign
