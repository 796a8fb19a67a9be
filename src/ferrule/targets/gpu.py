"""GPUs, and devices that are programmed like one: what the compiler knows of each.

A device that is there describes itself (`described`: the facts of the driver's FerruleDeviceInfo); one that is not is
looked up by name (`NAMED`), so that programs can be compiled for it on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferrule.errors import InvalidArgument
from ferrule.targets.machine import Machine


@dataclass(frozen=True)
class Gpu(Machine):
    """A device that runs kernels as groups of work-items.

    `arch`: the vendor's name of the architecture. `kind`: "cpu" for a CPU that stands in for a GPU. `compute_units`:
    parts that each run groups by themselves. `group_size`: the most work-items per group; `sub_groups`: the numbers of
    work-items that run in lockstep; `local_bytes`: memory that the items of a group share. `f16`, `f64`, `atomic64`:
    what the device computes with. `group_items`: work-items per group where each works alone; `team_items`: the most
    that do one reduction together (the width of a vector, where the device's compiler makes vectors of work-items).
    `bandwidth` (bytes/s) and `peak` (f32 operations/s) are estimates; `host_access`: the host reads and writes device
    memory by its address. `libraries`: prefixes of the library calls that the driver offers.
    """

    arch: str = ""
    kind: str = "gpu"
    compute_units: int = 1
    group_size: int = 256
    sub_groups: tuple[int, ...] = (16, 32)
    local_bytes: int = 65536
    f16: bool = True
    f64: bool = True
    atomic64: bool = True
    group_items: int = 256
    team_items: int = 256
    bandwidth: float = 5e11
    peak: float = 1e13
    memory_bytes: int = 0
    host_access: bool = False
    libraries: tuple[str, ...] = ()

    @property
    def grouped(self) -> bool:
        return True

    @property
    def converts_f16(self) -> bool:
        return self.f16

    @property
    def has_f64(self) -> bool:
        return self.f64

    def has_library(self, name: str) -> bool:
        return name in self.libraries


def _intel(arch: str, units: int, **more: object) -> Gpu:
    base = Gpu("xpu", "spirv64-unknown-unknown", "", "", 4, units, arch=arch, compute_units=units, group_size=1024)
    return replace(base, **more)  # type: ignore[arg-type]


# Public figures of Intel's GPUs (Xe cores; memory bandwidth; f32 rate of the largest member). One with f64 missing
# emulates nothing here: a program that needs it does not compile.
NAMED: dict[str, Gpu] = {
    # Data Center GPU Max 1550, one of its two tiles: 64 Xe cores of 8 vector engines, 64 GB at half of 3.3 TB/s
    "pvc": replace(
        _intel("pvc", 64, bandwidth=1.6e12, peak=2.6e13, memory_bytes=64 << 30),
        local_bytes=128 << 10,
    ),
    # Arc A770: 32 Xe cores, 16 GB at 560 GB/s, 17 TFLOP/s (Alchemist has sub-groups of 8)
    "dg2": replace(
        _intel("dg2", 32, f64=False, bandwidth=5.6e11, peak=1.7e13, memory_bytes=16 << 30), sub_groups=(8, 16, 32)
    ),
    # Arc B580: 20 Xe2 cores, 12 GB at 456 GB/s, 13.7 TFLOP/s
    "bmg": _intel("bmg", 20, bandwidth=4.56e11, peak=1.37e13, memory_bytes=12 << 30),
    # Core Ultra 200V: 8 Xe2 cores, LPDDR5X at 136 GB/s shared with the processor
    "lnl": _intel("lnl", 8, bandwidth=1.36e11, peak=4e12),
    # Core Ultra 100 (8 Xe-LPG cores) and 200H (8 with matrix engines)
    "mtl": replace(_intel("mtl", 8, bandwidth=1.2e11, peak=4.6e12), sub_groups=(8, 16, 32)),
    "arl": replace(_intel("arl", 8, bandwidth=1.35e11, peak=4.6e12), sub_groups=(8, 16, 32)),
    # Xe-LP: 96 vector engines in 6 dual sub-slices
    "tgl": replace(_intel("tgl", 6, f64=False, bandwidth=6.8e10, peak=2e12), sub_groups=(8, 16, 32)),
}

_FACTS = frozenset(
    "arch kind units group local sub_groups f16 f64 atomic64 host memory clock dnnl mkl name backend tile".split()
)


def find(target: str) -> Gpu:
    """The machine of a target text: "xpu:" and a name, or facts "key=value" with commas; what is left out is unknown
    and taken as common to all."""
    _, _, text = target.partition(":")
    facts: dict[str, str] = {}
    named = ""
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            named = key
        elif key not in _FACTS:
            raise InvalidArgument(f"the target {target!r} states {key!r}, which is no fact about a device")
        else:
            facts[key] = value
    if named and named not in NAMED:
        raise InvalidArgument(
            f"there is no device {named!r} to compile for",
            why=f"Ferrule knows {', '.join(sorted(NAMED))} by name",
            fix="name one of them, or state facts: xpu:group=256,local=65536,sub_groups=16/32,f16=1,f64=0",
        )
    return described(facts, NAMED.get(named) or NAMED.get(facts.get("arch", "")) or _intel("", 16), target)


def described(facts: dict[str, str], base: Gpu, target: str) -> Gpu:
    """`base` with what a device says of itself."""

    def number(key: str, old: int) -> int:
        text = facts.get(key, "")
        try:
            return max(0, int(text)) if text else old
        except ValueError:
            raise InvalidArgument(f"the target {target!r} states {key}={text!r}, which is no number") from None

    changed: dict[str, object] = {
        "arch": facts.get("arch", base.arch),
        "compute_units": max(1, number("units", base.compute_units)),
        "group_size": max(1, number("group", base.group_size)),
        "local_bytes": number("local", base.local_bytes),
        "memory_bytes": number("memory", base.memory_bytes),
        "host_access": bool(number("host", base.host_access)),
        "libraries": tuple(name for name in ("dnnl", "mkl") if number(name, 0)),
        **{key: bool(number(key, getattr(base, key))) for key in ("f16", "f64", "atomic64")},
    }
    if facts.get("sub_groups"):
        changed["sub_groups"] = tuple(int(s) for s in facts["sub_groups"].split("/") if s.isdigit())
    if facts.get("kind") == "cpu":
        changed |= {"kind": "cpu", "group_items": 1024, "team_items": 16, "bandwidth": 2e10, "peak": 1e11}
    changed["threads"] = changed["compute_units"]
    return replace(base, **changed)  # type: ignore[arg-type]
