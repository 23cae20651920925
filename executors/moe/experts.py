"""The feed-forward networks of the experts of one layer, with stacked weights."""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from executors.moe.grouped_linear import grouped_linear


class Experts(nn.Module):
    """Two-layer feed-forward networks (Eq. 5.1), one for each expert.

    The weights of all experts are 3-d parameters, named and laid out as Hugging Face's, so PEFT's
    ``target_parameters`` adapts them:

    - ``up_proj`` ``(experts, intermediate, hidden)``; in a gated network (SwiGLU) ``gate_up_proj``
      ``(experts, 2 * intermediate, hidden)`` instead, the gate's rows first;
    - ``down_proj`` ``(experts, hidden, intermediate)``;
    - with biases, the same names with ``_bias``, without the last dimension.

    They are uninitialised until ``initialize_`` or a copy fills them.
    """

    down_proj_bias: nn.Parameter | None

    def __init__(
        self,
        experts: int,
        hidden: int,
        intermediate: int,
        *,
        activation: str,
        gated: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """Allocate the weights.

        Args:
            activation: its name in Hugging Face configurations.
            gated: whether the activated half multiplies the other.
            dropout: dropout of the intermediate features, in training.

        Raises:
            ValueError: there is no expert, or the activation is unknown.
        """
        super().__init__()
        if experts < 1:
            raise ValueError(f"a layer of {experts} experts; it needs at least one")
        if activation not in ACT2FN:
            raise ValueError(f"activation {activation!r} is not one that transformers knows")
        self.activation: nn.Module = ACT2FN[activation]
        self.dropout = nn.Dropout(dropout)
        self.gated = gated
        self.inward_name = "gate_up_proj" if gated else "up_proj"
        inward = 2 * intermediate if gated else intermediate
        self.register_parameter(self.inward_name, nn.Parameter(torch.empty(experts, inward, hidden)))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, intermediate))
        inward_bias = nn.Parameter(torch.empty(experts, inward)) if bias else None
        self.register_parameter(f"{self.inward_name}_bias", inward_bias)
        self.register_parameter(
            "down_proj_bias", nn.Parameter(torch.empty(experts, hidden)) if bias else None
        )

    @torch.no_grad()
    def initialize_(self, standard_deviation: float, generator: torch.Generator) -> None:
        """Draw each expert's weights, as Hugging Face does: normally distributed, and biases of zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("_bias"):
                parameter.zero_()
            else:
                parameter.normal_(0.0, standard_deviation, generator=generator)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply to each row the network of its expert.

        An expert without rows has no cost; its gradients are zeros.

        Args:
            rows: ``(pairs, hidden)``, sorted by expert.
            counts: ``(experts,)`` int64, rows of each expert.

        Returns:
            ``(pairs, hidden)``.

        Raises:
            ValueError: the counts do not fit the rows or the experts.
        """
        inward: Tensor = getattr(self, self.inward_name)
        inward_bias: Tensor | None = getattr(self, f"{self.inward_name}_bias")
        features = grouped_linear(rows, inward, inward_bias, counts)
        if self.gated:
            gate, up = features.chunk(2, dim=-1)
            features = self.activation(gate) * up
        else:
            features = self.activation(features)
        return grouped_linear(self.dropout(features), self.down_proj, self.down_proj_bias, counts)
