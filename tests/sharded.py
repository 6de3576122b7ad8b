"""One of two processes that divide batches, and in FSDP parameters too; compared with the same model in one process.

`LOCAL_RANK=<0 or 1> python tests/sharded.py <folder>`; the folder holds `models.pickle`, a dict of factories. The first
process writes `problems.json`: for each name the difference, or null.
"""

import copy
import json
import os
import pickle
import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.testing import assert_close

from subquad.backbones.layerwise import shard
from subquad.specs import DataSpec

SPEC = DataSpec(max_len=13, vocab=11, classes=5)


def problem(whole: nn.Module, mesh: DeviceMesh) -> str | None:
    """Why loss and gradients of the halves of a batch are not those of the batch; None where they are."""
    valid = torch.arange(13) < torch.tensor([[13], [7], [13], [1]])
    inputs = torch.randint(1, 11, valid.shape).masked_fill(~valid, 0)
    half = slice(2 * mesh.get_rank(), 2 * mesh.get_rank() + 2)
    wanted = backward(whole, inputs, valid)
    for kind in ("FSDP", "DDP"):
        divided = copy.deepcopy(whole)
        divided.zero_grad()
        try:
            if kind == "FSDP":
                shard(divided, mesh)
            loss = backward(divided if kind == "FSDP" else DDP(divided), inputs[half], valid[half])
            distributed.all_reduce(loss)
            assert_close(loss / 2, wanted)
            found = {name: p.grad for name, p in divided.named_parameters()}
            for name, p in whole.named_parameters():
                assert (p.grad is None) == (found[name] is None), name
                if p.grad is not None:
                    gradient = found[name].full_tensor() if kind == "FSDP" else found[name]
                    assert_close(gradient, p.grad, msg=lambda said, name=name: f"{name}: {said}")
        except Exception as error:
            return f"{kind}: {type(error).__name__}: {error}"
    return None


def backward(network: nn.Module, inputs: Tensor, valid: Tensor) -> Tensor:
    """The loss, with its gradients in the parameters."""
    loss = network(inputs, valid).square().mean()
    loss.backward()
    return loss.detach()


def main(place: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["LOCAL_RANK"])
    distributed.init_process_group("gloo", init_method=f"file://{place / 'store'}", rank=rank, world_size=2)
    mesh, problems = init_device_mesh("cpu", (2,)), {}
    for name, make in pickle.loads((place / "models.pickle").read_bytes()).items():
        print(name, flush=True)  # noqa: T201  the last one names what killed this process
        torch.manual_seed(0)
        problems[name] = problem(make(spec=SPEC).double().eval(), mesh)
    distributed.destroy_process_group()
    if rank == 0:
        (place / "problems.json").write_text(json.dumps(problems))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
