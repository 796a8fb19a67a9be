"""Values of FERRULE_ISA under which the native loops differ on this machine (`ChosenIsa` in native/cpu_features.cc)."""

from __future__ import annotations

from ferrule.targets.cpu import host

_WIDE = {f"+avx512{part}" for part in ("f", "bw", "dq", "vl")} <= set(host().features.split(","))
# Without AVX-512 the default's loops are those of AVX2, unless the machine has none of the two.
LESSER_SETS = ["avx2", "baseline"] if _WIDE else ["baseline"]
ALL_SETS = ["", *LESSER_SETS]  # the default, too
