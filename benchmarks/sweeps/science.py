"""Science, statistics, signals, images, probability and algorithms, as people write them in JAX.

Whole small computations (a filter over a series, a few steps of a simulation, a search on a graph) at the sizes of a
notebook. Random keys are made from seeds that are arguments, so that no compiler computes them ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax.experimental.ode import odeint
from jax.scipy.optimize import minimize

import jax
from jax import grad, lax, nn, random, value_and_grad, vmap
from sweeps import Program, integers, normal, uniform

SEED = np.uint32(7)


def programs() -> Iterator[Program]:
    yield from _time_series()
    yield from _sampling()
    yield from _learning()
    yield from _alignment()
    yield from _fields()
    yield from _motion()
    yield from _solvers()
    yield from _chance()
    yield from _images()
    yield from _signals()
    yield from _integers()
    yield from _tables_and_graphs()


def _repeat(count: int, step: Callable[..., Any], x: Any) -> Any:
    return lax.fori_loop(0, count, lambda _, x: step(x), x)


def _neighbours(x: Any) -> Any:
    return jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1)


def _squares(x: Any, y: Any) -> Any:
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def _complex(*shape: int) -> np.ndarray:
    return (normal(*shape) + 1j * normal(*shape, seed=1)).astype(np.complex64)


def _edges(nodes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    return integers(nodes, count, seed=1), integers(nodes, count, seed=2)


def _time_series() -> Iterator[Program]:
    def kalman(f: Any, h: Any, measured: Any) -> Any:
        def step(state: Any, z: Any) -> Any:
            x, p = f @ state[0], f @ state[1] @ f.T + 0.1 * jnp.eye(6)
            gain = jnp.linalg.solve(h @ p @ h.T + 0.5 * jnp.eye(3), h @ p).T
            x = x + gain @ (z - h @ x)
            return (x, p - gain @ h @ p), x

        return lax.scan(step, (jnp.zeros(6), jnp.eye(6)), measured)[1]

    model = lambda: (normal(6, 6, scale=0.3), normal(3, 6))  # noqa: E731
    yield Program("kalman filter", kalman, lambda: (*model(), normal(150, 3)))

    def viterbi(transition: Any, emission: Any, observed: Any) -> Any:
        def step(score: Any, symbol: Any) -> Any:
            paths = score[:, None] + transition
            return paths.max(0) + emission[:, symbol], paths.argmax(0)

        score, back = lax.scan(step, emission[:, observed[0]], observed[1:])
        follow = lambda state, pointers: (pointers[state], state)  # noqa: E731
        return score.max(), lax.scan(follow, score.argmax(), back, reverse=True)[1]

    yield Program("viterbi", viterbi, lambda: (normal(50, 50), normal(50, 13), integers(13, 200)))

    def particle_filter(seed: Any, observed: Any) -> Any:
        def step(x: Any, y_and_key: Any) -> Any:
            y, key = y_and_key
            noise, offset = random.normal(key, x.shape), random.uniform(key)
            x = 0.9 * x + jnp.sin(x) + 0.3 * noise
            weights = nn.softmax(-0.5 * (y - x) ** 2)
            chosen = jnp.searchsorted(jnp.cumsum(weights), (jnp.arange(len(x)) + offset) / len(x))
            return x[jnp.minimum(chosen, len(x) - 1)], (weights * x).sum()

        keys = random.split(random.key(seed), len(observed))
        return lax.scan(step, jnp.zeros(1000), (observed, keys))[1]

    yield Program("particle filter", particle_filter, lambda: (SEED, normal(50)), 0)  # rounding decides


def _sampling() -> Iterator[Program]:
    def hamiltonian(seed: Any, w: Any, x: Any, y: Any) -> Any:
        energy = lambda w: nn.softplus(-y * (x @ w)).sum() + 0.5 * (w @ w)  # noqa: E731

        def sample(w: Any, key: Any) -> Any:
            p = random.normal(key, w.shape, w.dtype) - 0.025 * grad(energy)(w)
            step = lambda s: (s[0] + 0.05 * s[1], s[1] - 0.05 * grad(energy)(s[0] + 0.05 * s[1]))  # noqa: E731
            w = _repeat(10, step, (w, p))[0]
            return w, w

        return lax.scan(sample, w, random.split(random.key(seed), 10))[1]

    data = lambda: (normal(21), normal(300, 21), np.sign(normal(300)))  # noqa: E731
    yield Program("hamiltonian leapfrog", hamiltonian, lambda: (SEED, *data()))

    def ising(seed: Any, spins: Any) -> Any:
        black = (jnp.arange(spins.shape[0])[:, None] + jnp.arange(spins.shape[1])) % 2 == 0

        def sweep(s: Any, key: Any) -> Any:
            for mask, k in zip((black, ~black), random.split(key)):
                up = random.uniform(k, s.shape) < nn.sigmoid(0.8 * _neighbours(s))
                s = jnp.where(mask, jnp.where(up, 1.0, -1.0), s)
            return s, s.mean()

        return lax.scan(sweep, spins, random.split(random.key(seed), 10))[1]

    yield Program("ising checkerboard", ising, lambda: (SEED, np.sign(normal(96, 90) + 1)))


def _learning() -> Iterator[Program]:
    def kmeans(x: Any, centers: Any) -> Any:
        def step(c: Any) -> Any:
            nearest = nn.one_hot(_squares(x, c).argmin(1), len(c), dtype=c.dtype)
            return nearest.T @ x / jnp.maximum(nearest.sum(0), 1)[:, None]

        return _repeat(10, step, centers)

    clusters = lambda: (normal(1003, 5) + 8 * normal(13, 5, seed=1)[np.arange(1003) % 13], 8 * normal(13, 5, seed=1))  # noqa: E731
    yield Program("k-means", kmeans, clusters)

    def pca(x: Any) -> Any:
        x = x - x.mean(0)
        values, vectors = jnp.linalg.eigh(x.T @ x / len(x))
        return values, x @ vectors[:, -5:] @ vectors[:, -5:].T

    spread = np.r_[np.ones(25), 3 + np.arange(5.0)].astype(np.float32)
    yield Program("principal components", pca, lambda: (normal(777, 30) * spread,))

    def newton(x: Any, y: Any) -> Any:
        def step(w: Any) -> Any:
            p = nn.sigmoid(x @ w)
            hessian = (x * (p * (1 - p))[:, None]).T @ x + jnp.eye(x.shape[1])
            return w - jnp.linalg.solve(hessian, x.T @ (p - y) + w)

        return _repeat(7, step, jnp.zeros(x.shape[1]))

    yield Program("logistic regression by newton", newton, lambda: (normal(500, 21), uniform(500).round()))

    def likelihood(log_scales: Any, x: Any, y: Any) -> Any:
        scaled = x / jnp.exp(log_scales)
        l = jnp.linalg.cholesky(jnp.exp(-0.5 * _squares(scaled, scaled)) + 0.1 * jnp.eye(len(x)))  # noqa: E741
        return 0.5 * y @ jsp.linalg.cho_solve((l, True), y) + jnp.log(jnp.diag(l)).sum()

    yield Program("gaussian process", value_and_grad(likelihood), lambda: (normal(3), normal(150, 3), normal(150)))

    def tsne(y: Any, p: Any) -> Any:
        q = (1 - jnp.eye(len(y))) / (1 + _squares(y, y))
        return -(p * jnp.log(q / q.sum() + 1e-12)).sum()

    yield Program("t-sne gradient", grad(tsne), lambda: (normal(300, 2), uniform(300, 300) / 9e4))

    def sinkhorn(x: Any, y: Any) -> Any:
        cost = _squares(x, y)

        def step(fg: Any) -> Any:
            f = -0.5 * nn.logsumexp((fg[1] - cost) / 0.5, 1)
            return f, -0.5 * nn.logsumexp((f[:, None] - cost) / 0.5, 0)

        f, g = _repeat(20, step, (jnp.zeros(len(x)), jnp.zeros(len(y))))
        return f.sum() + g.sum()

    yield Program("sinkhorn", sinkhorn, lambda: (normal(150, 3), normal(130, 3, seed=1)))


def _alignment() -> Iterator[Program]:
    def time_warp(x: Any, y: Any) -> Any:
        def row(above: Any, cost: Any) -> Any:
            best = jnp.minimum(above, jnp.concatenate([jnp.full(1, 1e9), above[:-1]]))
            cell = lambda left, cb: (cb[0] + jnp.minimum(left, cb[1]),) * 2  # noqa: E731
            return lax.scan(cell, jnp.float32(1e9), (cost, best))[1], None

        cost = jnp.abs(x[:, None] - y)
        return lax.scan(row, jnp.cumsum(cost[0]), cost[1:])[0][-1]

    yield Program("dynamic time warping", vmap(time_warp), lambda: (normal(6, 150, seed=1), normal(6, 130)))

    def smith_waterman(a: Any, b: Any) -> Any:
        def diagonal(state: Any, k: Any) -> Any:
            before, last = state
            j = k - jnp.arange(len(a))
            match = jnp.where(a == b[jnp.clip(j, 0, len(b) - 1)], 3, -3)
            shift = lambda x: jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])  # noqa: E731
            best = jnp.maximum(shift(before) + match, jnp.maximum(last, shift(last)) - 2)
            best = jnp.where((j >= 0) & (j < len(b)), jnp.maximum(best, 0), 0)
            return (last, best), best.max()

        zero = jnp.zeros(len(a), jnp.int32)
        return lax.scan(diagonal, (zero, zero), jnp.arange(len(a) + len(b) - 1))[1].max()

    letters = lambda: (integers(4, 20, 150), integers(4, 20, 130, seed=1))  # noqa: E731
    yield Program("smith-waterman", vmap(smith_waterman), letters)

    def edit_distance(a: Any, b: Any) -> Any:
        index = jnp.arange(len(b) + 1, dtype=jnp.int32)

        def row(above: Any, letter: Any) -> Any:
            new = jnp.minimum(above[1:] + 1, above[:-1] + (b != letter))
            new = jnp.concatenate([above[:1] + 1, new])
            return lax.cummin(new - index) + index, None

        return lax.scan(row, index, a)[0][-1]

    yield Program("edit distance", vmap(edit_distance), letters)


def _fields() -> Iterator[Program]:
    def life(cells: Any) -> Any:
        def step(c: Any) -> Any:
            rows = c + jnp.roll(c, 1, 0) + jnp.roll(c, -1, 0)
            total = rows + jnp.roll(rows, 1, 1) + jnp.roll(rows, -1, 1)
            return ((total == 3) | ((total == 4) & (c == 1))).astype(c.dtype)

        return _repeat(20, step, cells)

    yield Program("game of life", life, lambda: (integers(2, 150, 130).astype(np.int8),))

    def mandelbrot(c: Any) -> Any:
        def step(state: Any) -> Any:
            z, count = state
            return jnp.where(jnp.abs(z) < 4, z * z + c, z), count + (jnp.abs(z) < 2)

        return _repeat(30, step, (jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int32)))[1]

    plane = lambda: (np.linspace(-2, 1, 96) + 1j * np.linspace(-1, 1, 72)[:, None]).astype(np.complex64)  # noqa: E731
    yield Program("mandelbrot", mandelbrot, lambda: (plane(),), 0)  # near the border a rounding changes a count

    def boltzmann(f: Any) -> Any:
        velocity = [(x, y) for x in (0, 1, -1) for y in (0, 1, -1)]
        weight = jnp.array([4 / 9 / 4 ** (x * x + y * y) for x, y in velocity], f.dtype)[:, None, None]
        c = jnp.array(velocity, f.dtype)

        def step(f: Any) -> Any:
            f = jnp.stack([jnp.roll(f[i], v, (0, 1)) for i, v in enumerate(velocity)])
            density = f.sum(0)
            u = jnp.einsum("qd,qxy->dxy", c, f) / density
            cu = jnp.einsum("qd,dxy->qxy", c, u)
            return f + 0.8 * (weight * density * (1 + 3 * cu + 4.5 * cu**2 - 1.5 * (u**2).sum(0)) - f)

        return _repeat(10, step, f)

    yield Program("lattice boltzmann", boltzmann, lambda: (uniform(9, 96, 64, low=0.9),))
    jacobi = lambda b: _repeat(60, lambda u: 0.25 * (_neighbours(u) + b), jnp.zeros_like(b))  # noqa: E731
    yield Program("poisson by jacobi", jacobi, lambda: (normal(90, 110, scale=0.01),))

    def v_cycle(u: Any, b: Any) -> Any:
        relax = lambda u: u + 0.8 * (0.25 * (_neighbours(u) + b) - u)  # noqa: E731
        u = _repeat(2, relax, u)
        if u.shape[0] > 6:
            residual = b + _neighbours(u) - 4 * u
            coarse = residual.reshape(u.shape[0] // 2, 2, u.shape[1] // 2, 2).sum((1, 3))
            u = u + jnp.repeat(jnp.repeat(v_cycle(jnp.zeros_like(coarse), coarse), 2, 0), 2, 1)
        return _repeat(2, relax, u)

    yield Program("multigrid v-cycle", v_cycle, lambda: (normal(96, 96), normal(96, 96, seed=1)))

    def conjugate_gradient(b: Any) -> Any:
        return jsp.sparse.linalg.cg(lambda u: 4.5 * u - _neighbours(u), b, maxiter=30)[0]

    yield Program("poisson by conjugate gradients", conjugate_gradient, lambda: (normal(100, 90),))

    def alternating(u: Any) -> Any:
        def half(u: Any) -> Any:
            n, side = u.shape[0], jnp.ones((u.shape[1], u.shape[0]), u.dtype)
            right = u + 0.4 * (jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 2 * u)
            below, above = (-0.4 * side).at[:, 0].set(0), (-0.4 * side).at[:, n - 1].set(0)
            return lax.linalg.tridiagonal_solve(below, 1.8 * side, above, right.T[..., None])[..., 0]

        return _repeat(5, lambda u: half(half(u)), u)

    yield Program("heat by alternating directions", alternating, lambda: (normal(77, 90),))

    def navier_stokes(vorticity: Any) -> Any:
        n, dtype = len(vorticity), vorticity.dtype
        kx, ky = jnp.fft.fftfreq(n, 1 / n, dtype=dtype)[:, None], jnp.fft.rfftfreq(n, 1 / n, dtype=dtype)
        k2 = kx**2 + ky**2

        def step(w: Any) -> Any:
            stream = w / jnp.maximum(k2, 1)
            u, v, wx, wy = jnp.fft.irfft2(1j * jnp.stack([ky * stream, -kx * stream, kx * w, ky * w]), (n, n))
            return (w - 0.001 * jnp.fft.rfft2(u * wx + v * wy)) / (1 + 1e-4 * k2)

        return jnp.fft.irfft2(_repeat(5, step, jnp.fft.rfft2(vorticity)), (n, n))

    yield Program("navier-stokes, spectral", navier_stokes, lambda: (normal(90, 90),))

    def schroedinger(psi: Any, potential: Any) -> Any:
        k = 2 * jnp.pi * jnp.fft.fftfreq(len(psi), dtype=potential.dtype)
        kinetic, kick = jnp.exp(-0.05j * (k[:, None] ** 2 + k**2)), jnp.exp(-0.1j * potential)
        return _repeat(5, lambda psi: jnp.fft.ifft2(kinetic * jnp.fft.fft2(kick * psi)), psi)

    yield Program("schroedinger, split step", schroedinger, lambda: (_complex(60, 60), normal(60, 60)))


def _motion() -> Iterator[Program]:
    def nbody(x: Any, v: Any, mass: Any) -> Any:
        def step(state: Any) -> Any:
            x, v = state
            d = x[None] - x[:, None]
            v = v + 0.01 * jnp.einsum("ijd,ij,j->id", d, ((d**2).sum(-1) + 0.1) ** -1.5, mass)
            return x + 0.01 * v, v

        return _repeat(10, step, (x, v))

    yield Program("n-body", nbody, lambda: (normal(150, 3), normal(150, 3, seed=1), uniform(150)))

    def walks(seed: Any) -> Any:
        x = jnp.cumsum(random.randint(random.key(seed), (300, 500), 0, 2) * 2 - 1, 1)
        return jnp.where((x >= 20).any(1), (x >= 20).argmax(1), 500), jnp.abs(x).max(1)

    yield Program("random walks", walks, lambda: (SEED,))

    def lorenz(y: Any, _: Any) -> Any:
        return jnp.stack([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])

    solve = lambda y: odeint(lorenz, y, jnp.linspace(0.0, 0.5, 20), rtol=1e-4, atol=1e-4)  # noqa: E731
    yield Program("odeint", solve, lambda: (normal(3, 300),))

    def kepler(anomaly: Any, eccentricity: Any) -> Any:
        def step(state: Any) -> Any:
            e, _ = state
            change = (e - eccentricity * jnp.sin(e) - anomaly) / (1 - eccentricity * jnp.cos(e))
            return e - change, change

        return lax.while_loop(lambda s: jnp.abs(s[1]) > 1e-5, step, (anomaly, jnp.ones_like(anomaly)))[0]

    yield Program("kepler by newton", vmap(kepler), lambda: (uniform(5003, high=6.0), uniform(5003, seed=1, high=0.7)))


def _solvers() -> Iterator[Program]:
    def bfgs(x: Any, y: Any) -> Any:
        loss = lambda w: nn.softplus(-y * (x @ w)).mean() + 0.05 * (w @ w)  # noqa: E731
        return minimize(loss, jnp.zeros(x.shape[1]), method="BFGS", tol=1e-3).x

    yield Program("logistic regression by bfgs", bfgs, lambda: (normal(500, 21), np.sign(normal(500, seed=1))))

    def gauss_newton(t: Any, y: Any) -> Any:
        residual = lambda p: p[0] * jnp.exp(-p[1] * t) + p[2] - y  # noqa: E731

        def step(p: Any) -> Any:
            j = jax.jacfwd(residual)(p)
            return p - jnp.linalg.solve(j.T @ j + 0.01 * jnp.eye(3), j.T @ residual(p))

        return _repeat(10, step, jnp.array([1.0, 1.0, 0.0]))

    t = np.linspace(0, 5, 200, dtype=np.float32)
    decays = lambda: (1 + uniform(30, 1)) * np.exp(-0.7 * t) + normal(30, 200, scale=0.05)  # noqa: E731
    yield Program("gauss-newton", vmap(gauss_newton, (None, 0)), lambda: (t, decays()))

    def perceptron(w: Any, x: Any) -> Any:
        return (jnp.tanh(x @ w.reshape(5, 9)).sum(1) ** 2).mean()

    yield Program("hessian", jax.hessian(perceptron), lambda: (normal(45), normal(200, 5)))

    def closest_points(x: Any, y: Any) -> Any:
        def step(x: Any) -> Any:
            matched = y[_squares(x, y).argmin(1)]
            u, _, v = jnp.linalg.svd((x - x.mean(0)).T @ (matched - matched.mean(0)))
            return (x - x.mean(0)) @ u @ v + matched.mean(0)

        return _repeat(5, step, x)

    yield Program("iterative closest point", closest_points, lambda: (normal(300, 3), 1.02 * normal(350, 3)))

    def householder(a: Any) -> Any:
        def step(k: Any, r: Any) -> Any:
            x = jnp.where(jnp.arange(len(r)) >= k, r[:, k], 0.0)
            v = x.at[k].add(jnp.sign(x[k]) * jnp.linalg.norm(x))
            return r - 2 * jnp.outer(v, v @ r) / (v @ v)

        return lax.fori_loop(0, a.shape[1], step, a)

    yield Program("householder", householder, lambda: (normal(77, 50),))
    yield Program("matrix exponentials", vmap(jsp.linalg.expm), lambda: (normal(30, 9, 9, scale=0.3),))
    bessel = lambda x: jnp.cos(x[:, None] * jnp.sin(jnp.linspace(0, jnp.pi, 40))).mean(1)  # noqa: E731
    yield Program("bessel by quadrature", bessel, lambda: (uniform(2003, high=10.0),))


def _chance() -> Iterator[Program]:
    def asian(spot: Any, seed: Any) -> Any:
        steps = random.normal(random.key(seed), (1000, 50)) * 0.03 - 0.00045
        return nn.relu(spot * jnp.exp(jnp.cumsum(steps, 1)).mean(1) - 100).mean()

    yield Program("asian option and delta", value_and_grad(asian), lambda: (np.float32(100), SEED))

    def black_scholes(s: Any, k: Any, t: Any, sigma: Any) -> Any:
        d = (jnp.log(s / k) + (0.02 + sigma**2 / 2) * t) / (sigma * jnp.sqrt(t))
        return s * jsp.stats.norm.cdf(d) - k * jnp.exp(-0.02 * t) * jsp.stats.norm.cdf(d - sigma * jnp.sqrt(t))

    prices = lambda: (uniform(10_007, low=80.0, high=120.0), uniform(10_007, seed=1, low=80.0, high=120.0))  # noqa: E731
    terms = lambda: (uniform(10_007, seed=2, low=0.1, high=2.0), uniform(10_007, low=0.1, high=0.5))  # noqa: E731
    yield Program(
        "black-scholes and greeks", vmap(value_and_grad(black_scholes, (0, 2, 3))), lambda: (*prices(), *terms())
    )

    def bootstrap(seed: Any, x: Any) -> Any:
        means = vmap(lambda key: random.choice(key, x, x.shape).mean())(random.split(random.key(seed), 200))
        return jnp.percentile(means, jnp.array([2.5, 97.5])), means.std()

    yield Program("bootstrap", bootstrap, lambda: (SEED, normal(300) + 5))

    def permutation_test(seed: Any, x: Any) -> Any:
        difference = lambda x: x[:90].mean() - x[90:].mean()  # noqa: E731
        return vmap(lambda key: difference(random.permutation(key, x)))(random.split(random.key(seed), 99))

    yield Program("permutation test", permutation_test, lambda: (SEED, normal(200)))

    density = lambda x, at: jnp.exp(-_squares(at, x) / 0.08).mean(1)  # noqa: E731
    yield Program("kernel density", density, lambda: (normal(1003, 2), normal(300, 2, seed=1)))
    quartiles = lambda x: jnp.quantile(x, jnp.array([0.25, 0.5, 0.75]), axis=0)  # noqa: E731
    yield Program("quartiles by column", quartiles, lambda: (normal(1003, 13),))
    moving_median = lambda x: jnp.median(x[jnp.arange(2993)[:, None] + jnp.arange(11)], 1)  # noqa: E731
    yield Program("moving median", moving_median, lambda: (normal(3003),))
    hist = lambda x, y: jnp.histogram2d(x, y, bins=30, range=[[-3, 3], [-3, 3]])[0]  # noqa: E731
    yield Program("histogram in two dimensions", hist, lambda: (normal(5003), normal(5003, seed=1)), 0.1)


def _images() -> Iterator[Program]:
    def blur(x: Any) -> Any:
        k = jnp.exp(-0.5 * (jnp.arange(-6, 7) / 2.0) ** 2)
        k = k / k.sum()
        rows = vmap(lambda r: jnp.convolve(r, k, mode="same"))
        return rows(rows(x).T).T

    def sobel(x: Any) -> Any:
        p = jnp.pad(x, 1, mode="edge")
        smooth = lambda p: p[:-2] + 2 * p[1:-1] + p[2:]  # noqa: E731
        across, down = smooth(p)[:, 2:] - smooth(p)[:, :-2], smooth(p.T)[:, 2:] - smooth(p.T)[:, :-2]
        return jnp.sqrt(across**2 + down.T**2)

    def bilateral(x: Any) -> Any:
        total, weights = 0.0, 0.0
        for i in range(-2, 3):
            for j in range(-2, 3):
                moved = jnp.roll(x, (i, j), (0, 1))
                w = jnp.exp(-(i * i + j * j) / 8 - (moved - x) ** 2 / 0.1)
                total, weights = total + w * moved, weights + w
        return total / weights

    def median(x: Any) -> Any:
        return jnp.median(jnp.stack([jnp.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)]), 0)

    def box(x: Any) -> Any:
        s = jnp.pad(jnp.cumsum(jnp.cumsum(x, 0), 1), ((1, 0), (1, 0)))
        return (s[9:, 9:] - s[:-9, 9:] - s[9:, :-9] + s[:-9, :-9]) / 81

    def hough(x: Any) -> Any:
        angle = jnp.linspace(0, jnp.pi, 60)
        i, j = jnp.indices(x.shape)
        rho = (i[..., None] * jnp.cos(angle) + j[..., None] * jnp.sin(angle)).round().astype(jnp.int32) + 140
        return jnp.zeros((280, 60)).at[rho, jnp.arange(60)].add(x[..., None])

    def components(mask: Any) -> Any:
        def spread(state: Any) -> Any:
            labels, _ = state
            most = lax.reduce_window(labels, jnp.int32(0), lax.max, (3, 3), (1, 1), "SAME")
            new = jnp.where(mask, most, 0)
            return new, (new != labels).any()

        first = jnp.where(mask, 1 + jnp.arange(mask.size, dtype=jnp.int32).reshape(mask.shape), 0)
        return lax.while_loop(lambda s: s[1], spread, (first, True))[0]

    def distance_transform(mask: Any) -> Any:
        n = jnp.arange(len(mask))
        along = lambda d: (d[None] + (n[:, None] - n)[..., None] ** 2).min(1)  # noqa: E731
        return jnp.sqrt(along(along(jnp.where(mask, 0.0, 1e6)).T).T)

    def template_match(x: Any, t: Any) -> Any:
        t = t - t.mean()
        return jsp.signal.fftconvolve(x, t[::-1, ::-1], mode="valid")

    def warp(x: Any, flow: Any) -> Any:
        return jsp.ndimage.map_coordinates(x, list(jnp.indices(x.shape) + flow), order=1, mode="nearest")

    def hsv(rgb: Any) -> Any:
        r, g, b = jnp.moveaxis(rgb, -1, 0)
        v, d = rgb.max(-1), rgb.max(-1) - rgb.min(-1) + 1e-6
        h = jnp.where(v == r, (g - b) / d % 6, jnp.where(v == g, (b - r) / d + 2, (r - g) / d + 4)) / 6
        return jnp.stack([h, d / (v + 1e-6), v], -1)

    def jpeg(x: Any) -> Any:
        blocks = x.reshape(x.shape[0] // 8, 8, -1, 8).swapaxes(1, 2) - 128
        table = 10.0 + 3 * (jnp.arange(8)[:, None] + jnp.arange(8))
        kept = jnp.round(jsp.fft.dctn(blocks, axes=(2, 3), norm="ortho") / table) * table
        return (jsp.fft.idctn(kept, axes=(2, 3), norm="ortho") + 128).swapaxes(1, 2).reshape(x.shape)

    def dither(x: Any) -> Any:
        def row(carried: Any, line: Any) -> Any:
            def pixel(error: Any, value: Any) -> Any:
                value = value + error
                out = jnp.where(value > 127, 255, 0)
                return (value - out) * 7 // 16, (out, value - out)

            out, error = lax.scan(pixel, jnp.int32(0), line + carried)[1]
            return error * 9 // 16, out

        return lax.scan(row, jnp.zeros_like(x[0]), x)[1]

    picture = lambda: (uniform(96, 130),)  # noqa: E731
    yield Program("gaussian blur, separable", blur, picture)
    yield Program("sobel", sobel, lambda: (uniform(300, 400),))
    yield Program("bilateral filter", bilateral, picture)
    yield Program("median 3x3", median, picture)
    yield Program("box filter by integral image", box, lambda: (uniform(300, 400),))
    yield Program("hough lines", hough, lambda: ((uniform(90, 100) < 0.1).astype(np.float32),), 0.1)
    yield Program("connected components", components, lambda: (uniform(60, 77) < 0.4,))
    yield Program("distance transform", distance_transform, lambda: (uniform(100, 100) < 0.01,))
    yield Program("template matching", template_match, lambda: (uniform(150, 200), uniform(21, 30)))
    yield Program("warp", warp, lambda: (uniform(150, 200), normal(2, 150, 200)))
    yield Program("rgb to hsv", hsv, lambda: (uniform(96, 130, 3),))
    yield Program("jpeg blocks", jpeg, lambda: (uniform(96, 120, high=255.0),))
    yield Program("dithering", dither, lambda: (integers(256, 96, 130),))


def _signals() -> Iterator[Program]:
    def spectrogram(x: Any) -> Any:
        return jnp.log(jnp.abs(jsp.signal.stft(x, nperseg=400, noverlap=240)[2]) ** 2 + 1e-3)

    def mfcc(x: Any, bank: Any) -> Any:
        frames = x[jnp.arange(98)[:, None] * 160 + jnp.arange(400)] * jnp.hanning(400)
        return jsp.fft.dct(jnp.log((jnp.abs(jnp.fft.rfft(frames, 512)) ** 2) @ bank + 1e-3), norm="ortho")[:, :13]

    def reconstruct(z: Any) -> Any:
        return jsp.signal.istft(z, nperseg=300)[1]

    def cross_spectrum(x: Any, y: Any) -> Any:
        return jsp.signal.csd(x, y, nperseg=300)[1]

    def biquad(x: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            y = 0.2 * x + s[0]
            return (0.3 * x + 1.2 * y + s[1], 0.2 * x - 0.5 * y), y

        return lax.scan(step, (jnp.zeros_like(x[0]), jnp.zeros_like(x[0])), x)[1]

    def smoothing(x: Any) -> Any:
        join = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])  # noqa: E731
        return lax.associative_scan(join, (jnp.full_like(x, 0.95), 0.05 * x))[1]

    def haar(x: Any) -> Any:
        details = []
        while x.shape[-1] > 10:
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            x, detail = pairs.sum(-1) / 2**0.5, (pairs[..., 0] - pairs[..., 1]) / 2**0.5
            details.append(detail)
        return x, details

    audio = lambda: (normal(16_000),)  # noqa: E731
    yield Program("spectrogram", spectrogram, audio)
    yield Program("mfcc", mfcc, lambda: (normal(16_000), uniform(257, 40)))
    yield Program("inverse stft", reconstruct, lambda: (_complex(151, 100),))
    yield Program("cross spectrum", cross_spectrum, lambda: (normal(2, 5003), normal(2, 5003)))
    yield Program("biquad", biquad, lambda: (normal(10_007, 6),))
    yield Program("exponential smoothing", smoothing, lambda: (normal(50_021),))
    yield Program("fft convolution", partial(jsp.signal.fftconvolve, mode="same"), lambda: (normal(5003), normal(301)))
    yield Program("haar wavelet", haar, lambda: (normal(50, 1280),))


def _integers() -> Iterator[Program]:
    def murmur(x: Any) -> Any:
        x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
        return x ^ (x >> 16)

    def crc(data: Any) -> Any:
        bit = lambda c: jnp.where(c & 1 == 1, (c >> 1) ^ jnp.uint32(0xEDB88320), c >> 1)  # noqa: E731
        byte = lambda i, c: _repeat(8, bit, c ^ data[:, i])  # noqa: E731
        return ~lax.fori_loop(0, data.shape[1], byte, jnp.full(len(data), 0xFFFFFFFF, jnp.uint32))

    def reverse_bits(x: Any) -> Any:
        for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
            x = ((x >> shift) & jnp.uint32(mask)) | ((x & jnp.uint32(mask)) << shift)
        return (x >> 16) | (x << 16), lax.population_count(x)

    def sieve(limit: Any) -> Any:
        n = jnp.arange(10_000)
        cross = lambda i, prime: prime & ~((n % i == 0) & (n > i))  # noqa: E731
        return lax.fori_loop(2, limit, cross, n >= 2)

    def collatz(n: Any) -> Any:
        step = lambda s: (jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1)  # noqa: E731
        return lax.while_loop(lambda s: s[0] > 1, step, (n, jnp.int32(0)))[1]

    def bitonic(x: Any) -> Any:
        i = jnp.arange(len(x))
        for k in range(1, len(x).bit_length()):
            for j in reversed(range(k)):
                other = x[i ^ (1 << j)]
                low = ((i >> j) & 1) == ((i >> k) & 1)
                x = jnp.where(low, jnp.minimum(x, other), jnp.maximum(x, other))
        return x

    def rule_110(cells: Any) -> Any:
        step = lambda c, _: (110 >> (4 * jnp.roll(c, 1) + 2 * c + jnp.roll(c, -1)) & 1,) * 2  # noqa: E731
        return lax.scan(step, cells, None, length=150)[1]

    def radix_sort(x: Any) -> Any:
        for shift in (0, 4, 8):
            digit = nn.one_hot((x >> shift) & 15, 16, dtype=jnp.int32)
            before, total = jnp.cumsum(digit, 0) - digit, digit.sum(0)
            x = jnp.zeros_like(x).at[((before + jnp.cumsum(total) - total) * digit).sum(1)].set(x)
        return x

    words = lambda: (integers(2**31 - 1, 100_003).astype(np.uint32),)  # noqa: E731
    yield Program("murmur hash", murmur, words)
    yield Program("crc32", crc, lambda: (integers(256, 500, 150).astype(np.uint32),))
    yield Program("bit reversal and popcount", reverse_bits, words)
    yield Program("prime sieve", sieve, lambda: (np.int32(100),))
    yield Program("collatz", vmap(collatz), lambda: (integers(3000, 5003),))
    yield Program("bitonic network", bitonic, lambda: (normal(4096),))
    yield Program("rule 110", rule_110, lambda: (integers(2, 777),))
    yield Program("radix sort", radix_sort, lambda: (integers(4096, 5003),))


def _tables_and_graphs() -> Iterator[Program]:
    def run_lengths(x: Any) -> Any:
        starts = jnp.concatenate([jnp.ones(1, bool), x[1:] != x[:-1]])
        run = jnp.cumsum(starts) - 1
        return jax.ops.segment_sum(jnp.ones_like(x), run, len(x)), jnp.zeros_like(x).at[run].set(x), starts.sum()

    yield Program("run-length encoding", run_lengths, lambda: (integers(3, 10_007),))
    compact = lambda x: x[jnp.nonzero(x > 0.5, size=4000, fill_value=0)[0]]  # noqa: E731
    yield Program("stream compaction", compact, lambda: (normal(10_007),))

    def group_statistics(x: Any, group: Any) -> Any:
        total = partial(jax.ops.segment_sum, segment_ids=group, num_segments=97)
        count = total(jnp.ones(len(x)))[:, None]
        mean = total(x) / count
        return mean, jnp.sqrt(total((x - mean[group]) ** 2) / count), jax.ops.segment_max(x, group, 97)

    yield Program("group by", group_statistics, lambda: (normal(10_007, 3), integers(97, 10_007)))

    def top_of_groups(x: Any, group: Any) -> Any:
        order = jnp.lexsort((-x, group))
        first = jnp.searchsorted(group[order], jnp.arange(97))
        return x[order][first[:, None] + jnp.arange(3)]

    yield Program("top 3 of each group", top_of_groups, lambda: (normal(5003), integers(97, 5003)))

    def join(keys: Any, values: Any, wanted: Any) -> Any:
        order = jnp.argsort(keys)
        at = jnp.minimum(jnp.searchsorted(keys[order], wanted), len(keys) - 1)
        return jnp.where(keys[order][at] == wanted, values[order][at], -1.0)

    yield Program("join", join, lambda: (integers(10**6, 3001), uniform(3001), integers(10**6, 5003)))

    def pagerank(source: Any, target: Any) -> Any:
        degree = jnp.bincount(source, length=1003)

        def step(rank: Any) -> Any:
            share = rank / jnp.maximum(degree, 1)
            return 0.15 / 1003 + 0.85 * jnp.zeros(1003).at[target].add(share[source])

        return _repeat(20, step, jnp.full(1003, 1 / 1003))

    yield Program("pagerank", pagerank, lambda: _edges(1003, 5000))
    floyd_warshall = lambda d: lax.fori_loop(0, len(d), lambda k, d: jnp.minimum(d, d[:, k, None] + d[k]), d)  # noqa: E731
    yield Program("floyd-warshall", floyd_warshall, lambda: (uniform(150, 150),))

    def bellman_ford(source: Any, target: Any, length: Any) -> Any:
        def relax(state: Any) -> Any:
            d, _ = state
            new = d.at[target].min(d[source] + length)
            return new, (new < d).any()

        return lax.while_loop(lambda s: s[1], relax, (jnp.full(1003, 1e3).at[0].set(0.0), True))[0]

    yield Program("bellman-ford", bellman_ford, lambda: (*_edges(1003, 5000), uniform(5000)))

    def breadth_first(adjacent: Any, starts: Any) -> Any:
        def level(state: Any) -> Any:
            depth, frontier, i = state
            frontier = (frontier @ adjacent > 0) & (depth < 0)
            return jnp.where(frontier, i, depth), frontier.astype(adjacent.dtype), i + 1

        first = nn.one_hot(starts, len(adjacent), dtype=adjacent.dtype)
        depth = jnp.where(first > 0, 0, -1).astype(jnp.int32)
        return lax.while_loop(lambda s: s[1].any(), level, (depth, first, 1))[0]

    yield Program("breadth-first search", breadth_first, lambda: (np.float32(uniform(300, 300) < 0.01), np.arange(30)))
