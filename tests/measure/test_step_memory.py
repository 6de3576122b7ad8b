"""The traced memory of a training step: compared with a real step on the CPU, and with what it must depend on."""

from dataclasses import fields
from functools import partial

import pytest
import torch
from hydra.utils import instantiate

from subquad.config.compose import compose_run
from subquad.measure.inputs import random_batch
from subquad.measure.memory import LiveTensors
from subquad.measure.shapes import fake_tensors
from subquad.measure.step_memory import USABLE, cheapest, evaluation_peak, like_a_gpu, real_peak, states_of, step_peak
from subquad.planning.model_size import spec_of
from subquad.utils.devices import as_on_a_gpu
from subquad.utils.errors import UserError

SIZES = ("backbone.layers=2", "backbone.dim=32", "backbone.heads=2", "backbone.ffn=64", "scale=smoke", "trainer=cpu")
CELLS = [
    ("task=lra/listops", "attention=softmax", *SIZES),
    ("task=lra/listops", "attention=dba", *SIZES),
    ("task=uea/heartbeat", "attention=ecoformer", *SIZES),
    ("task=uea/heartbeat", "attention=reformer", *SIZES),
    ("task=mlm/text", "attention=linformer", *SIZES),
    ("task=digits", "attention=softmax", "scale=smoke"),
    pytest.param(("task=vqa_v2", "attention=dba", "scale=smoke"), marks=pytest.mark.slow),
]
ON_A_CPU = [
    *(("task=lra/listops", f"attention={name}", *SIZES) for name in ("softmax", "dba", "cosformer", "local")),
    ("task=lra/listops", "attention=softmax", *SIZES, "data.max_length=1280"),  # too many keys for the short kernel
    ("task=lra/listops", "attention=reformer", *SIZES, "trainer.precision=bf16-mixed"),
    ("task=mlm/text", "attention=linformer", *SIZES),
    *(
        pytest.param((*model, "scale=smoke"), marks=pytest.mark.slow)
        for model in (
            ("task=lra/text", "backbone=blrp"),
            ("task=lra/image", "backbone=s4"),
            ("task=vqa_v2", "attention=dba"),
        )
    ),
]
ROWS = 8


def built(data, *overrides):
    config = compose_run([*overrides, "data=synthetic", f"paths.data={data}"])
    spec = spec_of(config.data, prepare=True)
    return instantiate(config.task.module, _convert_="all")(spec=spec), spec


def fixed(module, states=0):
    sizes = {True: 0, False: 0}
    for p in module.parameters():
        sizes[p.requires_grad] += 4 * p.numel()
    return sizes[False] + (2 + states) * sizes[True] + sum(b.numel() * b.element_size() for b in module.buffers())


@pytest.mark.parametrize("overrides", CELLS, ids=lambda words: " ".join(words[:2]))
@pytest.mark.slow
def test_the_trace_agrees_with_a_real_step(overrides, data):
    """Without dropout, whose masks take four bytes an entry on a CPU and one on a GPU."""
    module, spec = built(data, *overrides)
    for part in module.modules():
        if hasattr(part, "p"):
            part.p = 0.0
        if hasattr(part, "site"):
            part.site = type(part.site)(**{n: getattr(part.site, n) for n in part.site.__slots__} | {"dropout": 0.0})
    traced = step_peak(module, spec, ROWS, "32-true", states=0)
    with as_on_a_gpu():
        real = real_peak(module, spec, ROWS, "32-true", "cpu")
    assert traced - fixed(module) == pytest.approx(real - fixed(module), rel=0.05)


@pytest.mark.parametrize("overrides", ON_A_CPU, ids=lambda words: " ".join(words[:2]))
@pytest.mark.slow
def test_the_trace_of_a_cpu_agrees_with_its_real_steps_and_evaluations(overrides, data):
    """With dropout, mixed precision and the package's kernels; batches are alive before live tensors are counted."""
    module, spec = built(data, *overrides)
    precision = "bf16-mixed" if "trainer.precision=bf16-mixed" in overrides else "32-true"
    step = step_peak(module, spec, ROWS, precision, states=0, device="cpu")
    evaluation = evaluation_peak(module, spec, ROWS, precision, "cpu")
    batch = random_batch(module.network, spec, ROWS)
    batches = 2 * sum(x.nbytes for x in (getattr(batch, field.name) for field in fields(batch)) if x is not None)
    assert step - batches - fixed(module) == pytest.approx(
        real_peak(module, spec, ROWS, precision, "cpu") - fixed(module), rel=0.15
    )
    module.eval()
    with torch.no_grad(), torch.autocast("cpu", enabled=precision != "32-true"), LiveTensors() as memory:
        module.loss(module(batch), module.targets(batch))
    assert evaluation - batches - fixed(module, -1) == pytest.approx(memory.peak, rel=0.15)


