"""A small model can fit one batch of each sequence task, and a run of a few steps works."""

import pytest
import torch
from hydra.utils import instantiate
from runs import TINY, composed, prepared, trained

SYNTHETIC = ("scale=smoke", "data=synthetic")
TASKS = {
    "lra/listops": SYNTHETIC,
    "lra/text": SYNTHETIC,
    "lra/retrieval": SYNTHETIC,
    "lra/image": SYNTHETIC,
    "lra/pathfinder32": SYNTHETIC,
    "uea/japanese_vowels": ("scale=smoke",),
    "tser/tecator": ("scale=smoke",),
    "tokens/custom": SYNTHETIC,
}
SMALL = (
    "backbone.layers=2", "backbone.dim=32", "backbone.heads=2", "backbone.ffn=64", "backbone.dropout=0.0",
    "attention.d_p=8", "attention.d_in=16", "recipe.batch_size=6",
)  # fmt: skip
PER_TASK = {
    "lra": ("backbone.attention_dropout=0.0", "backbone.order=pre", "backbone.embed_norm=false",
            "backbone.tie_layers=false", "backbone.init_std=null", "backbone.pooling=mean"),
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_one_batch_is_learnt_by_heart(data, tmp_path, task):
    """The loss falls below 0.1 nat, in regression below a tenth of the targets' variance."""
    family = PER_TASK.get(task.partition("/")[0], ())
    config = composed(data, tmp_path, f"task={task}", *TASKS[task], "attention=dba", *SMALL, *family)
    rows = prepared(config)
    module = instantiate(config.task.module, _convert_="all")(spec=rows.spec)
    batch = next(iter(rows.train_dataloader()))
    goal = 0.1 if rows.spec.classes else 0.1 * float(batch.target.var())
    optimizer = torch.optim.Adam(module.parameters(), 3e-3)
    losses = []
    while len(losses) < 100 and (not losses or losses[-1] > goal):
        optimizer.zero_grad()
        loss = module.training_step(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] <= goal < losses[0]


def runs():
    """Softmax on 1,024 pixels is slow; Retrieval is trained in test_byte_pairs."""
    for task in (name for name in TASKS if name != "lra/retrieval"):
        for attention in ("dba", "softmax"):
            slow = attention == "softmax" and task in ("lra/image", "lra/pathfinder32")
            yield pytest.param(task, attention, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize(("task", "attention"), list(runs()))
def test_a_few_steps_of_a_run(data, outputs, task, attention):
    overrides = (f"task={task}", *TASKS[task], f"attention={attention}", *TINY, "recipe.batch_size=8")
    record = trained(composed(data, outputs, *overrides))
    metric = "rmse" if task.startswith("tser") else "accuracy"
    assert record.metrics.keys() == {"train/loss", "val/loss", f"val/{metric}", f"test/{metric}"}
    assert record.steps > 0
