"""A training step of a multilayer perceptron with Adam."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, Gradient, integers, normal

import jax

SIZES = (784, 512, 512, 10)
RATE, FIRST, SECOND, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def mlp(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss(params, x, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(mlp(params, x)), labels[:, None], 1).mean()


def adam(params, means, squares, step, grads):
    """Adam's update, as optax writes it."""
    step = step + 1
    means = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, means, grads)
    squares = jax.tree.map(lambda s, g: SECOND * s + (1 - SECOND) * g * g, squares, grads)
    one, two = 1 - FIRST**step, 1 - SECOND**step

    def new(p, m, s):
        return p - RATE * (m / one) / (jnp.sqrt(s / two) + EPSILON)

    return jax.tree.map(new, params, means, squares), means, squares, step


def train(params, means, squares, step, x, labels):
    value, grads = jax.value_and_grad(loss)(params, x, labels)
    return *adam(params, means, squares, step, grads), value


def loss_torch(params, means, squares, step, x, labels):
    for w, b in params[:-1]:
        x = torch.relu(torch.addmm(b, x, w))
    w, b = params[-1]
    return torch.nn.functional.cross_entropy(torch.addmm(b, x, w), labels.long())


def update_torch(args, value, grads):
    """The same update with PyTorch's list operations, which its own optimizers use."""
    params, means, squares, step, *_ = args
    params, means, squares = ([t for pair in tree for t in pair] for tree in (params, means, squares))
    step = step + 1
    means = torch._foreach_lerp(means, grads, 1 - FIRST)
    squares = torch._foreach_addcmul(torch._foreach_mul(squares, SECOND), grads, grads, 1 - SECOND)
    under = torch._foreach_sqrt(torch._foreach_div(squares, 1 - SECOND**step))
    torch._foreach_add_(under, EPSILON)
    params = torch._foreach_sub(params, torch._foreach_div(torch._foreach_mul(means, RATE / (1 - FIRST**step)), under))
    return [*params, *means, *squares, step, value]


def arguments(sizes, batch):
    params = [
        (normal(a, b, seed=i, scale=a**-0.5), np.zeros(b, np.float32)) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))
    ]
    means = jax.tree.map(lambda p: normal(*p.shape, seed=7, scale=1e-3), params)
    squares = jax.tree.map(lambda p: normal(*p.shape, seed=8, scale=1e-3) ** 2 + np.float32(1e-6), params)
    return params, means, squares, np.float32(10), normal(batch, sizes[0], seed=9), integers(sizes[-1], batch)


def narrow_arguments():
    params, *_, x, _ = arguments(SIZES, 128)
    return jax.tree.map(lambda array: array.astype(jnp.bfloat16), (params, x))


def cases() -> list[Case]:
    found = []
    for sizes, batch in ((SIZES, 128), ((64, 128, 128, 10), 32)):
        name = "-".join(map(str, sizes))
        weights = sum(a * b for a, b in zip(sizes, sizes[1:]))
        common = {
            "flops": 6.0 * batch * weights,
            "bytes": 4.0 * 6 * weights,
            "tolerance": 5e-3,
            "outliers": 0.01,
        }
        make = lambda sizes=sizes, batch=batch: arguments(sizes, batch)  # noqa: E731
        step = Gradient(loss_torch, 1, update_torch)
        found.append(Case(f"MLP {name}, batch {batch}, Adam step", train, make, torch=step, **common))
        found.append(Case(f"MLP {name}, batch {batch}, Adam step, donated", train, make, donate=(0, 1, 2, 3), **common))
        found.append(
            Case(
                f"MLP {name}, batch {batch}, inference",
                mlp,
                lambda make=make: (make()[0], make()[4]),
                torch=mlp_torch,
                flops=2.0 * batch * weights,
                bytes=4.0 * weights,
            )
        )
    weights = sum(a * b for a, b in zip(SIZES, SIZES[1:]))
    found.append(
        Case(
            "MLP 784-512-512-10 of bf16, batch 128, inference",
            mlp,
            narrow_arguments,
            torch=mlp_torch,
            flops=2.0 * 128 * weights,
            bytes=2.0 * weights,
            peak="bf16",
            tolerance=5e-2,
        )
    )
    return found


def mlp_torch(params, x):
    for w, b in params[:-1]:
        x = torch.relu(torch.addmm(b, x, w))
    w, b = params[-1]
    return torch.addmm(b, x, w)
