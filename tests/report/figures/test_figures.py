"""Every figure draws what it measured, and its numbers are those that can be computed from the same runs by hand."""

import json
import math

import pytest
import torch
from conftest import CONFIGS
from fake_store import FakeStore, Rows, data_of
from hydra.utils import instantiate
from omegaconf import OmegaConf

from subquad.attention.dba import DBA
from subquad.attention.linformer import Linformer
from subquad.attention.softmax import Softmax
from subquad.backbones.sequence import SequenceEncoder
from subquad.config.choices import options
from subquad.config.compose import compose_run, load_attention
from subquad.config.settings import check_settings
from subquad.measure.benchmark import Setting, peak_of, program_of
from subquad.report.figures.attention_maps import draw_mixing, mixing
from subquad.report.figures.compression import change, compressor, roughness
from subquad.report.figures.figure_base import Figure
from subquad.report.figures.spectrum import spectra_of
from subquad.report.figures.style import fit, panels
from subquad.results.cells import load_table
from subquad.specs import DataSpec, Pattern, Site
from subquad.utils.save_figure import save

TINY = {
    "accuracy_speed": {"attentions": {"Transformer": "softmax_explicit", "DBA": "dba"}, "lengths": [16], "rounds": 1,
                "sizes": {"dim": 16, "heads": 2, "ffn": 16, "layers": 1}},
    "cost_ratios": {"dims": [64], "lengths": [64, 128], "sizes": {"heads": 2, "layers": 1}},
    "cost_by_length": {"lengths": [16, 32], "rounds": 1, "tokens": None, "longest": {},
                       "sizes": {"dim": 16, "heads": 2, "ffn": 16, "layers": 1}},
}  # fmt: skip


def figure(name, **changes):
    node = OmegaConf.to_container(OmegaConf.load(CONFIGS / "figure" / f"{name}.yaml"))
    changes = TINY.get(node["_target_"].split(".")[-2], {}) | changes
    unknown = changes.keys() - node.keys()
    assert not unknown
    check_settings("figure", node | changes)
    return instantiate(node | changes, _convert_="all")


def drawn(made, numbers, folder):
    """The picture is written with its numbers, which survive JSON, and is no blank page."""
    assert json.loads(json.dumps(numbers)) == numbers
    png, svg, numbers_file = save(made.draw(numbers), {"numbers": numbers}, folder, "x")
    from matplotlib.image import imread

    assert imread(png).std() > 0.01
    assert svg.read_text().startswith("<?xml")
    return json.loads(numbers_file.read_text())["numbers"]


@pytest.mark.parametrize("name", options("figure"))
def test_every_figure_composes_and_its_runs_too(name):
    made = figure(name)
    assert isinstance(made, Figure)
    assert any(place in made.source for place in ("Figure", "Section", "Appendix"))
    for words, seed in made.runs()[:3]:
        assert compose_run([*words, f"seed={seed}"]).seed == seed


@pytest.mark.parametrize("name", [n for n in options("figure") if figure(n).runs()])
def test_without_runs_a_figure_says_what_is_missing_and_still_draws(name, tmp_path):
    made = figure(name)
    numbers = made.measure(FakeStore())
    assert len(numbers["missing"]) == len(made.runs())
    assert all(sentence.startswith("not run: ") for sentence in numbers["missing"])
    drawn(made, numbers, tmp_path)


def test_curves_are_what_runs_logged(tmp_path):
    made = figure("dba/4")
    ours, theirs = (made.runs()[place][0] for place in (0, 1))
    log = {10: {"train/loss": 2.0}, 20: {"train/loss": 1.0, "val/accuracy": 0.5}}
    store = FakeStore({(*ours, 0): {"x": 1}, (*theirs, 0): {"x": 1}}, {(*ours, 0): log, (*theirs, 0): log})
    numbers = drawn(made, made.measure(store), tmp_path)
    [curves] = numbers["curves"].values()
    assert curves["DBA"]["0"] == {"train/loss": [[10, 2.0], [20, 1.0]], "val/accuracy": [[20, 0.5]]}
    assert list(curves) == ["DBA", "DBA w/o optimize n"]
    assert len(numbers["missing"]) == 1


