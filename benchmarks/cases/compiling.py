"""What a compile costs: a transformer's gradient with 2 and with 12 layers. Read the columns of the first call."""

from __future__ import annotations

from harness.case import Case, Gradient

import jax
from cases.transformers import model_arguments, model_loss, model_loss_torch


def cases() -> list[Case]:
    return [
        Case(
            f"transformer gradient, {layers} layers",
            jax.grad(model_loss),
            lambda layers=layers: model_arguments(layers, width=128, batch=1, sequence=64),
            torch=Gradient(model_loss_torch, 1),
            tolerance=1e-3,
        )
        for layers in (2, 12)
    ]
