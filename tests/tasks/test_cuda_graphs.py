"""A run whose network overwrites the results of its last pass, as torch.compile does with CUDA graphs."""

import functools
import math

import pytest
import torch
from runs import ROOT  # noqa: F401  before the backbones: makes their shape checks possible

from subquad.attention.dba import DBA
from subquad.backbones.sequence import SequenceEncoder
from subquad.specs import DataSpec, SequenceBatch
from subquad.tasks.classification import Classification
from subquad.tasks.regression import Regression
from subquad.training.schedules import constant
from subquad.utils.compiling import compile_network
from subquad.utils.fixed_weights import fixed_weights

SPECS = {
    Classification: DataSpec(max_len=20, vocab=16, classes=10),
    Regression: DataSpec(max_len=20, vocab=16),
}


class Graphs:
    """A backend of torch.compile that fills the results of a pass with NaN when the next one begins."""

    def __init__(self):
        self.results, self.lengths = [], []

    def __call__(self, graph, _):
        def run(*inputs):
            for result in self.results:
                result.fill_(math.nan)
            weights = {t.data_ptr() for t in inputs if isinstance(t, torch.Tensor)}
            results = graph(*inputs)
            floats = [r.detach() for r in results if isinstance(r, torch.Tensor) and r.is_floating_point()]
            self.results = [r for r in floats if r.data_ptr() not in weights]
            self.lengths += [t.shape[1] for t in inputs if isinstance(t, torch.Tensor) and t.dtype == torch.int64]
            return results

        return run


def batches(task):
    for length in (5, 13, 16, 20, 7):
        valid = torch.arange(length) < torch.randint(1, length + 1, (4, 1))
        target = torch.randint(0, 10, (4,)) if task is Classification else torch.randn(4)
        batch = SequenceBatch(torch.randint(1, 16, (4, length)) * valid, valid, target)
        yield batch.padded(8, SPECS[task])


def scores(task, graphs):
    """Losses and metrics of training and evaluation steps."""
    torch.manual_seed(0)
    attention = functools.partial(DBA, d_p=4, d_in=8)
    encoder = functools.partial(SequenceEncoder, attention=attention, layers=1, dim=16, heads=2, ffn=16)
    module = task(SPECS[task], encoder, torch.optim.Adam, constant)
    if graphs is not None:
        torch.compiler.reset()
        compile_network(module.network, backend=graphs)
    gradients = []
    for batch in batches(task):
        module.zero_grad()
        module.training_step(batch).backward()
        gradients += [p.grad.norm() for p in module.parameters()]
    with torch.no_grad(), fixed_weights():
        module.eval()
        for batch in batches(task):
            module.validation_step(batch)
            module.test_step(batch)
    values = [module.train_loss, module.val_loss, module.val_metric, module.test_metric]
    return torch.stack([*(value.compute() for value in values), *gradients])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("task", SPECS)
def test_nothing_is_read_after_the_next_pass_began(task):
    graphs = Graphs()
    torch.testing.assert_close(scores(task, graphs), scores(task, None))
    assert set(graphs.lengths) == {8, 16, 20}
