"""Memory and ratios computed by hand, and a small benchmark."""

import pytest
import torch
from runs import ROOT  # noqa: F401  before the backbones: makes their shape checks possible

from subquad.attention.softmax import Softmax
from subquad.cli import bench, bench_long
from subquad.measure.benchmark import Measured, Setting, measure
from subquad.measure.growth import NO_ATTENTION
from subquad.measure.memory import LiveTensors, process_peak, reset_peak
from subquad.measure.timing import Timing, interleave
from subquad.utils.errors import UserError

FLOAT = 4


def test_live_tensors_of_a_forward_pass():
    x = torch.ones(100)
    with LiveTensors() as memory:
        y = x + 1  # 100 numbers live
        z = y + 1  # 200
        del y  # 100
        z = z + 1  # 200, then 100
        view = z.view(10, 10)  # a view has no storage of its own
        total = view.sum()  # 101
    assert memory.peak == 200 * FLOAT
    assert memory.live == 101 * FLOAT
    assert total.item() == 400


def test_live_tensors_of_a_backward_pass():
    weight = torch.ones(1000, requires_grad=True)
    with LiveTensors() as memory:
        squared = weight * weight  # 1000 numbers
        loss = squared.sum()  # 1 more
        del squared
        after_forward = memory.live
        loss.backward()
    assert after_forward == 1 * FLOAT  # the product is not kept: its backward pass needs the weight only
    # 1 (loss) + 1 (its gradient, expanded without storage) + two partial gradients and their sum
    assert 2000 * FLOAT < memory.peak <= 3002 * FLOAT
    assert memory.live == (1000 + 1) * FLOAT  # the loss and weight.grad


def test_activations_kept_for_the_backward_pass_are_counted():
    x = torch.ones(1000, requires_grad=True)
    with LiveTensors() as memory:
        for_training = x.exp().exp().exp()  # each exp keeps its result
        assert memory.live == 3000 * FLOAT
    del for_training
    with torch.no_grad(), LiveTensors() as memory:
        x.exp().exp().exp()
    assert memory.peak == 2000 * FLOAT


def test_work_in_place_and_old_tensors_cost_nothing():
    x = torch.ones(1000)
    with LiveTensors() as memory:
        x.add_(1)
        x.mul_(x)
    assert memory.peak == memory.live == 0


@pytest.mark.slow
def test_the_count_is_the_same_every_time():
    def count():
        with LiveTensors() as memory:
            torch.nn.functional.layer_norm(torch.ones(50, 20), (20,)).softmax(-1)
        return memory.peak

    assert len({count() for _ in range(3)}) == 1


def test_ratios_compare_the_same_round():
    a, b = Timing((2.0, 8.0, 3.0)), Timing((1.0, 2.0, 3.0))
    assert a.median == 3.0
    assert a.ratio(b) == 2.0
    assert b.ratio(a) == 0.5
    assert a.spread(b) == (1.0, 4.0)


def test_sides_take_turns_and_warm_up_uncounted():
    calls = []
    timings = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=2)
    assert calls == ["a", "b"] * 5
    assert [len(timings[name].seconds) for name in ("a", "b")] == [3, 3]
    assert all(second > 0 for second in timings["a"].seconds)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("level", ["layer", "model"])
@pytest.mark.slow
def test_a_benchmark_returns_every_side(level, mode):
    setting = Setting(level=level, mode=mode, length=16, dim=8, heads=2, ffn=16, layers=1)

    def explicit(site):
        return Softmax(site, fused=False)

    results = measure({"softmax": Softmax, "explicit": explicit}, setting, rounds=2)
    names = {"softmax", "explicit"} | ({NO_ATTENTION} if level == "model" else set())
    assert results.keys() == names
    for measured in results.values():
        assert len(measured.timing.seconds) == 2
        assert measured.peak > 0
    if level == "model":
        assert results[NO_ATTENTION].peak < results["softmax"].peak


@pytest.mark.parametrize(
    ("compiled", "mode"), [(False, []), (True, [{}]), ("reduce-overhead", [{"mode": "reduce-overhead"}])]
)
def test_a_benchmark_compiles_in_the_mode_that_is_set(monkeypatch, compiled, mode):
    calls = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda _, backend, **settings: calls.append(settings))
    setting = Setting(level="layer", mode="inference", length=8, dim=8, heads=2, compiled=compiled)
    measure({"softmax": Softmax}, setting, rounds=1)
    assert calls == mode


def test_a_plot_of_a_benchmark_shows_the_first_of_each_list(monkeypatch, tmp_path):
    def measured(factories, setting, *_, **__):
        seconds = setting.batch + 10 * setting.compiled + 100 * (setting.dim == 8)
        return {name: Measured(timing=Timing((seconds,)), peak=1) for name in factories}

    drawn = []
    monkeypatch.setattr(bench, "measure", measured)
    monkeypatch.setattr(bench, "write_bench_page", lambda *_: None)
    monkeypatch.setattr(bench, "draw_speed", lambda lines, ceiling, title, path: drawn.append((lines["dba"], title)))
    lists = ["lengths=[16,32]", "dims=[4,8]", "batches=[1,2]", "compiled=[false,true]", "modes=[training]"]
    settings = [*lists, "attention=[dba]", "levels=[layer]", f"output={tmp_path}", f"threads={torch.get_num_threads()}"]
    monkeypatch.setattr("sys.argv", ["bench.py", *settings])
    bench.main()
    [(line, title)] = drawn
    assert line == {16: 1000.0, 32: 1000.0}
    assert "d=4, 4 heads, batch 1," in title


def test_long_inputs_are_not_said_to_be_measured_as_they_are_not(monkeypatch):
    sizes = ["attention=[dba]", "lengths=[16]", "dims=[8]", "rounds=1", f"threads={torch.get_num_threads()}"]
    monkeypatch.setattr("sys.argv", ["bench_long.py", *sizes, "dtypes=[bfloat16]"])
    with pytest.raises(UserError, match=r"in float32 without torch.compile; dtypes=\[bfloat16\] is for bench.py"):
        bench_long.main()


def test_softmax_written_out_keeps_the_square_of_the_length():
    long = Setting(level="layer", mode="inference", length=256, dim=8, heads=2)
    results = measure({"explicit": lambda site: Softmax(site, fused=False)}, long, rounds=1)
    assert results["explicit"].peak >= 2 * 256 * 256 * FLOAT


def test_the_peak_of_a_gpu_run_is_that_of_its_gpu(monkeypatch):
    reset = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20 if reset == [device] else 0)
    gpu = torch.device("cuda", 1)
    reset_peak(gpu)
    assert process_peak(gpu) == {"peak_memory_mib": 3, "peak_memory_of": "CUDA tensors"}


def test_the_peak_of_the_process_is_named():
    peak = process_peak(torch.device("cpu"))
    assert peak["peak_memory_of"] == "resident set"
    assert 50 < peak["peak_memory_mib"] < 1e5


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("x"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_what_does_not_fit_is_left_out_if_asked(error):
    class Large(Softmax):
        def attend(self, x, context, masks):
            raise error

    setting = Setting(level="layer", mode="inference", length=8, dim=8, heads=2)
    assert measure({"softmax": Softmax, "large": Large}, setting, rounds=1, partial=True).keys() == {"softmax"}
    with pytest.raises(RuntimeError):
        measure({"softmax": Softmax, "large": Large}, setting, rounds=1)
