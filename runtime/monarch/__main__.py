"""The command line: `python -m monarch`, or `monarch`. See `monarch -h`."""

from __future__ import annotations

import sys

from monarch._src.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
