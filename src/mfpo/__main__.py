"""`python -m mfpo` is `mfpo`."""

import sys

from mfpo.cli import main

if __name__ == "__main__":
    sys.exit(main())
