"""The checks, one file per kind of PJRT object; importing the package registers all of them."""

import sys
from pathlib import Path

# A checkout that is not installed works, too.
sys.path.append(str(Path(__file__).parents[4] / "src"))

__all__ = sorted(p.stem for p in Path(__file__).parent.glob("[!_]*.py"))

for _name in __all__:
    __import__(f"{__name__}.{_name}")
