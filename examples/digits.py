"""Trains a small convolutional network on scikit-learn's handwritten digits (1797 real images), on Ferrule.

    JAX_PLATFORMS=ferrule,cpu python examples/digits.py     (xpu,cpu: on an Intel GPU)

Prints the devices, the compile time, steps per second and the test accuracy; then repeats the training on XLA's own CPU
backend with the same seed and prints the largest difference between the two loss curves.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

# Two platforms in one process: Ferrule's, and XLA's to compare with.
os.environ.setdefault("JAX_PLATFORMS", "ferrule,cpu")

import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import jax

BATCH = 128
ACCURACY_GOAL = 0.97


class Network(nn.Module):
    """Two convolutions with pooling, one hidden layer; 8x8 grey images in, ten classes out."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(16, (3, 3))(x))
        x = nn.relu(nn.Conv(32, (3, 3))(x))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(10)(x)


def load() -> tuple[np.ndarray, ...]:
    """Training and test images (N, 8, 8, 1) in 0..1, and their labels."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., None]
    return tuple(train_test_split(images, digits.target.astype(np.int32), test_size=0.2, random_state=0))


def train(device: jax.Device, data: tuple[np.ndarray, ...], steps: int, show: bool) -> dict[str, Any]:
    """Trains from seed 0 on one device; returns losses, accuracy and times."""
    images, test_images, labels, test_labels = data
    network, optimizer = Network(), optax.adam(1e-3)
    order = np.random.default_rng(0)

    with jax.default_device(device):
        params = network.init(jax.random.key(0), images[:1])
        state = optimizer.init(params)

        def loss_of(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y).mean()

        def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any, jax.Array]:
            loss, grads = jax.value_and_grad(loss_of)(params, x, y)
            updates, state = optimizer.update(grads, state)
            return optax.apply_updates(params, updates), state, loss

        begin = time.perf_counter()
        compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, images[:BATCH], labels[:BATCH]).compile()
        compile_time = time.perf_counter() - begin

        losses = []
        begin = time.perf_counter()
        with tqdm(
            range(steps), desc="training", unit="step", disable=not show, file=sys.stdout, mininterval=0.5
        ) as progress:
            for number in progress:
                rows = order.choice(len(images), BATCH, replace=False)
                x, y = jax.device_put((images[rows], labels[rows]))
                params, state, loss = compiled(params, state, x, y)
                losses.append(loss)
                if show and number % 20 == 0:
                    progress.set_postfix(loss=f"{float(loss):.4f}", refresh=False)
        jax.block_until_ready(params)
        seconds = time.perf_counter() - begin

        answers = jax.jit(network.apply)(params, test_images).argmax(-1)
        accuracy = float((np.asarray(answers) == test_labels).mean())
    curve = np.array([float(x) for x in losses])
    return {"losses": curve, "accuracy": accuracy, "compile": compile_time, "rate": steps / seconds}


def main() -> int:
    """The demo."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--no-compare", action="store_true", help="do not repeat the training on XLA's CPU backend")
    chosen = options.parse_args()

    data = load()
    device = jax.devices()[0]
    print(f"devices: {jax.devices()}, {device.device_kind}")
    print(f"training on {len(data[0])} images of digits, testing on {len(data[1])}")
    ours = train(device, data, chosen.steps, show=True)
    print(f"compile time of the training step: {ours['compile']:.2f} s")
    print(f"steps per second: {ours['rate']:.0f}")
    print(f"loss: {ours['losses'][0]:.4f} at the first step, {ours['losses'][-1]:.4f} at the last")
    print(f"test accuracy: {ours['accuracy']:.2%}")
    if not chosen.no_compare:
        theirs = train(jax.devices("cpu")[0], data, chosen.steps, show=False)
        difference = np.abs(ours["losses"] - theirs["losses"]).max()
        print(
            f"XLA:CPU with the same seed: compile {theirs['compile']:.2f} s, {theirs['rate']:.0f} steps per second, "
            f"test accuracy {theirs['accuracy']:.2%}"
        )
        print(f"largest difference between the loss curves: {difference:.2e}")
    if chosen.steps >= 400 and ours["accuracy"] < ACCURACY_GOAL:
        print(f"the accuracy is below {ACCURACY_GOAL:.0%}: something is wrong", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
