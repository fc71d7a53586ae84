"""Entry point of ``python -m regard``."""

import sys

from regard._cli import main

if __name__ == "__main__":
    sys.exit(main())
