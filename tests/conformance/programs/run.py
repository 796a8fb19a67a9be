"""Runs random programs against a PJRT library and judges them.

python tests/conformance/programs/run.py --count 10000 --seed 0 [--library …] [--jobs 2] [--resume results.jsonl]
python tests/conformance/programs/run.py --file found.mlir          one saved program
python tests/conformance/programs/run.py --seed 77 --count 1 --shrink   a small form of a failing one
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("FERRULE_FLUSH_DENORMALS", "0")  # as the reference interpreter, which is the truth
sys.path.insert(0, str(Path(__file__).parent))

from campaign import main

if __name__ == "__main__":
    sys.exit(main(description=__doc__))
