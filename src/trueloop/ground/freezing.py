"""Words for freezing that torch reads, and those that it does not."""

from typing import Final

RIGHT: Final = "requires_grad"
MISSPELLED: Final = frozenset((
    "require_grad", "requires_grads", "require_grads", "required_grad", "requires_grad_", "requires_gradient",
    "require_gradient", "requires_gradients", "requries_grad", "requres_grad", "reqires_grad", "requiers_grad",
    "requires_gard", "required_grads", "requiresGrad", "require_grad_",
))  # fmt: skip
"""What people write instead, and torch reads none of as an attribute."""
