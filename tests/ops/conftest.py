"""Makes the modules of this folder importable by name, and has every stage of every compile verified."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("FERRULE_VERIFY", "1")
