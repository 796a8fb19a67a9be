"""Where libferrule.so is, and its plain C functions (native/c_interface.cc) for Python."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ferrule.errors import FailedPrecondition, NotFound

NAME = "libferrule.so"


def library_path() -> str:
    """The path of libferrule.so: $FERRULE_LIBRARY, else the one that was installed with this package."""
    chosen = os.environ.get("FERRULE_LIBRARY")
    if chosen:
        if Path(chosen).is_file():
            return os.path.realpath(chosen)
        raise NotFound(f"there is no file {chosen}", why="FERRULE_LIBRARY names it", fix="unset FERRULE_LIBRARY")
    places = [Path(__file__).parent / NAME]
    try:
        # An editable install keeps Python files in the checkout and the library among the installed files.
        places.append(Path(str(distribution("ferrule").locate_file(f"ferrule/{NAME}"))))
    except PackageNotFoundError:
        pass
    for place in places:
        if place.is_file():
            return os.path.realpath(place)
    raise NotFound(
        f"{NAME} was not found",
        why="looked at " + " and ".join(map(str, places)),
        fix="install the package (pip install .), or set FERRULE_LIBRARY to the library's path",
    )


@cache
def library() -> ctypes.CDLL:
    """libferrule.so, opened."""
    path = library_path()
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise FailedPrecondition(
            f"{path} cannot be opened", why=str(error), fix="install the package again for this machine (pip install .)"
        ) from error