def test_a_run_in_several_panels_is_trained_once_and_drawn_in_each(tmp_path):
    made = figure("linformer/3")
    assert len(made.runs()) == 11
    shared = (*made.runs()[0][0], 0)
    store = FakeStore({shared: {"x": 1}}, {shared: {5: {"val/perplexity": 30.0}}})
    numbers = drawn(made, made.measure(store), tmp_path)
    assert [list(sides) for sides in numbers["curves"].values()] == [["Transformer"], [], ["Transformer"], []]
    assert [len(axes.lines) for axes in made.draw(numbers).axes] == [1, 0, 1, 0]
    assert len(numbers["missing"]) == 10


def test_the_lengths_and_k_of_linformers_curves_are_those_of_their_labels():
    for group, sides in figure("linformer/3").groups.items():
        for side, words in sides.items():
            config = compose_run([*words, "data.folder=/text"])
            label = f"{group}, {side}".replace(",", "")
            assert f"n = {config.data.max_len}" in label
            if "k = " in label and side != "Transformer":
                assert f"k = {config.attention.k}" in label


def test_a_grid_shows_runs_where_they_belong(tmp_path):
    made = figure("blrp/4_left", rows=[10, 20], columns=[30, 40, 50])
    words = [*made.overrides, "backbone.segment=20", "backbone.latents=30"]
    records = {(*words, seed): {"test/accuracy": accuracy} for seed, accuracy in ((0, 0.4141), (2, 0.4145))}
    numbers = drawn(made, made.measure(FakeStore(records)), tmp_path)
    assert numbers["values"] == [[None, None, None], [pytest.approx(0.4143), None, None]]
    assert len(numbers["missing"]) == 4 * 6 - 2
    assert "41.4" in {text.get_text() for text in made.draw(numbers).axes[0].texts}


def test_the_grid_of_blrp_has_the_runs_of_its_table():
    def folders(pairs):
        return {(*sorted(words), seed) for words, seed in pairs}

    cells = list(load_table("blrp/fig4"))
    assert folders(figure("blrp/4_left").runs()) == folders(
        (c.overrides, seed) for c in cells for seed in range(c.seeds)
    )


class FirstToken(torch.nn.Module):
    """Predicts the first token."""

    def forward(self, tokens, valid):
        return torch.nn.functional.one_hot(tokens[:, 0], 5).float()


