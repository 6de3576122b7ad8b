"""A bundle is the trained model again; a damaged or strange one is refused in a sentence."""

import json
from pathlib import Path

import pytest
import torch
from runs import ROOT, TINY, composed, prepared, record_of, trained
from safetensors import safe_open
from safetensors.torch import save_file

from subquad import records
from subquad.training.bundle import _digest, _portable, load_pretrained, pack
from subquad.training.evaluation import evaluate, predict
from subquad.utils.errors import UserError

MOTIONS = ("task=uea/basic_motions", "attention=dba", "data=synthetic", "scale=smoke", *TINY)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A packed run: its folder, its configuration and the file."""
    base = tmp_path_factory.mktemp("bundle")
    config = composed(base / "data", base / "outputs", *MOTIONS)
    trained(config)
    run = record_of(base / "outputs")
    pack(run, base / "model.safetensors")
    return run, config, base / "model.safetensors"


def test_it_is_the_trained_model_in_evaluation_mode(made):
    run, config, file = made
    network = load_pretrained(file)
    assert not network.training
    assert network.record["metrics"] == records.read(run).metrics
    data = prepared(config)
    assert network.spec == data.spec
    assert network.classes == data.class_names
    assert len(network.classes) == network.spec.classes
    state = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(weight, state[f"network.{name}"]) for name, weight in network.state_dict().items())
    assert load_pretrained(str(file.parent)).record == network.record
    assert str(file.parent) not in file.read_bytes().decode(errors="replace")


def test_a_run_that_was_moved_has_its_data_below_the_current_folder(made, tmp_path, monkeypatch):
    run, config, file = made
    monkeypatch.delenv("SUBQUAD_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    data = Path(config.paths.data)
    data.rename("data")
    try:
        pack(run, Path("model.safetensors"))
        _, value, recorded = evaluate(run, "test")
        assert not data.exists()
    finally:
        Path("data").rename(data)
    state, again = (load_pretrained(place).state_dict() for place in (file, "model.safetensors"))
    assert all(torch.equal(state[name], again[name]) for name in state)
    assert value == recorded


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "bundles").glob("*.safetensors")), ids=lambda file: file.stem)
def test_shipped_bundles_load(file):
    network = load_pretrained(file)
    assert (
        f"{100 * network.record['metrics']['test/accuracy']:.2f} %"
        in (ROOT / "docs" / "bundles" / "README.md").read_text()
    )
    assert "/tmp" not in json.dumps(network.record)
    assert network.record["commit"].isalnum()  # of a clean checkout, which anybody can repeat


def test_rows_are_predicted_by_bundles_that_know_how_to_prepare_them(made, tmp_path):
    file, new = made[2], tmp_path / "new.ts"
    new.write_text("no series")
    written(file, tmp_path / "old.safetensors", lambda content, weights: content.pop("data"))
    with pytest.raises(UserError, match="of a version of Subquad that kept only the model; pack its run again"):
        predict(tmp_path / "old.safetensors", new)
    with pytest.raises(UserError, match="ListOps takes no further rows"):
        predict(ROOT / "docs/bundles/lra-listops-dba.safetensors", new)
    change = lambda content, _: content["record"]["config"]["data"].update(_target_="os.system")  # noqa: E731
    written(file, tmp_path / "bad.safetensors", change)
    with pytest.raises(UserError, match=r"has the class os\.system, which is not Subquad's; pass trust_code=True"):
        predict(tmp_path / "bad.safetensors", new)


def written(file, path, change):
    """The bundle with changed content and a checksum that fits."""
    with safe_open(file, "pt") as opened:
        content = json.loads(opened.metadata()["subquad"])
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    change(content, weights)
    text = json.dumps(content)
    save_file(weights, path, {"subquad": text, "sha256": _digest(text, weights)})
    return path


def of_another_class(target):
    def change(content, weights):
        content["record"]["config"]["task"]["module"]["backbone"]["attention"]["_target_"] = target

    return change


@pytest.mark.parametrize(
    "target", ["os.system", "subquad.training.bundle.Path", "subquad.attention.dba.torch.hub.load"]
)
def test_classes_of_others_are_not_imported(made, tmp_path, target):
    with pytest.raises(UserError, match="which is not Subquad's; pass trust_code=True"):
        load_pretrained(written(made[2], tmp_path / "b.safetensors", of_another_class(target)))


def test_own_code_that_is_not_here_is_not_called_other_code(made, tmp_path):
    def change(content, weights):
        of_another_class("mine.Mine")(content, weights)
        content["record"]["config"]["code"] = {"mine.Mine": "1", "its_data.Data": "2"}

    with pytest.raises(UserError, match=r"mine\.Mine of .* cannot be imported; run this in the folder of its module"):
        load_pretrained(written(made[2], tmp_path / "b.safetensors", change), trust_code=True)


def test_settings_that_refer_to_others_are_not_resolved(made, tmp_path):
    def change(content, weights):
        backbone = content["record"]["config"]["task"]["module"]["backbone"]
        backbone["attention"] = "${oc.create:{_target_:subquad.training.bundle.Path}}"

    with pytest.raises(UserError, match="has settings that refer to others"):
        load_pretrained(written(made[2], tmp_path / "b.safetensors", change))
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        load_pretrained(tmp_path)


def test_the_folders_of_the_machine_are_left_out():
    config = {"paths": {"root": "/", "data": "/home/jürgen/data"}, "data": {"root": "/home/jürgen/data/lra"}}
    found = _portable({"task": "lra/listops", "command": ["a=/home/jürgen/data"], "config": config})
    assert found == {
        "task": "lra/listops", "command": ["a=<folder>"], "config": {"data": {"root": "<folder>/lra"}},
    }  # fmt: skip


def test_damage_is_refused(made, tmp_path):
    content, copy = made[2].read_bytes(), tmp_path / "copy.safetensors"
    copy.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="its checksum does not fit"):
        load_pretrained(copy)
    copy.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="is damaged"):
        load_pretrained(copy)
    save_file({"a": torch.zeros(1)}, copy)
    with pytest.raises(UserError, match="is no bundle of Subquad"):
        load_pretrained(copy)
    with pytest.raises(UserError, match="do not fit its model"):
        load_pretrained(written(made[2], copy, lambda content, weights: weights.popitem()))
    with pytest.raises(UserError, match="is no file"):
        load_pretrained(tmp_path / "nowhere.safetensors")
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "result.json").touch()
    with pytest.raises(UserError, match=r"holds 2 finished runs; name one of them, such as .*one"):
        pack(tmp_path / "runs", copy)
    with pytest.raises(UserError, match="There is no finished run"):
        pack(tmp_path / "nothing", copy)
