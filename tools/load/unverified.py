"""The server without verifying what it reads: only to measure what that costs.

``python -m tools.load.unverified ARGUMENT...`` takes what ``durastreamd`` does.
"""

import sys

from durastreamd.cli import main
from durastreamd.storage.proofs import Proofs

if __name__ == "__main__":
    Proofs.checking = False
    sys.exit(main(sys.argv[1:]))
