"""Parts: a library call reads a part of an array where it lies, not a copy.

    %4 = fusion(%w, %i) {… dynamic_slice(%w, %i, 0, 0)} : tensor<1x256x512xf32>
    %5 = reshape(%4) : tensor<256x512xf32>
    %6 = library(%x, %5) {target = "gemm", …}

becomes library(%x, %w, %i), with `parts` among the call's attributes: its second operand begins %i times 524288 bytes
behind the beginning of %w (native/part_call.cc). So loops over stacked layers take their weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ferrule.ir import Block, Op, Tensor, Type, Value, constant, tensor
from ferrule.passes.allocate import viewed
from ferrule.passes.simplify import eliminate_dead_code

# Calls whose work is worth more than that of finding the part.
TARGETS = frozenset({"gemm", "gemm.pack", "gemm.ragged", "conv", "attention", "attention_backward"})


@dataclass(frozen=True)
class Part:
    """`source` from byte `offset` on, and `stride` bytes further for each of `index`, limited to 0 … `limit`."""

    source: Value
    offset: int
    index: Value | None = None
    limit: int = 0
    stride: int = 0


def operand_parts(block: Block) -> Block:
    """Returns the block, which must not be shared, with such operands replaced."""
    users = block.uses()
    kept = set(block.results)
    parts: dict[Op, Part | None] = {}
    found = False
    for op in list(block.walk()):
        if not _takes_parts(op):
            continue
        described: list[int] = []
        shared = {operand for _, operand in op.attrs.get("aliases", ())}
        for i, value in enumerate(list(op.operands)):
            copy = viewed(value).op
            if i in shared or copy is None or copy.name != "fusion" or not isinstance(value.type, Tensor):
                continue
            if copy not in parts:
                parts[copy] = _part(copy, users, kept)
            if (part := parts[copy]) is None:
                continue
            op.operands[i] = part.source
            described += [i, -1 if part.index is None else len(op.operands), part.offset, part.limit, part.stride]
            described += [len(value.shape), *value.shape]
            if part.index is not None:
                op.operands.append(part.index)
        if described:
            found = True
            op.attrs = {**op.attrs, "attrs": {**op.attrs["attrs"], "parts": described}}
    return eliminate_dead_code(block) if found else block


def seen(call: Op) -> list[Type]:
    """The types of a library call's operands as it sees them: of parts, and of no indices."""
    operands = [value.type for value in call.operands]
    numbers = [] if call.attrs["ffi"] else list(call.attrs["attrs"].get("parts", ()))
    last = len(operands)
    while numbers:
        i, index, _, _, _, rank, *numbers = numbers
        operands[i] = Tensor(tuple(numbers[:rank]), tensor(call.operands[i]).dtype)
        numbers = numbers[rank:]
        last = min(last, index) if index >= 0 else last
    return operands[:last]


def _takes_parts(op: Op | None) -> bool:
    return op is not None and op.name == "library" and not op.attrs["ffi"] and op.attrs["target"] in TARGETS


def _part(copy: Op, users: dict[Value, list[Op]], kept: set[Value]) -> Part | None:
    """What a kernel copies, if that lies in one piece, only calls read the copy, and nobody writes over the source."""
    if len(copy.results) != 1 or copy.attrs.get("update") or tensor(copy.result).dtype.bits < 8:
        return None
    inner, region = viewed(copy.regions[0].results[0]).op, copy.regions[0]
    if inner is None or inner.name not in ("slice", "dynamic_slice"):
        return None
    whole = viewed(inner.operands[0])
    if whole not in region.args:
        return None
    shape, sizes = inner.operands[0].shape, inner.result.shape
    first = next((d for d, size in enumerate(sizes) if size != 1), len(sizes))
    if 0 in sizes or sizes[first + 1 :] != shape[first + 1 :]:
        return None
    steps = [prod(shape[d + 1 :]) * tensor(inner.result).dtype.itemsize for d in range(len(shape))]
    source = copy.operands[region.args.index(whole)]
    if inner.name == "slice":
        if any(step != 1 and size > 1 for step, size in zip(inner.attrs.get("strides") or (), sizes, strict=False)):
            return None
        offset = sum(start * step for start, step in zip(inner.attrs["start_indices"], steps, strict=True))
        part = Part(source, offset)
    else:
        moving: list[tuple[int, Value]] = []
        offset = 0
        for d, start in enumerate(inner.operands[1:]):
            limit = shape[d] - sizes[d]
            if limit and (number := constant(start)) is not None:
                offset += min(max(int(number), 0), limit) * steps[d]
            elif limit:
                moving.append((d, start))
        if len(moving) > 1 or any(v not in region.args or v.dtype.name not in ("i32", "i64") for _, v in moving):
            return None
        part = Part(source, offset)
        for d, start in moving:
            index = copy.operands[region.args.index(start)]
            part = Part(source, offset, index, shape[d] - sizes[d], steps[d])
    if not _stays(source, users, kept):
        return None
    return part if all(_takes_parts(reader) for reader in readers(copy.result, users, kept)) else None


def readers(value: Value, users: dict[Value, list[Op]], kept: set[Value]) -> list[Op | None]:
    """Who reads a value or a view of it; None stands for the caller of the program."""
    found: list[Op | None] = [None] if value in kept else []
    for op in users.get(value, ()):
        found += readers(op.result, users, kept) if op.name == "reshape" else [op]
    return found


def _stays(source: Value, users: dict[Value, list[Op]], kept: set[Value]) -> bool:
    """Does nobody update the array in place or carry it on? Who read a copy did not mind."""
    return all(_only_reads(reader) for reader in readers(viewed(source), users, kept))


def _only_reads(op: Op | None) -> bool:
    if op is None or op.name not in ("fusion", "library"):
        return False
    return not op.attrs.get("update") and not op.attrs.get("aliases")
