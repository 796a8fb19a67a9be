"""Where JAX's own tests come from: a path that the caller names, a cache outside the repository, or JAX's repository.

The tests are not in JAX's wheel or sdist, and they fit one release only: the tag is that of the installed jax.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

REPOSITORY = "https://github.com/jax-ml/jax"


class NoTests(Exception):
    """JAX's tests are neither on this machine nor to be had; the message says what to do."""


def tag() -> str:
    """The tag of the installed jax, as JAX's repository names it."""
    import importlib.metadata

    return f"jax-v{importlib.metadata.version('jax')}"


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ferrule" / "jax-tests"


def find(path: str | None = None, fetch: bool = True) -> Path:
    """The folder that holds lax_test.py and its siblings.

    Looks at `path`, then at FERRULE_JAX_TESTS, then in the cache, then (with `fetch`) asks JAX's repository.
    Raises NoTests.
    """
    named = path or os.environ.get("FERRULE_JAX_TESTS")
    if named:
        folder = Path(named)
        for candidate in (folder, folder / "tests"):
            if (candidate / "lax_test.py").exists():
                return candidate.resolve()
        raise NoTests(f"{folder} holds no lax_test.py: name the folder `tests` of a checkout of JAX at {tag()}")
    cached = cache_folder() / tag() / "tests"
    if (cached / "lax_test.py").exists():
        return cached
    if not fetch:
        raise NoTests(
            f"JAX's tests at {tag()} are not in {cache_folder()}; "
            "`python tests/conformance/run.py fetch` gets them, FERRULE_JAX_TESTS names a copy"
        )
    return _fetch(cached)


def _fetch(folder: Path) -> Path:
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent.parent))
    checkout = scratch / "jax"
    quiet = dict(check=True, capture_output=True, text=True, timeout=600)
    try:
        subprocess.run(
            ["git", "clone", "--quiet", "--depth=1", "--filter=blob:none", "--sparse", f"--branch={tag()}"]
            + [REPOSITORY, str(checkout)],
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0"},
            **quiet,
        )
        subprocess.run(["git", "-C", str(checkout), "sparse-checkout", "set", "tests"], **quiet)
        # Renamed into place, so that a fetch which was cut off leaves no half of a suite behind.
        folder.parent.mkdir(exist_ok=True)
        (checkout / "tests").rename(folder)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise NoTests(
            f"could not fetch JAX's tests at {tag()} from {REPOSITORY} ({said[-1] if said else error}); "
            "on a machine that reaches it run `python tests/conformance/run.py fetch`, or set FERRULE_JAX_TESTS"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder
