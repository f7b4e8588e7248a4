"""``python -m durastreamd``."""

import sys

from durastreamd.cli import main

sys.exit(main())
