"""Write a screenshot of a page: `python tests/report/screenshot.py PAGE OUT.png`.

The page is results/report.html, which `make report` writes. Chromium must be installed.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.browser import Browser, find_chromium


def main() -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(description="Write a screenshot of the page.")
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path, help=".png, or .pdf for what a printer gets")
    parser.add_argument("--width", type=int, default=1360, help="of the window (%(default)s px)")
    parser.add_argument("--height", type=int, help="of the picture; all of the page")
    parser.add_argument("--address", default="", help="the setting to show: #english")
    asked = parser.parse_args()

    command = find_chromium()
    if command is None:
        print("error: there is no chromium here", file=sys.stderr)
        return 1

    with TemporaryDirectory() as profile, Browser(command, Path(profile)) as browser:
        browser.look(asked.width)
        browser.open(asked.page.resolve(), asked.address)
        if asked.out.suffix == ".pdf":
            browser.pdf(asked.out)
        else:
            browser.screenshot(asked.out, height=asked.height)
        print("\n".join(browser.complaints), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
