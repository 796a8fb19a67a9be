"""The harness of `benchmarks/run.py`: engines in processes of their own, turns, limits, the report.

`torch` is the module in the workers of PyTorch and None elsewhere: two OpenMP runtimes in one process would disturb
each other, and cases want to name their PyTorch counterparts without importing it in every worker.
"""

from __future__ import annotations

import importlib
import os

torch = importlib.import_module("torch") if os.environ.get("FERRULE_BENCHMARK_ENGINE", "").startswith("torch") else None
