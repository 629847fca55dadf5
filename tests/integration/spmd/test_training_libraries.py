"""Libraries of others on ranks: training as one process does it, and what each rank logs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, endpoint
from monarch.spmd import setup_torch_elastic_env, torchrun
from tests.integration.spmd.conftest import Trainers, on

pytestmark = pytest.mark.slow

BATCH, COUNT, WIDTH, RATE = 4, 32, 6, 0.05
PATIENCE_S = 600.0


def model_and_data() -> tuple[Any, Any]:
    """The same on every rank."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, 2), torch.utils.data.TensorDataset(torch.randn(COUNT, WIDTH))


def loss_of(model: Any, batch: Any) -> Any:
    return (model(batch[0]) ** 2).mean()


class Plain(Actor):
    """One process, with the batches of all ranks together."""

    @endpoint
    def fit(self, ranks: int) -> list[float]:
        import torch

        model, data = model_and_data()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for batch in torch.utils.data.DataLoader(data, batch_size=BATCH * ranks):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        return model.weight.flatten().tolist()


class Accelerated(Actor):
    """A program with Hugging Face Accelerate."""

    @endpoint
    def fit(self) -> tuple[int, int, list[float]]:
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        plain, data = model_and_data()
        model, optimizer, loader = accelerator.prepare(
            plain, torch.optim.SGD(plain.parameters(), lr=RATE),
            torch.utils.data.DataLoader(data, batch_size=BATCH),
        )  # fmt: skip
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
        weight = accelerator.unwrap_model(model).weight
        return accelerator.process_index, accelerator.num_processes, weight.flatten().tolist()


class Lightened(Actor):
    """A program with Lightning."""

    @endpoint
    def fit(self, folder: str) -> tuple[int, int, list[float]]:
        import lightning
        import torch
        from lightning.pytorch.plugins.environments import TorchElasticEnvironment  # pyright: ignore[reportPrivateImportUsage]

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.data = model_and_data()

            def training_step(self, batch: Any, _index: int) -> Any:
                return loss_of(self.layer, batch)

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=RATE)

        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu", strategy="ddp", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), plugins=[TorchElasticEnvironment()],
            max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder, use_distributed_sampler=False,
        )  # fmt: skip
        # Lightning's own sampler shuffles, and one process has to see the same batches.
        rank, size = trainer.global_rank, trainer.world_size
        mine = torch.utils.data.Subset(module.data, range(rank, COUNT, size))
        trainer.fit(module, torch.utils.data.DataLoader(mine, batch_size=BATCH))
        weight: Any = module.layer.weight
        return trainer.global_rank, trainer.world_size, weight.flatten().tolist()