def test_accuracy_is_counted_in_each_range_of_lengths(tmp_path):
    made = figure("blrp/1", edges=[1, 3, 5], multiply=[1])
    words = made.runs()[0][0]
    tokens = torch.tensor([[1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [3, 3, 3, 3, 3], [4, 4, 4, 4, 4]])
    rows = Rows(tokens, [1, 3, 4, 5], [1, 2, 0, 4])
    store = FakeStore(networks={(*words, 0, True): FirstToken()}, data=data_of(rows))
    [(side, found)] = drawn(made, made.measure(store), tmp_path)["sides"].items()
    assert side == "BLRP"
    found = found["1"]
    assert found["ranges"] == [{"cases": 1, "accuracy": 1.0}, {"cases": 3, "accuracy": pytest.approx(2 / 3, abs=1e-5)}]
    assert (found["accuracy"], found["cases"]) == (0.75, 4)


def test_longer_sequences_have_a_panel_of_their_own_where_the_weights_fit(tmp_path):
    made = figure("blrp/1", edges=[1, 3, 8], multiply=[1, 2])
    (ours, _), (theirs, _), _ = made.runs()
    networks = {(*words, 0, True): FirstToken() for words in (ours, theirs)}
    networks[*ours, 0, True].any_length = True
    short, longer = (data_of(Rows(torch.ones(2, n).long(), [n - 2, n], [1, 0])) for n in (4, 10))
    store = FakeStore(
        {(*words, 0): {"x": 1} for words in (ours, theirs)}, networks=networks, data=short, longer={2: longer}
    )
    numbers = drawn(made, made.measure(store), tmp_path)
    assert {side: list(lines) for side, lines in numbers["sides"].items()} == {"BLRP": ["1", "2"], "TLB": ["1"]}
    assert [part["cases"] for part in numbers["sides"]["BLRP"]["2"]["ranges"]] == [0, 1]
    assert numbers["missing"][1:] == [
        "BLRP, x2: 1 of 2 sequences lie outside of edges", "TLB, x2: These weights do not fit.",
    ]  # fmt: skip
    lines = [
        [list(line.get_xdata()) for line in panel.lines if line.get_linestyle() != ":"]
        for panel in made.draw(numbers).axes
    ]
    assert lines == [[[2.0, 5.5], [2.0, 5.5]], [[5.5]]]


def sides(name, count):
    """The first sides of a figure."""
    return dict([*figure(name).sides.items()][:count])


@pytest.mark.parametrize("name", [pytest.param("blrp/4_right", marks=pytest.mark.slow), "linformer/2"])
@pytest.mark.slow
def test_costs_are_those_of_the_bench(name, tmp_path):
    both = sides(name, 1) | {"Transformer": figure(name).sides["Transformer"]}
    made = figure(name, longest={"Transformer": 16}, sides=both)
    numbers = drawn(made, made.measure(FakeStore()), tmp_path)
    assert list(numbers["sides"]["Transformer"]) == ["16"]
    assert len(numbers["missing"]) == 1
    for length in (16, 32):
        setting = Setting(level="model", mode=made.mode, length=length, **made.sizes)
        first = next(iter(made.sides))
        choice, *words = made.sides[first]
        if str(length) in numbers["sides"][first]:
            sizes = ["backbone.dim=16", "backbone.heads=2", "backbone.ffn=16"]
            run = program_of(FakeStore().attention(choice, [*sizes, *words]), setting)
            found = numbers["sides"][first][str(length)]
            assert found["bytes_per_row"] == pytest.approx(peak_of(run), rel=1e-4)
            assert found["seconds_per_row"] > 0


@pytest.mark.slow
def test_fixed_tokens_share_a_batch(tmp_path):
    made = figure("linformer/2", tokens=64, longest={}, sides=sides("linformer/2", 1))
    numbers = made.measure(FakeStore())
    assert [found["rows"] for found in numbers["sides"]["Transformer"].values()] == [4, 2]


def products(length, dim, scales, layers=1, classes=10):
    """Multiply-adds of matrix products of a model of two heads in inference, from the papers' formulas."""
    n, e = length, dim // 2
    attention = 2 * n * dim * dim  # queries and output
    for scale in scales:
        keys = math.ceil(n / scale)
        attention += 2 * keys * dim * e + 2 * n * keys * e
    return layers * (attention + 2 * n * dim * 2 * dim) + dim * classes


@pytest.mark.slow
def test_ratios_of_operations_are_those_of_the_formulas(tmp_path):
    made = figure("primal_dual/2", lengths=[128])
    numbers = drawn(made, made.measure(FakeStore()), tmp_path)
    row = next(r for r in numbers["rows"] if (r["mode"], r["length"]) == ("inference", 128))
    assert row["baseline"]["operations"] == pytest.approx(products(128, 64, [1, 1]), rel=1e-6)
    assert row["ours"]["operations"] == pytest.approx(products(128, 64, [1, 2]), rel=1e-6)
    assert row["ratios"]["operations"] == pytest.approx(
        row["ours"]["operations"] / row["baseline"]["operations"], rel=1e-5
    )
    assert row["ratios"]["memory"] < 1
    training = next(r for r in numbers["rows"] if (r["mode"], r["length"]) == ("training", 128))
    assert training["ours"]["operations"] > 2 * row["ours"]["operations"]


SLOWER = [pytest.param(name, marks=pytest.mark.slow) for name in ("1", "4", "1_linear")]


@pytest.mark.parametrize("name", ["3", *SLOWER])
@pytest.mark.slow
def test_other_ratios_are_below_one_where_the_paper_says_so(name):
    made = figure(f"primal_dual/{name}", lengths=[128], ours=_small(name, "ours"), baseline=_small(name, "baseline"))
    numbers = made.measure(FakeStore())
    assert all(row["ratios"]["operations"] < 1 for row in numbers["rows"])


def _small(name, side):
    words = OmegaConf.to_container(OmegaConf.load(CONFIGS / "figure" / "primal_dual" / f"{name}.yaml"))[side]
    return [*words, "attention.block=8", "attention.summary=1"] if words[0].startswith("sparse") else words


@pytest.mark.slow
def test_bubbles_take_the_mean_over_tasks_only_where_all_are_run(tmp_path):
    made = figure("dba/1", tasks=[["task=a"], ["task=b"]])
    metrics = {
        ("recipe=luna", f"task={t}", "attention=dba", 0): {"test/accuracy": v} for t, v in (("a", 0.4), ("b", 0.6))
    }
    metrics[("recipe=luna", "task=a", "attention=softmax", 0)] = {"test/accuracy": 0.9}
    numbers = drawn(made, made.measure(FakeStore(metrics)), tmp_path)
    assert numbers["accuracy"] == {"Transformer": None, "DBA": 0.5}
    assert len(numbers["missing"]) == 1
    assert numbers["costs"]["16"]["Transformer"] == {"speed": 1.0, "memory": 1.0}
    assert numbers["costs"]["16"]["DBA"]["memory"] > 0


def encoder(attention, length=6):
    torch.manual_seed(0)
    return SequenceEncoder(DataSpec(max_len=length, channels=2, classes=3), attention, 1, 8, 2, 8, order="post").eval()


@pytest.mark.slow
def test_compression_is_the_papers_formula_on_the_real_tokens(tmp_path):
    networks = {
        "dba": encoder(lambda site: DBA(site, d_p=3)), "linformer": encoder(lambda site: Linformer(site, k=3)),
    }  # fmt: skip
    made = figure("dba/3", overrides=[], dba=["dba"], linformer=["linformer"], samples=[0, 1, 9])
    rows = Rows(torch.randn(2, 6, 2), [6, 4], [0, 1])
    store = FakeStore(
        {("dba", 0): {"x": 1}, ("linformer", 0): {"x": 1}},
        networks={(side, 0, True): network for side, network in networks.items()},
        data=data_of(rows),
    )
    numbers = drawn(made, made.measure(store), tmp_path)
    assert numbers["missing"] == ["test row 9: there are 2"]
    layer = networks["dba"].layers[0].attention
    for place, length in ((0, 6), (1, 4)):
        net = networks["dba"]
        x = net.position(net.embed(rows.inputs[place : place + 1]))[0, :length]
        wanted = (layer.latent @ (x @ layer.key.weight.mT).mT).softmax(-1)
        found = torch.tensor(numbers["samples"][place]["matrices"]["DBA"])
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-5)
        compressed = torch.tensor(numbers["samples"][place]["compressed"]["DBA"])
        torch.testing.assert_close(compressed, found @ rows.inputs[place, :length], rtol=1e-4, atol=1e-4)
    fixed = [torch.tensor(sample["matrices"]["Linformer"]) for sample in numbers["samples"]]
    torch.testing.assert_close(fixed[0][:, :4], fixed[1])
    assert numbers["sides"]["Linformer"]["change_between_samples"] == 0
    assert numbers["sides"]["DBA"]["change_between_samples"] > 0


