"""Mirror runs to wandb again from their files: `python scripts/mirror.py RUN_FOLDER ...`.

Each becomes a new, whole run at wandb, where and as its config says (tracker.project, entity, mode); the run itself
goes on with that one if it is started again. Exit codes: 0 done, 1 wandb or the disk failed, 2 a folder that is no run
or is being run.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rope_exp.run.folder import LOCK, read_config
from rope_exp.run.mirror import rebuild
from rope_exp.system.errors import ConfigError, RecordError
from rope_exp.system.files import try_lock


def main() -> int:
    """Parse, and mirror one after the other."""
    parser = argparse.ArgumentParser(description="Mirror runs to wandb again from their files.")
    parser.add_argument("folders", metavar="RUN_FOLDER", type=Path, nargs="+")
    for folder in parser.parse_args().folders:
        try:
            read_config(folder)  # before the lock, which makes a file
            lock = try_lock(folder / LOCK)
            if lock is None:
                raise ConfigError(
                    "RUN_FOLDER", str(folder), "is being run, and mirrored; wait for its end"
                )
            print(f"{folder}: mirrored as {rebuild(folder)}")
            os.close(lock)
        except (ConfigError, RecordError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Exception as error:
            print(f"error: {folder}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
