"""pypjrt.conform (PyPI: pypjrt), a conformance suite of another author, run in a process of its own."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from registry import FAIL, OUTCOMES, PASS, UNSUPPORTED

# Its "skip" means that the plugin does not advertise what the check is about.
_OUTCOMES = {"pass": PASS, "fail": FAIL, "unsupported": UNSUPPORTED, "skip": UNSUPPORTED}


def run(library: str, limit: float) -> dict[str, Any]:
    """Its report, in the form of ours."""
    if importlib.util.find_spec("pypjrt") is None:
        raise SystemExit("--pypjrt needs the package pypjrt: pip install pypjrt")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pypjrt.conform", library, "--json", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10 * limit, check=False)
            ended = f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"not finished after {10 * limit:g} s"
        if path.exists():
            report = json.loads(path.read_text())
            checks = [
                {
                    "id": c["id"],
                    "group": c["category"],
                    "outcome": _OUTCOMES[c["result"]],
                    "detail": c["detail"],
                }
                for c in report["checks"]
            ]
        else:
            checks = [{"id": "process", "group": "process", "outcome": FAIL, "detail": ended}]
    return {
        "version": importlib.metadata.version("pypjrt"),
        "counts": {outcome: sum(c["outcome"] == outcome for c in checks) for outcome in OUTCOMES},
        "checks": checks,
    }
