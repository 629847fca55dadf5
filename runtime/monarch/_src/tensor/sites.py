"""The call sites of this process. Frames of torch and of this runtime are passed over."""

from __future__ import annotations

import os
from pathlib import Path

from monarch._src import errors
from monarch._src.tensor.state.call_sites import CallSites
from monarch._src.tensor.torch_modules import torch

sites = CallSites(
    (str(Path(errors.__file__).parent) + os.sep, str(Path(torch.__file__).parent) + os.sep)
)
