"""`python -m bitwright`: the same as the `bitwright` command."""

from __future__ import annotations

import sys

from bitwright.cli import main

if __name__ == "__main__":
    sys.exit(main())