@pytest.mark.parametrize("attention", ["softmax_explicit", "dba", "reformer"])
@pytest.mark.slow
def test_evaluation_batches_of_a_gpu_need_less_memory_than_a_training_step(attention, data):
    """Twice the rows of a training step; four times needed 1.1 of its memory with softmax written out on LRA Text."""
    module, spec = built(data, "task=lra/text", f"attention={attention}", *SIZES, "backbone.layers=4")
    step = step_peak(module, spec, ROWS, "bf16-mixed", states=0) - fixed(module)
    module.eval()
    with fake_tensors(module, ()), like_a_gpu("bf16-mixed"):
        batch = random_batch(module.network, spec, 2 * ROWS)
        with torch.no_grad(), LiveTensors() as memory:
            module.loss(module(batch), module.targets(batch))
    assert memory.peak < step


@pytest.mark.slow
def test_states_precision_and_rows_count(data):
    module, spec = built(data, "task=lra/listops", "attention=softmax", *SIZES)
    plain = step_peak(module, spec, ROWS, "32-true", states=0)
    trained = sum(4 * p.numel() for p in module.parameters())
    assert step_peak(module, spec, ROWS, "32-true", states=2) == plain + 2 * trained
    activations = plain - fixed(module)
    assert step_peak(module, spec, 2 * ROWS, "32-true", states=0) - fixed(module) > 1.9 * activations
    mixed = step_peak(module, spec, ROWS, "bf16-mixed", states=0) - fixed(module)
    assert 0.4 * activations < mixed < 0.9 * activations


@pytest.mark.slow
def test_a_whole_batch_counts_where_mechanisms_are_fitted_to_it_and_not_where_they_are_redrawn(data):
    def peaks(attention):
        module, spec = built(data, "task=uea/heartbeat", f"attention={attention}", *SIZES)
        return [step_peak(module, spec, 2, "32-true", 0, whole) for whole in (2, 64)]

    one, whole = peaks("performer")
    assert one == whole
    one, whole = peaks("ecoformer")
    assert whole > 1.5 * one


@pytest.mark.slow
def test_a_trace_changes_nothing(data):
    module, spec = built(data, "task=uea/heartbeat", "attention=ecoformer", *SIZES)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    step_peak(module, spec, ROWS, "bf16-mixed", states=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(type(p) is torch.nn.Parameter and p.grad is None for p in module.parameters())


@pytest.mark.slow
def test_attention_counts_as_fused_and_written_out_weights_do_not(data):
    sizes = (*SIZES, "task=lra/listops", "data.max_length=1024")
    peaks = [
        step_peak(*built(data, f"attention={name}", *sizes), ROWS, "32-true", 0)
        for name in ("softmax", "softmax_explicit")
    ]
    weights = 4 * ROWS * 2 * 1024**2  # of one layer with two heads
    assert peaks[0] < peaks[1] - 2 * weights


@pytest.mark.parametrize(
    ("limit", "way", "recomputed"),
    [(12, (False, 1), 1), (9, (True, 1), 1), (8, (False, 2), 2), (5, (False, 3), 2), (1.8, (True, 6), 6), (1, None, 0)],
)
def test_the_first_way_that_fits_is_chosen(limit, way, recomputed):
    """A row takes a megabyte, a quarter less if layers are recomputed; no microbatch has a single row."""
    asked = []

    def peak(again, count):
        asked.append(count)
        return (0.75 if again else 1) * 12 / count * 10**6

    memory = round(limit * 10**6 / USABLE) + 1
    assert cheapest(peak, 12, memory, lambda: True) == way
    assert len(asked) <= 8
    assert cheapest(peak, 12, memory, lambda: False) == (way if limit >= 9 else None)
    assert cheapest(peak, 12, memory, lambda: True, again=True) == (way and (True, recomputed))


@pytest.mark.parametrize(("name", "states"), [("SGD", 0), ("AdamW", 2)])
def test_what_an_optimiser_stores_is_found_by_a_step(name, states):
    assert states_of(partial(getattr(torch.optim, name), lr=0.1)) == states


def test_optimisers_that_need_a_closure_and_impossible_values():
    assert states_of(torch.optim.LBFGS) >= 0
    with pytest.raises(UserError, match=r"The optimiser cannot take a step \(int too big to convert\); choose other"):
        states_of(partial(torch.optim.RAdam, eps=10**30, foreach=True))
