"""``python -m trueloop`` is ``trueloop``."""

import sys

from trueloop.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
