"""Index arithmetic of kernels.

An `Index` is one component of an element's index for all lanes of a vector at once: lane l has `base + l * step` with
a scalar base. Where lanes do not advance evenly (the rows of a reshaped array, indices read from memory) the component
is a vector with one i64 per lane and `step` is None. Ranges and alignment are known at compile time, so that divisions,
remainders and comparisons fold away or stay the same in all lanes wherever possible.

A `Part` is an index component not computed yet: (of // stride) % size. Flattening the parts of one index into an offset
gives back the index itself without a division, which is how a loop over all elements passes through reshapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import gcd, prod
from typing import NamedTuple

from ferrule.codegen.llvm import Builder, V, i64


class Index(NamedTuple):
    """lane l: base + l * step (or lane l of the vector `base` when step is None); all values in [low, high)."""

    base: V
    step: int | None
    low: int
    high: int
    align: int = 1  # the scalar base is a multiple of this; 0: the base is the constant zero

    @property
    def uniform(self) -> bool:
        """Is it the same in all lanes?"""
        return self.step == 0

    @property
    def constant(self) -> int | None:
        """The value when it is one number known now."""
        return self.low if self.step == 0 and self.high == self.low + 1 else None


class Part(NamedTuple):
    of: Index
    stride: int
    size: int


Component = Index | Part
Cond = bool | V  # known now, or an i1 (the same in all lanes), or a vector of i1

ZERO = Index(i64(0), 0, 0, 1, 0)


def constant(value: int) -> Index:
    return Index(i64(value), 0, value, value + 1, abs(value))


def strides(shape: Sequence[int]) -> list[int]:
    """Elements between neighbours, per dimension, of a dense row-major array."""
    return [prod(shape[d + 1 :]) for d in range(len(shape))]


def _known_before(value: V, counter: str) -> bool:
    """Is the value computed before the loop with this counter? Results are numbered in order."""
    return value.ref[:2] != "%v" or int(value.ref[2:]) < int(counter[2:])


class Indexer:
    """Emits index arithmetic for `width` lanes. Equal instructions are emitted once per scope."""

    def __init__(self, b: Builder, width: int, known: dict[tuple[str, ...], V] | None = None) -> None:
        self.b, self.width = b, width
        self.known: dict[tuple[str, ...], V] = {} if known is None else known
        # What components were joined from by `reshape`: they come apart without divisions.
        self.joined: dict[tuple[V, int | None], tuple[Sequence[Component], Sequence[int]]] = {}

    zero = ZERO

    @staticmethod
    def number(value: int) -> Index:
        """A constant component."""
        return constant(value)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is emitted inside (a branch, a loop's body) is forgotten after."""
        saved = dict(self.known)
        try:
            yield
        finally:
            self.known.clear()
            self.known.update(saved)

    # --- instructions on scalars or vectors of i64 ----------------------------------------------------------------
    def _op(self, opcode: str, a: V, b: V) -> V:
        key = (opcode, a.ref, b.ref, a.type)
        if key not in self.known:
            self.known[key] = self.b.binary(opcode, a, b)
            self.b.made[self.known[key].ref] = (opcode, a, b)
        return self.known[key]

    def address(self, pointer: V, type: str, offset: V) -> V:
        """An element's address. In a loop, what stays the same is added before the loop: compilers that make vectors
        of work-items see that these read neighbours only when nothing else is added in between."""
        b = self.b
        if not b.loops or offset.ref[0] != "%":
            return b.offset(pointer, type, offset)
        counter = b.loops[-1].counter
        still = moving = i64(0)
        for term in self._terms(offset):
            if self._depends(term, counter):
                moving = self._add(moving, term)
            elif term.ref[0] != "%" and still.ref[0] != "%":
                still = i64(int(still.ref) + int(term.ref))
            else:
                still = self._sum(still, self._before(term, counter))
        if not _known_before(pointer, counter) or still.ref == "0":
            return b.offset(b.offset(pointer, type, moving), type, still)
        # not "inbounds": what moves may be what brings it into the array
        start = b.ahead(
            lambda: b.emit(pointer.type, f"getelementptr {type}, {pointer}, {still}"), pointer.ref, type, still.ref
        )
        return b.offset(start, type, moving)

    def _before(self, value: V, counter: str) -> V:
        """A value that does not depend on the loop, computed before it."""
        if _known_before(value, counter):
            return value
        opcode, a, c = self.b.made[value.ref]
        x, y = self._before(a, counter), self._before(c, counter)
        return self.b.ahead(lambda: self.b.binary(opcode, x, y), opcode, x.ref, y.ref)

    def _sum(self, a: V, c: V) -> V:
        """A sum before the loop."""
        return c if a.ref == "0" else self.b.ahead(lambda: self.b.binary("add nsw", a, c), "add", a.ref, c.ref)

    def _terms(self, value: V) -> list[V]:
        opcode, a, b = self.b.made.get(value.ref, ("", value, value))
        return [*self._terms(a), *self._terms(b)] if opcode == "add nsw" else [value]

    def _depends(self, value: V, counter: str) -> bool:
        """Does the value change in the loop, as far as can be seen?"""
        if value.ref not in self.b.made:
            return not _known_before(value, counter)
        _, a, b = self.b.made[value.ref]
        return self._depends(a, counter) or self._depends(b, counter)

    def apart(self, a: Index, row: Index) -> tuple[int, Index] | None:
        """(1 or -1, what is added) where a scalar is that much more than another one, or than its negative."""

        def taken(value: V) -> tuple[int, Index] | None:
            if value.ref == row.base.ref:
                return 1, ZERO
            opcode, x, y = self.b.made.get(value.ref, ("", value, value))
            if opcode == "mul nsw" and y.ref == "-1" and (found := taken(x)) is not None:
                return -found[0], self.mul(found[1], -1)
            if opcode != "add nsw":
                return None
            for part, other in ((x, y), (y, x)):
                if (found := taken(part)) is not None and not self._made_of(other, row.base):
                    return found[0], self.add(found[1], Index(other, 0, -(1 << 62), 1 << 62))
            return None

        return taken(a.base)

    def _made_of(self, value: V, other: V) -> bool:
        """Is it another value, or computed from it, as far as can be seen?"""
        _, *parts = self.b.made.get(value.ref, ("",))
        return value.ref == other.ref or any(self._made_of(v, other) for v in parts)

    def _add(self, a: V, b: V) -> V:
        if a.ref[0] != "%" and b.ref[0] != "%" and a.type == "i64":
            return i64(int(a.ref) + int(b.ref))
        if a.ref == "0" and a.type == "i64":
            return b
        return a if b.ref == "0" and b.type == "i64" else self._op("add nsw", a, b)

    def splat(self, value: V) -> V:
        key = ("splat", value.ref, str(self.width))
        if key not in self.known:
            self.known[key] = self.b.splat(value, self.width)
        return self.known[key]

    def _const(self, value: int, like: V) -> V:
        return i64(value) if like.type == "i64" else self.b.splat(i64(value), self.width)

    def lanes(self, a: Component) -> V:
        """The component as one i64 per lane (a scalar when the width is one)."""
        a = self.force(a)
        if a.step is None or self.width == 1:
            return a.base
        base = self.splat(a.base)
        if a.step == 0:
            return base
        ramp = V(base.type, f"<{', '.join(f'i64 {lane * a.step}' for lane in range(self.width))}>")
        return self._op("add nsw", base, ramp)

    def _vector(self, a: V, low: int, high: int) -> Index:
        """Wraps lane values; scalars when there is one lane."""
        return Index(a, 0 if self.width == 1 else None, low, high)

    # --- arithmetic -------------------------------------------------------------------------------------------------
    def add(self, a: Component, b: Component | int) -> Index:
        a = self.force(a)
        if isinstance(b, int):
            b = constant(b)
        b = self.force(b)
        low, high = a.low + b.low, a.high + b.high - 1
        if a.step is None or b.step is None:
            if a.constant == 0:
                return b
            if b.constant == 0:
                return a
            return self._vector(self._add(self.lanes(a), self.lanes(b)), low, high)
        return Index(self._add(a.base, b.base), a.step + b.step, low, high, gcd(a.align, b.align))

    def mul(self, a: Component, k: int) -> Index:
        a = self.force(a)
        if k == 1:
            return a
        if k == 0:
            return ZERO
        ends = (a.low * k, (a.high - 1) * k)
        low, high = min(ends), max(ends) + 1
        if a.base.ref[0] != "%" and a.step is not None:
            return Index(i64(int(a.base.ref) * k), a.step * k, low, high, abs(a.align * k))
        product = self._op("mul nsw", a.base, self._const(k, a.base))
        return Index(product, None if a.step is None else a.step * k, low, high, abs(a.align * k))

    def sub(self, a: Component, b: Component | int) -> Index:
        return self.add(a, -b if isinstance(b, int) else self.mul(b, -1))

    def plus(self, a: Component, b: Component) -> Component:
        """The sum; a part that nothing is added to stays a part."""
        return a if isinstance(b, Index) and b.constant == 0 else self.add(a, b)

    def affine(self, a: Component, factor: int, term: int) -> Component:
        """a * factor + term; a part that this leaves as it is stays a part."""
        return a if factor == 1 and term == 0 else self.add(self.mul(a, factor), term)

    def shifted(self, a: Index, ends: Sequence[int], shifts: Sequence[int]) -> Index:
        """a + shifts[i] for the first i with a < ends[i] (a is below the last end, and the same in all lanes)."""
        first = [0, *ends[:-1]]
        met = [i for i, end in enumerate(ends) if a.low < end and a.high > first[i]] or [len(ends) - 1]
        low = min(max(a.low, first[i]) + shifts[i] for i in met)
        high = max(min(a.high, ends[i]) + shifts[i] for i in met)
        total = self._add(a.base, i64(shifts[met[-1]]))
        for i, after in zip(met, met[1:], strict=False):
            # all bits of a negative number's shifted sign: this is outside of loops where the number is
            sign = self._op("ashr", self._add(a.base, i64(-ends[i])), i64(63))
            total = self._add(total, self._op("and", sign, i64(shifts[i] - shifts[after])))
        return Index(total, 0, low, high)

    def within(self, a: Component, low: int, high: int) -> Component:
        """The component where code is guarded by low ≤ a < high: the compiler may rely on that."""
        a = self.force(a)
        return a._replace(low=max(a.low, low), high=min(a.high, high)) if low < high else a

    def _run(self, a: Index, k: int) -> bool:
        """Do all lanes lie between the same two multiples of k?"""
        if a.step == 0 or self.width == 1:
            return True
        if a.step is None:
            return False
        g = gcd(a.align, k)
        return a.step > 0 and g > (self.width - 1) * a.step

    def divmod(self, a: Component, k: int) -> tuple[Index, Index]:
        """Quotient and remainder by a positive constant; of a negative value they are unspecified, except that the
        remainder is zero exactly for multiples."""
        a = self.force(a)
        if k == 1:
            return a, ZERO
        if 0 <= a.low and a.high <= k:
            return ZERO, a
        signed = a.low < 0
        low, high = (-(-a.low // k) if signed else a.low // k), max((a.high - 1) // k, 0) + 1
        rest = (-k + 1, k) if signed else (0, k)
        if a.constant is not None and not signed:
            return constant(a.low // k), constant(a.low % k)
        ops = ("sdiv", "srem") if signed else ("udiv", "urem")
        if a.step is not None and self._run(a, k) and not (signed and a.step):
            q, r = self._scalar(ops, a.base, k, a.align)
            align = a.align // k if a.align % k == 0 else 1
            return Index(q, 0, low, high, align), Index(r, a.step, *rest, gcd(a.align, k))
        if a.step is not None and a.step % k == 0 and not signed:
            # Where lanes are guarded (see `within`), the first may be negative and a later one not: the division is
            # that of the last lane, which is negative only when all are.
            ahead = (self.width - 1) * max(a.step, 0) if a.base.ref[0] == "%" else 0
            q, r = self._scalar(ops, self._add(a.base, i64(ahead)), k, a.align)
            align = a.align // k if a.align % k == 0 else 1
            return Index(self._add(q, i64(-ahead // k)), a.step // k, low, high, align), Index(
                r, 0, *rest, gcd(a.align, k)
            )
        q, r = self._divide_lanes(self.lanes(a), k, a, ops)
        return self._vector(q, low, high), self._vector(r, *rest)

    def _scalar(self, ops: tuple[str, str], base: V, k: int, align: int) -> tuple[V, V]:
        if base.ref[0] != "%":
            quotient, rest = divmod(int(base.ref), k)
            return i64(quotient), i64(rest)
        rest_is_zero = align % k == 0
        exact = " exact" if rest_is_zero else ""
        q = self._op(ops[0] + exact, base, i64(k))
        return q, i64(0) if rest_is_zero else self._op(ops[1], base, i64(k))

    def _divide_lanes(self, a: V, k: int, of: Index, ops: tuple[str, str]) -> tuple[V, V]:
        """Divisions of vectors are costly in 64 bits: values that fit are divided in 32."""
        if self.width == 1 or k >= 1 << 31 or of.high > 1 << 31 or of.low < -(1 << 31):
            divisor = self._const(k, a)
            return self._op(ops[0], a, divisor), self._op(ops[1], a, divisor)
        key = (*ops, a.ref, str(k))
        if key not in self.known:
            narrow = f"<{self.width} x i32>"
            small = self.b.cast("trunc", a, narrow)
            divisor = self.b.splat(V("i32", str(k)), self.width)
            wide = "sext" if of.low < 0 else "zext"
            quotient = self.b.binary(ops[0], small, divisor)
            rest = self.b.binary("sub", small, self.b.binary("mul", quotient, divisor))
            self.known[key] = self.b.cast(wide, quotient, a.type)
            self.known[(*key, "rest")] = self.b.cast(wide, rest, a.type)
        return self.known[key], self.known[(*key, "rest")]

    def force(self, a: Component) -> Index:
        """Computes a part."""
        if isinstance(a, Index):
            return a
        if (apart := self._apart(a)) is not None:
            return self.flatten(*apart)
        _, inner = self.divmod(a.of, a.stride * a.size)
        return self.divmod(inner, a.stride)[0]

    def _apart(self, a: Part) -> tuple[Sequence[Component], Sequence[int]] | None:
        """A part of what components were joined to, as an index of (parts of) them; None where it cuts them unevenly.

        Lanes may lie on both sides of a multiple of the stride as far as the joined value shows, not the components.
        """
        index, shape = self.joined.get((a.of.base, a.of.step), ((), ()))
        found, sizes, inner = list[Component](), list[int](), 1
        low, high = a.stride, min(a.stride * a.size, prod(shape))
        for component, size in zip(reversed(index), reversed(shape), strict=True):
            first, last = max(low, inner), min(high, inner * size)
            if first < last:
                if first % inner or last % first or (inner * size) % last:
                    return None
                found.append(self.split(component, (inner * size // last, last // first, first // inner))[1])
                sizes.append(last // first)
            inner *= size
        return (found[::-1], sizes[::-1]) if found else None

    def clamp(self, a: Component, low: int, high: int) -> Index:
        """Limited to low ≤ value ≤ high."""
        a = self.force(a)
        if low <= a.low and a.high <= high + 1:
            return a
        if low == high:
            return constant(low)
        base, step = (a.base, a.step) if a.step in (0, None) else (self.lanes(a), None)
        for name, bound, needed in (("smax", low, a.low < low), ("smin", high, a.high > high + 1)):
            if needed:
                kind = "i64" if base.type == "i64" else f"v{self.width}i64"
                key = (name, base.ref, str(bound), base.type)
                if key not in self.known:
                    self.known[key] = self.b.call(base.type, f"llvm.{name}.{kind}", base, self._const(bound, base))
                base = self.known[key]
        return Index(base, step, max(low, min(a.low, high)), min(high, max(a.high - 1, low)) + 1)

    # --- comparisons ------------------------------------------------------------------------------------------------
    def inside(self, a: Component, low: int, high: int) -> Cond:
        """low ≤ a < high."""
        a = self.force(a)
        if low >= high or a.high <= low or a.low >= high:
            return False
        return self.both(self._at_least(a, low), self.negate(self._at_least(a, high)))

    def _at_least(self, a: Index, bound: int) -> Cond:
        if a.low >= bound:
            return True
        if a.high <= bound:
            return False
        if a.step is not None and (self._run(a, gcd(bound, a.align)) if bound or a.align else a.step == 0):
            return self._compare("icmp sge", a.base, i64(bound))
        lanes = self.lanes(a)
        return self._compare("icmp sge", lanes, self._const(bound, lanes))

    def less(self, a: Component, bound: int) -> Cond:
        """a < bound."""
        return self.negate(self._at_least(self.force(a), bound))

    def is_zero(self, a: Component) -> Cond:
        a = self.force(a)
        if a.constant is not None:
            return a.constant == 0
        if a.low > 0 or a.high <= 0:
            return False
        lanes = a.base if a.step == 0 else self.lanes(a)
        return self._compare("icmp eq", lanes, self._const(0, lanes))

    def _compare(self, opcode: str, a: V, b: V) -> V:
        key = (opcode, a.ref, b.ref, a.type)
        if key not in self.known:
            self.known[key] = self.b.compare(opcode, a, b)
        return self.known[key]

    def negate(self, a: Cond) -> Cond:
        if isinstance(a, bool):
            return not a
        ones = V(a.type, "true" if a.type == "i1" else f"<{', '.join(['i1 true'] * self.width)}>")
        return self._op("xor", a, ones)

    def _alike(self, a: V, b: V) -> tuple[V, V]:
        return (a, b) if a.type == b.type else (self.splat(a), self.splat(b))

    def both(self, a: Cond, b: Cond) -> Cond:
        if isinstance(a, bool):
            return b if a else False
        if isinstance(b, bool):
            return a if b else False
        return self._op("and", *self._alike(a, b))

    def either(self, a: Cond, b: Cond) -> Cond:
        return self.negate(self.both(self.negate(a), self.negate(b)))

    # --- shapes -----------------------------------------------------------------------------------------------------
    def flatten(self, index: Sequence[Component], shape: Sequence[int], steps: Sequence[int] = ()) -> Index:
        """The offset, in elements, of an index into an array of this shape: row-major, or by the given strides."""
        total: Index = ZERO
        for component, stride in self._merged(index, shape, steps):
            total = self.add(self.mul(component, stride), total)
        return total

    def _merged(
        self, index: Sequence[Component], shape: Sequence[int], steps: Sequence[int] = ()
    ) -> list[tuple[Component, int]]:
        """(component, stride) pairs, innermost first; neighbouring parts of one index are joined."""
        found: list[tuple[Component, int]] = []
        for component, stride, size in zip(
            reversed(index), reversed(steps or strides(shape)), reversed(shape), strict=True
        ):
            if isinstance(component, Index) and component.constant == 0 or size == 1:
                continue
            if found and isinstance(component, Part):
                last, inner = found[-1]
                same = isinstance(last, Part) and last.of == component.of
                if same and last.stride * last.size == component.stride and inner * last.size == stride:  # type: ignore[union-attr]
                    assert isinstance(last, Part)
                    found[-1] = (self.part(last.of, last.stride, last.size * component.size), inner)
                    continue
            found.append((component, stride))
        return found

    def innermost(self, index: Sequence[Component], shape: Sequence[int]) -> Component | None:
        """The component, of one or several joined dimensions, along which elements are neighbours."""
        merged = self._merged(index, shape)
        return merged[0][0] if merged and merged[0][1] == 1 else None

    def part(self, of: Index, stride: int, size: int) -> Component:
        """(of // stride) % size, left for later unless it is trivial."""
        if size == 1:
            return ZERO
        if stride == 1 and of.low >= 0 and of.high <= size:
            return of
        return Part(of, stride, size)

    def split(self, flat: Component, shape: Sequence[int]) -> tuple[Component, ...]:
        """The index into an array of this shape whose row-major offset is `flat`."""
        if isinstance(flat, Part):
            whole = flat.size == prod(shape)
            if whole:
                steps = zip(strides(shape), shape, strict=True)
                return tuple(self.part(flat.of, flat.stride * stride, size) for stride, size in steps)
            flat = self.force(flat)
        return tuple(self.part(flat, stride, size) for stride, size in zip(strides(shape), shape, strict=True))

    def reshape(self, index: Sequence[Component], old: Sequence[int], new: Sequence[int]) -> tuple[Component, ...]:
        """The same element's index in another shape; runs of dimensions that hold equally many elements go apart."""
        if 0 in old or 0 in new:  # never computed
            return tuple(ZERO for _ in new)
        found: list[Component] = []
        at = to = 0
        while at < len(old) or to < len(new):
            a, b = at, to
            size_a = size_b = 1
            while a == at and b == to or size_a != size_b:
                if (size_a <= size_b and a < len(old)) or b >= len(new):
                    size_a *= old[a]
                    a += 1
                else:
                    size_b *= new[b]
                    b += 1
            if a - at == 1 and b - to == 1:
                found.append(index[at])
            elif a == at:
                found += [ZERO] * (b - to)
            else:
                merged = self._merged(index[at:a], old[at:a])
                if len(merged) == 1 and merged[0][1] == 1:
                    found += self.split(merged[0][0], new[to:b])
                else:
                    flat = self.flatten(index[at:a], old[at:a])
                    bases = [(c if isinstance(c, Index) else c.of).base for c in index[at:a]]
                    if flat.base.ref[0] == "%" and flat.base not in bases:
                        self.joined[flat.base, flat.step] = index[at:a], old[at:a]
                    found += self.split(flat, new[to:b])
            at, to = a, b
        return tuple(found)