class Logged(Actor):
    """Logs a loss of each rank."""

    @endpoint
    def to_tensorboard(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        rank = int(os.environ["RANK"])
        with SummaryWriter(f"{folder}/rank_{rank}") as writer:
            for step in range(3):
                writer.add_scalar("loss", rank + 1 / (step + 1), step)

    @endpoint
    def to_wandb(self, folder: str) -> str:
        import wandb

        rank = int(os.environ["RANK"])
        settings = wandb.Settings(silent=True)
        with wandb.init(
            project="digits", group="one", name=f"rank-{rank}", mode="offline", dir=folder,
            settings=settings,
        ) as run:  # fmt: skip
            for step in range(3):
                run.log({"loss": rank + 1 / (step + 1)})
            return run.id

    @endpoint
    def leave_wandb_open(self, folder: str) -> None:
        """Log, and leave it to wandb's exit function to finish the run."""
        import wandb

        wandb.init(
            project="digits", mode="offline", dir=folder, settings=wandb.Settings(silent=True)
        ).log({"loss": 0.5})


LEFT_OPEN = """
import sys
import wandb

settings = wandb.Settings(silent=True)
run = wandb.init(project="digits", mode="offline", dir=sys.argv[1], settings=settings)
run.log({"loss": 0.5})
"""


def test_accelerate_trains_as_one_process_does(trainers: Trainers) -> None:
    pytest.importorskip("accelerate", reason="the ranks need it")
    procs = trainers(gpus=2)
    setup_torch_elastic_env(procs)
    found = on(procs, Accelerated).fit.call().get(timeout=PATIENCE_S)
    check(found.values(), on(trainers(gpus=1), Plain).fit.call_one(2).get(timeout=PATIENCE_S))


def test_accelerate_takes_the_group_that_is_there(trainers: Trainers) -> None:
    pytest.importorskip("accelerate", reason="the ranks need it")
    procs = trainers(gpus=2)
    setup_torch_elastic_env(procs)
    procs.init_process_group()
    found = on(procs, Accelerated).fit.call().get(timeout=PATIENCE_S)
    check(found.values(), on(trainers(gpus=1), Plain).fit.call_one(2).get(timeout=PATIENCE_S))


def test_lightning_trains_as_one_process_does(trainers: Trainers, tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="the ranks need it")
    procs = trainers(gpus=2)
    setup_torch_elastic_env(procs)
    found = on(procs, Lightened).fit.call(str(tmp_path)).get(timeout=PATIENCE_S)
    check(found.values(), on(trainers(gpus=1), Plain).fit.call_one(2).get(timeout=PATIENCE_S))


def check(found: Any, expected: list[float]) -> None:
    """Each rank is in its place, and has the weights that one process gets."""
    places = [(rank, size) for rank, size, _ in found]
    assert places == [(0, 2), (1, 2)]
    for _, _, weights in found:
        assert weights == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_each_rank_has_a_run_in_tensorboard(trainers: Trainers, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the ranks need it")
    procs = trainers(gpus=2)
    setup_torch_elastic_env(procs)
    on(procs, Logged).to_tensorboard.call(str(tmp_path)).get(timeout=PATIENCE_S)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for rank in range(2):
        read: Any = EventAccumulator(str(tmp_path / f"rank_{rank}"))
        read.Reload()
        found = [(one.step, one.value) for one in read.Scalars("loss")]
        expected = [(step, rank + 1 / (step + 1)) for step in range(3)]
        assert found == [(step, pytest.approx(value)) for step, value in expected]


def test_each_rank_has_an_offline_run_of_wandb(trainers: Trainers, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the ranks need it")
    procs = trainers(gpus=2)
    setup_torch_elastic_env(procs)
    ids = on(procs, Logged).to_wandb.call(str(tmp_path)).get(timeout=PATIENCE_S).values()
    written = {path.stem for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert written == {f"run-{one}" for one in ids}
    assert len(written) == 2


def test_a_run_of_wandb_that_an_actor_leaves_open_is_finished_with_the_rank(
    trainers: Trainers, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="the ranks need it")
    procs = trainers(gpus=2)
    on(procs, Logged).leave_wandb_open.call(str(tmp_path)).get(timeout=PATIENCE_S)
    procs.stop().get()
    check_finished(tmp_path, 2)


def test_a_run_of_wandb_that_a_script_leaves_open_is_finished_at_its_end(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the ranks need it")
    script = tmp_path / "train.py"
    script.write_text(LEFT_OPEN)
    torchrun(["--nproc-per-node", "2", str(script), str(tmp_path)])
    check_finished(tmp_path, 2)


def check_finished(folder: Path, count: int) -> None:
    """There are so many offline runs, each with its loss and its end."""
    written = list(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(written) == count
    for path in written:
        kinds = record_kinds(path.read_bytes())
        assert "history" in kinds
        assert "exit" in kinds


def record_kinds(data: bytes) -> list[str]:
    """The kinds of the records in a file of wandb: a log of LevelDB, here of one block."""
    from wandb.proto import wandb_internal_pb2

    kinds: list[str] = []
    at = 7  # after the head of the file
    while at < len(data):
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        record: Any = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
        record.ParseFromString(data[at + 7 : at + 7 + length])
        kinds.append(record.WhichOneof("record_type"))
        at += 7 + length
    return kinds
