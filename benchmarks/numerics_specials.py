"""Values at special arguments: where Ferrule differs from C's functions, as NumPy has them, beside XLA:CPU's."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numerics_arguments as arguments
import numpy as np
from numerics_functions import FUNCTIONS

import jax

HEAD = """## Special values

Arguments: zeros, infinities and NaN of both signs, powers of two, whole numbers and poles, the largest and the smallest
normal number, and for complex numbers all pairs of such parts, with the branch cuts. Listed are Ferrule's results that
differ in kind (a NaN, an infinity, a zero, the sign of a zero or an infinity, the side of a cut) from those of
NumPy, that is C's functions, or SciPy. All others are of the same kind; how near they are is in the tables above.

"""
ALIKE = """### Ferrule as XLA:CPU, NumPy otherwise

JAX's own expansions of complex functions, which both platforms get, decide most of these.

| type | function | arguments |
| --- | --- | --- |
"""
APART = """### Ferrule otherwise than XLA:CPU and NumPy, or as neither

| type | function | argument | Ferrule | XLA:CPU | NumPy, SciPy |
| --- | --- | --- | --- | --- | --- |
"""
TYPES = ("float32", "float64", "bfloat16", "complex64", "complex128")


def kind_of(values: np.ndarray) -> np.ndarray:
    """A number per element: NaN, zeros and infinities with their signs, negative and positive numbers."""
    with np.errstate(all="ignore"):
        size = np.where(np.isnan(values), 9, np.where(values == 0, 0, np.where(np.isinf(values), 2, 1)))
    return np.where(np.isnan(values), 9, np.where(np.signbit(values), -1 - size, size))


def _kinds(values: np.ndarray) -> np.ndarray:
    if np.iscomplexobj(values):
        return np.stack([kind_of(values.real), kind_of(values.imag)])
    return kind_of(np.asarray(values, np.float64))[None]


def _text(value: object, dtype: np.dtype) -> str:
    if dtype.kind == "c":
        z = complex(value)  # type: ignore[arg-type]
        return f"{z.real:.4g}{z.imag:+.4g}i"
    return f"{float(value):.4g}"  # type: ignore[arg-type]


def tables(places: Sequence[str], quick: bool) -> str:
    alike: dict[tuple[str, str], list[str]] = {}
    apart = []
    for type_name in TYPES[:1] if quick else TYPES:
        dtype = np.dtype(getattr(ml_dtypes, type_name, type_name))
        base = arguments.specials(dtype)
        for name, function in FUNCTIONS.items():
            reference = function.complex if dtype.kind == "c" else function.reference
            if reference is None or name in ("zeta", "polygamma") or (dtype.kind == "c" and name == "power"):
                continue
            if dtype.kind == "c" and reference.__qualname__.startswith("_each"):
                reference = {"expm1": np.expm1, "log1p": np.log1p}.get(name)
                if reference is None:
                    continue
            few = base[:15] if dtype.kind != "c" else base[::5]
            xs = [v.ravel() for v in np.meshgrid(few, few)] if function.operands == 2 else [base]
            found = {}
            for place in places:
                with jax.default_device(jax.devices(place)[0]):
                    found[place] = np.asarray(jax.jit(function.call)(*xs))
            wide = np.complex128 if dtype.kind == "c" else np.float64
            with np.errstate(all="ignore"):
                want = np.asarray(reference(*(x.astype(wide) for x in xs)))
                to = dtype if np.iscomplexobj(want) else arguments.part(dtype)
                want = want.astype(to)
            mine = found[places[0]]
            for i in np.flatnonzero((_kinds(mine) != _kinds(want)).any(axis=0)):
                cells = [_text(found[p][i], found[p].dtype) for p in places]
                at = ", ".join(_text(x[i], dtype) for x in xs)
                if len(places) == 2 and (_kinds(mine[i : i + 1]) == _kinds(found[places[1]][i : i + 1])).all():
                    alike.setdefault((dtype.name, name), []).append(f"({at})")
                else:
                    apart.append(f"| {dtype.name} | {name} | {at} | {' | '.join(cells)} | {_text(want[i], to)} |")
    both = [f"| {kind} | {name} | {', '.join(found)} |" for (kind, name), found in alike.items()]
    return HEAD + ALIKE + "\n".join(both) + "\n\n" + APART + "\n".join(apart)
