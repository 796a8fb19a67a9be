"""Element expressions of dot_general and convolution, for small ones: large products go to a library.

Sums run in the result's type; a result narrower than f32 is summed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.codegen.emitter import Emitter, Key, Lanes
from ferrule.codegen.index import Component, Cond, Index
from ferrule.codegen.windows import over
from ferrule.ir import ConvDims, DotDims, Op
from ferrule.ir.types import DType, f32


def sum_type(op: Op) -> DType:
    return sum_of(op.result.dtype)


def sum_of(dtype: DType) -> DType:
    """The type in which results of type `dtype` are summed."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def _read(em: Emitter, op: Op, i: int, place: Sequence[Component], dtype: DType) -> Lanes:
    return em.s.convert(op.operands[i].dtype, dtype, em.operand(op, i, place))


def _finish(em: Emitter, op: Op, total: Lanes) -> Lanes:
    return em.s.convert(sum_type(op), op.result.dtype, total)


def dot_element(em: Emitter, op: Op, index: Key, dims: DotDims) -> Lanes:
    """The sum over the contracted dimensions."""
    a, b = (v.shape for v in op.operands)
    kind = sum_type(op)
    batch = len(dims.lhs_batching_dimensions)
    left_bound = dims.lhs_batching_dimensions + dims.lhs_contracting_dimensions
    right_bound = dims.rhs_batching_dimensions + dims.rhs_contracting_dimensions
    left_free = [d for d in range(len(a)) if d not in left_bound]
    right_free = [d for d in range(len(b)) if d not in right_bound]
    rows, columns = index[batch : batch + len(left_free)], index[batch + len(left_free) :]

    def step(at: list[Index], carried: list[Lanes]) -> Sequence[Lanes]:
        left: list[Component] = [em.ix.zero] * len(a)
        right: list[Component] = [em.ix.zero] * len(b)
        for side, bound, free, outer in (
            (left, (dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions), left_free, rows),
            (right, (dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions), right_free, columns),
        ):
            for d, c in zip((*bound[0], *bound[1], *free), (*index[:batch], *at, *outer), strict=True):
                side[d] = c
        return [em.s.fma(kind, _read(em, op, 0, left, kind), _read(em, op, 1, right, kind), carried[0])]

    sizes = [a[d] for d in dims.lhs_contracting_dimensions]
    return _finish(em, op, over(em, sizes, [em.s.const(kind, 0)], [kind], step)[0])


def convolution_element(em: Emitter, op: Op, index: Key, attrs: tuple[tuple, tuple, tuple, tuple, tuple]) -> Lanes:
    """The sum over the window and the input features of the output feature's group."""
    strides, padding, base, dilation, reversal = attrs
    dims: ConvDims = op.attrs["dimension_numbers"]
    groups, batches = op.attrs.get("feature_group_count", 1), op.attrs.get("batch_group_count", 1)
    x, kernel = (v.shape for v in op.operands)
    kind = sum_type(op)
    window = [kernel[d] for d in dims.kernel_spatial_dimensions]
    features, outputs = kernel[dims.kernel_input_feature_dimension], kernel[dims.kernel_output_feature_dimension]
    image, feature = index[dims.output_batch_dimension], index[dims.output_feature_dimension]
    group, _ = em.ix.divmod(feature, outputs // max(groups, batches))

    def step(at: list[Index], carried: list[Lanes]) -> Sequence[Lanes]:
        place: list[Component] = [em.ix.zero] * len(x)
        tap: list[Component] = [em.ix.zero] * len(kernel)
        place[dims.input_batch_dimension] = image
        if batches > 1:
            place[dims.input_batch_dimension] = em.ix.add(
                em.ix.mul(group, x[dims.input_batch_dimension] // batches), image
            )
        place[dims.input_feature_dimension] = em.ix.add(em.ix.mul(group, features), at[-1]) if groups > 1 else at[-1]
        tap[dims.kernel_input_feature_dimension], tap[dims.kernel_output_feature_dimension] = at[-1], feature
        inside: Cond = 0 not in x
        for i, w in enumerate(at[:-1]):
            d, size = dims.input_spatial_dimensions[i], x[dims.input_spatial_dimensions[i]]
            tap[dims.kernel_spatial_dimensions[i]] = em.ix.sub(em.ix.number(window[i] - 1), w) if reversal[i] else w
            spot = em.ix.add(em.ix.mul(index[dims.output_spatial_dimensions[i]], strides[i]), em.ix.mul(w, dilation[i]))
            spot = em.ix.sub(spot, padding[i][0])
            inside = em.ix.both(inside, em.ix.inside(spot, 0, (size - 1) * base[i] + 1))
            spot, rest = em.ix.divmod(spot, base[i])
            inside = em.ix.both(inside, em.ix.is_zero(rest))
            place[d] = em.ix.within(spot, 0, size)

        def product() -> Lanes:
            return em.s.fma(kind, _read(em, op, 0, place, kind), _read(em, op, 1, tap, kind), carried[0])

        return [em.choose(inside, kind, product, lambda: carried[0])]

    return _finish(em, op, over(em, [*window, features], [em.s.const(kind, 0)], [kind], step)[0])