def test_a_later_layer_compresses_with_the_latent_it_is_handed():
    site = {"pattern": Pattern.SELF, "dim": 8, "heads": 2, "query_len": 5, "context_len": 5, "layers": 2}
    layer = DBA(Site(**site, layer=1), d_p=3)
    z, x = torch.randn(1, 3, 8), torch.randn(1, 5, 8)

    class One(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            from subquad.specs import Masks

            return self.layer(x, x, Masks(), z)

    wanted = (z[0] @ layer.key(x[0]).mT).softmax(-1)
    torch.testing.assert_close(compressor(One(), (x,)), wanted.detach(), rtol=1e-4, atol=1e-5)


def test_the_concentration_of_w_r_is_that_of_the_first_and_of_the_trained_weights(tmp_path):
    made = figure("dba/concentration", overrides=["t"], sides={"a": ["x"], "b": ["y"]}, rows=3, seeds=[0, 1])
    flat, sharp = (encoder(lambda site: DBA(site, d_p=3)) for _ in range(2))
    torch.nn.init.zeros_(flat.layers[0].attention.latent)
    torch.nn.init.normal_(sharp.layers[0].attention.latent, std=1e6)
    rows = Rows(torch.randn(4, 6, 2), [6, 4, 2, 3], [0] * 4)
    store = FakeStore(
        {("t", "x", seed): {"test/accuracy": 0.5 + seed} for seed in (0, 1)}, data=data_of(rows),
        networks={("t", "x", seed, False): flat for seed in (0, 1)}
        | {("t", "x", seed, True): sharp for seed in (0, 1)},
    )  # fmt: skip
    numbers = drawn(made, made.measure(store), tmp_path)
    assert len(numbers["missing"]) == 2
    assert list(numbers["sides"]) == ["a"]
    found = numbers["sides"]["a"]["1"]
    assert found["test/accuracy"] == 1.5
    assert found["trained"]["largest"] == pytest.approx([1], abs=1e-4)
    assert found["first weights"]["largest"] == pytest.approx([(1 / 6 + 1 / 4 + 1 / 2) / 3], abs=1e-5)


def test_change_and_roughness():
    torch.manual_seed(0)
    noise, line = torch.randn(8, 400), torch.linspace(-1, 1, 400).expand(8, -1)
    assert roughness([noise]) == pytest.approx(math.sqrt(2), rel=0.05)
    assert roughness([line]) < 0.1
    assert change([line, line]) == 0
    assert change([noise, -noise]) == pytest.approx(2)


def test_the_spectrum_is_that_of_the_attention_matrices(tmp_path):
    network = encoder(Softmax)
    rows = Rows(torch.randn(3, 6, 2), [6, 4, 6], [0, 1, 0])
    made = figure("linformer/1", overrides=["run"], rows=5)
    store = FakeStore(
        {("run", 0): {"x": 1}}, networks={("run", 0, True): network, ("run", 0, False): encoder(Softmax)},
        data=data_of(rows),
    )  # fmt: skip
    numbers = drawn(made, made.measure(store), tmp_path)
    model = numbers["models"]["trained"]
    assert (model["sequences"], model["length"], model["place"]) == (2, 6, 2)
    p = network.layers[0].attention.projections
    wanted = []
    for place in (0, 2):
        x = network.position(network.embed(rows.inputs[place : place + 1]))
        q, k, _ = p.qkv(x, x)
        values = torch.linalg.svdvals((q @ k.mT / 2).softmax(-1)[0])
        wanted.append(values.cumsum(-1) / values.sum(-1, keepdim=True))
    torch.testing.assert_close(
        torch.tensor(model["cumulative"])[0], torch.stack(wanted).mean(0).detach(), rtol=1e-3, atol=1e-4
    )
    assert model["at_place"][0] == pytest.approx([line[1] for line in model["cumulative"][0]])
    assert spectra_of(network, rows, 1)[1] == 1


@pytest.mark.slow
def test_the_viewer_draws_weights_beside_softmax(tmp_path):
    for name, sides in (("linear", 2), ("fnet", 2), ("softmax", 1)):
        numbers = mixing(name, load_attention(name), length=6, dim=8, heads=2)
        assert len(numbers["sides"]) == sides
        assert (numbers["sides"][name]["weights"] is None) == (name == "fnet")
        save(draw_mixing(numbers), numbers, tmp_path, name)
        kept = json.loads((tmp_path / f"{name}.json").read_text())
        assert torch.tensor(kept["sides"][name]["influence"]["values"]).shape == (6, 6)
    assert {p.suffix for p in tmp_path.iterdir()} == {".png", ".svg", ".json"}


@pytest.mark.slow
def test_shares_are_those_of_the_counts_in_ecoformers_table(tmp_path):
    made = figure("ecoformer/2", models=["pvt_v2_b0", "pvt_v2_b1"])
    models = drawn(made, made.measure(FakeStore()), tmp_path)["models"]
    # Table 2 prints, for full attention: billions of multiplications and of additions, and their energy in mJ.
    for name, (mul, add, energy) in {"pvt_v2_b0": (2.02, 1.99, 9.25), "pvt_v2_b1": (5.02, 5.00, 23.07)}.items():
        costs, shares = models[name]["costs"].values(), models[name]["shares"]
        assert sum(cost["operations"] for cost in costs) / 1e9 == pytest.approx(mul + add, abs=0.01)
        assert sum(cost["energy_pj"] for cost in costs) / 1e9 == pytest.approx(energy, abs=0.01)
        for what in ("operations", "energy_pj"):
            assert sum(share[what] for share in shares.values()) == pytest.approx(1)
    small, large = (models[name]["shares"]["feed-forward"]["energy_pj"] for name in models)
    assert small < large < models["pvt_v2_b1"]["shares"]["attention"]["energy_pj"]


def test_a_figure_fits_into_a_column():
    figure, [[panel]] = panels(1, 1)
    panel.plot([1, 2], [1, 2])
    panel.set(xlabel="tokens", title="a title")
    fit(figure, 3.3)
    assert tuple(figure.get_size_inches()) == pytest.approx((3.3, 3.4 * 3.3 / 4.2))
    assert panel.title.get_fontsize() == 8
    assert panel.xaxis.label.get_fontsize() == pytest.approx(10 * 3.3 / 4.2)
