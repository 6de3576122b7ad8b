"""Steps of every task on tensors without data: an operation that reads a value, which makes a GPU wait, raises."""

from types import SimpleNamespace

import pytest
from hydra.utils import instantiate
from runs import TINY, composed, prepared

from subquad.data.microbatches import cut

TASKS = {
    "lra/listops": (),
    "uea/basic_motions": (),
    "tser/covid3month": ("data=synthetic",),
    "mlm/text": ("data=synthetic",),
    "vqa_v2": ("data=synthetic",),
    "cifar/cifar10": ("data=synthetic", "backbone=deit_tiny", "backbone.heads=2"),
}


@pytest.mark.parametrize("task", TASKS)
def test_no_step_reads_a_value_from_the_device(data, outputs, task):
    small = TINY if "backbone=deit_tiny" not in TASKS[task] else ()
    config = composed(data, outputs, f"task={task}", "scale=smoke", "attention=softmax", *TASKS[task], *small)
    rows = prepared(config)
    indices = next(iter(rows.train_dataloader().batch_sampler))
    batch, pieces = rows.whole_batch(indices), cut(rows.whole_batch(indices), indices, 2)
    module = instantiate(config.task.module, _convert_="all")(spec=rows.spec).to("meta")
    module.trainer = SimpleNamespace(world_size=1, accumulate_grad_batches=2)
    for part in (batch, *pieces):
        module.training_step(part.to("meta")).backward()
    module.eval()
    module.validation_step(batch.to("meta"))
    module.test_step(batch.to("meta"))
