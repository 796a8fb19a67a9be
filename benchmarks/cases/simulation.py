"""Scientific loops: bodies under gravity, heat in a plate, differential equations, Markov chains."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, normal

import jax


def pull(x):
    """Accelerations of bodies of equal mass."""
    d = x[None] - x[:, None]
    r = (d * d).sum(-1) + 0.01
    return (d / (r * r**0.5)[..., None]).mean(1)


def bodies(x, v, steps=10, dt=0.01):
    def step(_, state):
        x, v = state
        v = v + dt * pull(x)
        return x + dt * v, v

    return jax.lax.fori_loop(0, steps, step, (x, v))


def bodies_torch(x, v, steps=10, dt=0.01):
    for _ in range(steps):
        v = v + dt * pull(x)
        x = x + dt * v
    return x, v


def heat(u, steps=200):
    """Explicit steps of the heat equation; the border keeps its temperature."""

    def step(_, u):
        inner = u[1:-1, 1:-1]
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return u.at[1:-1, 1:-1].set(inner + 0.2 * (around - 4 * inner))

    return jax.lax.fori_loop(0, steps, step, u)


def heat_torch(u, steps=200):
    for _ in range(steps):
        inner = u[1:-1, 1:-1]
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        new = u.clone()
        new[1:-1, 1:-1] = inner + 0.2 * (around - 4 * inner)
        u = new
    return u


def wave(u, steps=10):
    """The wave equation in a periodic box."""

    def step(state, _):
        u, before = state
        around = sum(jnp.roll(u, shift, axis) for axis in range(3) for shift in (1, -1)) - 6 * u
        return (2 * u - before + 0.1 * around, u), None

    return jax.lax.scan(step, (u, u), None, length=steps)[0][0]


def wave_torch(u, steps=10):
    before = u
    for _ in range(steps):
        around = sum(torch.roll(u, shift, axis) for axis in range(3) for shift in (1, -1)) - 6 * u
        u, before = 2 * u - before + 0.1 * around, u
    return u


def lorenz(s):
    x, y, z = s
    return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def runge_kutta(s, steps=200, dt=0.005):
    def step(s, _):
        a = lorenz(s)
        b = lorenz(s + dt / 2 * a)
        c = lorenz(s + dt / 2 * b)
        d = lorenz(s + dt * c)
        return s + dt / 6 * (a + 2 * b + 2 * c + d), None

    return jax.lax.scan(step, s, None, length=steps)[0]


def lorenz_torch(s):
    x, y, z = s
    return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def runge_kutta_torch(s, steps=200, dt=0.005):
    for _ in range(steps):
        a = lorenz_torch(s)
        b = lorenz_torch(s + dt / 2 * a)
        c = lorenz_torch(s + dt / 2 * b)
        d = lorenz_torch(s + dt * c)
        s = s + dt / 6 * (a + 2 * b + 2 * c + d)
    return s


def adaptive(y):
    """Heun and Euler as a pair with a step that follows their difference, until t = 2: a while loop over a vector."""

    def f(t, y):
        return -2 * y + jnp.sin(3 * t)

    def body(state):
        t, dt, y = state
        dt = jnp.minimum(dt, 2 - t)
        a = f(t, y)
        b = f(t + dt, y + dt * a)
        error = jnp.max(jnp.abs(b - a)) * dt / 2
        good = error < 1e-4
        scale = jnp.clip(0.9 * jnp.sqrt(1e-4 / (error + 1e-12)), 0.2, 5)
        return jnp.where(good, t + dt, t), dt * scale, jnp.where(good, y + dt * (a + b) / 2, y)

    zero = jnp.zeros((), y.dtype)
    return jax.lax.while_loop(lambda s: s[0] < 2 - 1e-6, body, (zero, zero + 0.01, y))[2]


def chains(key, x, steps=500):
    """Random-walk Metropolis on a standard normal: many chains, the mean of squares over all steps."""

    def step(state, key):
        x, total = state
        a, b = jax.random.split(key)
        new = x + 2.4 * jax.random.normal(a, x.shape, x.dtype)
        accept = jnp.log(jax.random.uniform(b, x.shape, x.dtype)) < (x * x - new * new) / 2
        x = jnp.where(accept, new, x)
        return (x, total + x * x), None

    (_, total), _ = jax.lax.scan(step, (x, jnp.zeros_like(x)), jax.random.split(key, steps))
    return total.mean() / steps


def chains_torch(key, x, steps=500):
    total = torch.zeros_like(x)
    for _ in range(steps):
        new = x + 2.4 * torch.randn_like(x)
        accept = torch.log(torch.rand_like(x)) < (x * x - new * new) / 2
        x = torch.where(accept, new, x)
        total = total + x * x
    return total.mean() / steps


def cases() -> list[Case]:
    n = 1024

    def plate():
        return (normal(512, 512),)

    def starts():
        return (np.array([[1.0], [2.0], [20.0]], np.float32) + normal(3, 4096, scale=0.1),)

    return [
        Case(
            "1024 bodies, 10 steps",
            bodies,
            lambda: (normal(n, 3), normal(n, 3, seed=1)),
            torch=bodies_torch,
            flops=10.0 * n * n * 20,
            tolerance=1e-3,
        ),
        Case(
            "heat, 512², 200 steps",
            heat,
            plate,
            torch=heat_torch,
            flops=200.0 * 512 * 512 * 7,
            bytes=8.0 * 200 * 512 * 512,
        ),
        Case(
            "waves in a periodic box, 128² × 64, 10 steps",
            wave,
            lambda: (normal(128, 128, 64),),
            torch=wave_torch,
            flops=10.0 * 128 * 128 * 64 * 11,
            bytes=12.0 * 10 * 128 * 128 * 64,
            tolerance=1e-3,
        ),
        Case(
            "Lorenz, Runge-Kutta, 4096 × 200 steps",
            runge_kutta,
            starts,
            torch=runge_kutta_torch,
            flops=200.0 * 4096 * 70,
            tolerance=1e-2,
        ),
        Case("adaptive ODE, 256 equations", adaptive, lambda: (normal(256),), tolerance=1e-2),
        Case(
            "Metropolis, 256 chains, 500 steps",
            chains,
            lambda: (np.array([0, 7], np.uint32), normal(256)),
            torch=chains_torch,
            reference="f32",
            tolerance=5e-2,
        ),
    ]
