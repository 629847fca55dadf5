"""The actor of distributed tensors on each rank: one for each stream.

Runs in: procs, from the first use of the stream on their mesh until they stop. The constructor
imports torch, so this module does not.
"""

from __future__ import annotations

import pickle
from typing import Any

from monarch._src.actor.context import current
from monarch._src.actor.endpoint import Actor, endpoint
from monarch._src.actor.runtime import runtime
from monarch._src.system.imports import turn_to_import
from monarch._src.tensor.state.instructions import MAIN, Failure

MOST_AS_BYTES = 1 << 16
SEED = 67280421310721
"""The seed of all ranks at first: that with which torch's generators of GPUs begin."""
BY_CHANCE = 1 << 32
"""The least seed that torch draws for the generator of a CPU; nearly all of 53 bits are above."""


class TensorWorker(Actor):
    """Runs the operations of one stream on one rank.

    A collective among them may wait for another rank, so it does not share the main thread.
    """

    __monarch_label__ = "the tensors"
    __monarch_main_thread__ = "never"
    __live_summary__ = "_memory_texts"

    def __init__(self, key: int, stream: str) -> None:
        """`key`: equal for all streams of a driver."""
        # Modules of an actor may import the same ones at the same time.
        with turn_to_import():
            from monarch._src.tensor.ranks.runner import Runner
            from monarch._src.tensor.ranks.streams import rank_state
            from monarch._src.tensor.torch_modules import torch

        context = current.get()
        assert context is not None
        self._torch: Any = torch
        self._store: Any = None
        self._rank = context.actor_instance.rank.rank
        self._stream = stream
        own = runtime()
        assert own.proc_ref is not None
        incarnation = own.known.incarnation(own.proc_ref.uid, self._rank)
        self._runner: Any = Runner(rank_state(key, self._rank, incarnation), stream)
        if torch.initial_seed() >= BY_CHANCE:  # the program has not seeded this process
            torch.default_generator.manual_seed(SEED)

    def _memory_texts(self) -> dict[str, str]:
        """The memory of the rank's tensors. Any thread."""
        from monarch._src.tensor.ranks.memory import memory_texts

        texts = memory_texts(list(self._runner.values.values()))
        return texts if self._stream == MAIN else {"stream": self._stream, **texts}

    @endpoint
    def run(self, data: bytes) -> Any:
        """Run a batch. The rank that the client asks for tensors answers with them.

        Raises nothing: the runner keeps a failure in place of the results of an operation.
        """
        batch, asked, numbers = pickle.loads(data)
        with self._torch.no_grad():
            self._runner.run(batch)
            return self._fetch(numbers) if asked == self._rank else None

    @endpoint
    def use_device(self, device: str) -> str:
        """Have tensors on `"cpu"` or `"cuda"` from here on; returns why that is impossible."""
        try:
            self._runner.use_device(device)
        except RuntimeError as error:
            return str(error)
        return ""

    @endpoint
    def fetch(self, numbers: list[int]) -> list[Any] | Failure:
        """The values of these tensors, or the failure of the first that has none."""
        with self._torch.no_grad():
            return self._fetch(numbers)

    def _fetch(self, numbers: list[int]) -> list[Any] | Failure:
        found: list[Any] = []
        for number in numbers:
            value = self._runner.values.get(number)
            if isinstance(value, Failure):
                return value
            if value is None:
                error = KeyError(number)
                return self._runner.failure("fetch_shard", 0, error)
            try:
                found.append(self._sent(value))
            except RuntimeError as error:  # of a GPU, whose operations run later
                return self._runner.failure("fetch_shard", 0, error)
        return found

    def _sent(self, value: Any) -> Any:
        """A tensor as it is sent: a small one as bytes, and none with more memory than it needs.

        From a GPU it comes to the CPU, since the client need not have a GPU.
        """
        value = value.cpu().resolve_conj().resolve_neg()
        nbytes = value.numel() * value.element_size()
        if 0 < nbytes <= MOST_AS_BYTES:
            # An axis of size 1 may have any stride, which reshape(-1) keeps and view refuses.
            flat = value.contiguous().as_strided((value.numel(),), (1,))
            data = flat.view(self._torch.uint8).numpy().tobytes()
            return value.dtype, tuple(value.shape), data
        value = value.contiguous()
        return value.clone() if value.untyped_storage().nbytes() > nbytes else value

    @endpoint
    def call(self, function: int, packed: bytes, numbers: list[int]) -> Any:
        """Call a function of the program with tensors of this rank, and return its result."""
        return self._runner.call(function, packed, numbers)

    @endpoint
    def describe(self, number: int) -> Any:
        """The shapes of the result of a function that could not be computed before it ran."""
        return self._runner.describe(number)

    @endpoint
    def serve_store(self) -> Any:
        """Serve the store of a process group whose ranks are on several hosts."""
        from monarch._src.spmd.rendezvous import StoreServer, TcpPlace

        server = StoreServer.open(one_host=False)
        self._store = (self._store, server)  # as long as groups may use it
        return TcpPlace(server.host, server.port)
