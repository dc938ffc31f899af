"""Reading metrics.jsonl while it grows."""

from pathlib import Path
from typing import Any

from rope_exp.run.folder import parse_row
from rope_exp.system.files import open_regular


class MetricsTail:
    """The rows of a metrics.jsonl as they come; each byte is read once.

    Attributes:
        restarted: turns true when the file was cut back, and is read from its beginning again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarted = False
        self._position = 0

    def poll(self) -> list[dict[str, Any]]:
        """Return the whole new rows since the last call.

        Raises:
            RecordError: a line is no row.
        """
        if not self.path.exists():
            return []
        with open_regular(self.path) as file:
            if file.seek(0, 2) < self._position:
                self._position = 0
                self.restarted = True
            file.seek(self._position)
            whole = file.read().rpartition(b"\n")
        self._position += len(whole[0]) + len(whole[1])
        return [parse_row(line, str(self.path)) for line in whole[0].splitlines()]
