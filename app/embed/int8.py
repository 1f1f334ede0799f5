"""Linear layers in int8 for processors with VNNI but without AMX; with torch_model.py the only file that knows torch.

Invariant: weights are scaled per output channel and activations per token, never per tensor: one outlier token or
channel, and e5 has them, would cost all others their precision (cosine 0.958 instead of 0.999 to float32).
"""

from typing import Final

import torch
from torch import Tensor, nn

LEVELS: Final = 127
_ZERO_POINT: Final = 128
_TINY: Final = 1e-12


class Int8Linear(nn.Module):  # type: ignore[misc]
    """A frozen nn.Linear; oneDNN multiplies uint8 activations (zero point 128) with packed int8 weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self._scale = weight.abs().amax(dim=1).clamp_min(_TINY) / LEVELS
        levels = (weight / self._scale[:, None]).round().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(levels, None)
        self._zeros = torch.zeros(len(levels), dtype=torch.int64)
        self._bias = torch.zeros(len(levels))
        if linear.bias is not None:
            self._bias = linear.bias.detach().float()

    def forward(self, values: Tensor) -> Tensor:
        """(..., in) to (..., out) in float32."""
        rows = values.reshape(-1, values.shape[-1])
        largest = torch.maximum(rows.amax(dim=1, keepdim=True), rows.amin(dim=1, keepdim=True).neg_())
        scale = largest.clamp_min_(_TINY).div_(LEVELS)
        # The cast truncates, so the half rounds.
        levels = rows.mul(scale.reciprocal()).add_(_ZERO_POINT + 0.5).to(torch.uint8)
        product = torch.ops.onednn.qlinear_pointwise(
            levels,
            1.0,
            _ZERO_POINT,
            self._weight,
            self._scale,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return torch.addcmul(self._bias, product, scale).view(*values.shape[:-1], -1)


def quantise(model: nn.Module) -> None:
    """Replace every linear layer of `model` by its int8 form, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
