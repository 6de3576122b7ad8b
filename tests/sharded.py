"""One of two processes that divide batches, and in FSDP parameters too; compared with the same model in one process.

`LOCAL_RANK=<0 or 1> python tests/sharded.py <folder>`; the folder holds `models.pickle`, a dict of factories. The first
process writes `problems.json`: for each name the difference, or null. A name that ends in " half" is compared in mixed
precision.
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
from subquad.blocks.layer import Layer
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


def problem_of_half(whole: nn.Module, mesh: DeviceMesh) -> str | None:
    """As `problem`, in mixed precision: layers are gathered in bfloat16, except for their norms."""
    valid = torch.arange(13) < torch.tensor([[13], [7], [13], [1]])
    inputs = torch.randint(1, 11, valid.shape).masked_fill(~valid, 0)
    half = slice(2 * mesh.get_rank(), 2 * mesh.get_rank() + 2)
    divided, seen = copy.deepcopy(whole), set()
    try:
        shard(divided, mesh, torch.bfloat16)
        for part in divided.modules():
            if isinstance(part, nn.Linear | nn.LayerNorm):
                part.register_forward_pre_hook(
                    lambda part, _: seen.add((isinstance(part, nn.LayerNorm), part.weight.dtype))
                )
        with torch.autocast("cpu", torch.bfloat16):
            backward(divided, inputs[half], valid[half])
            backward(whole, inputs, valid)
        layers = any(isinstance(part, Layer) for part in whole.modules())
        assert ((False, torch.bfloat16) in seen) == layers, seen
        assert (True, torch.bfloat16) not in seen, seen
        found = {name: p.grad.full_tensor() for name, p in divided.named_parameters() if p.grad is not None}
        wanted = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
        assert {grad.dtype for grad in found.values()} == {torch.float32}
        error = torch.stack([(found[name] - grad).norm() for name, grad in wanted.items()]).norm()
        assert error < 0.05 * torch.stack([grad.norm() for grad in wanted.values()]).norm(), error
    except Exception as error:
        return f"{type(error).__name__}: {error}"
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
        model = make(spec=SPEC).eval()
        problems[name] = problem_of_half(model, mesh) if name.endswith(" half") else problem(model.double(), mesh)
    if rank == 0:
        (place / "problems.json").write_text(json.dumps(problems))
    distributed.barrier()
    os._exit(0)  # where the interpreter ends as usual, a thread of gloo can abort the process after all is done


if __name__ == "__main__":
    main(Path(sys.argv[1]))
