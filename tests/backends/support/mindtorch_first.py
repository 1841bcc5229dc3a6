"""Makes "import torch" mean the torch API over MindSpore, as programs do before they import the tool."""

from __future__ import annotations

import mindspore
from mindtorch.torch_proxy import initialize_torch_proxy, setup_metadata_patch

__all__ = ["mindspore"]

initialize_torch_proxy()
setup_metadata_patch()
import torch.nn.functional  # noqa: E402, F401
