"""The mechanism of overrides is the module that Hydra would build from."""

import pytest

from subquad.config.choices import options
from subquad.config.compose import load_attention, standalone_backbones
from subquad.config.mechanisms import choice_of, mechanism_of, mechanisms


@pytest.mark.slow
def test_every_choice_belongs_to_the_module_of_its_class():
    found = {choice.name: mechanism for mechanism, choices in mechanisms().items() for choice in choices}
    assert found.keys() == {*options("attention"), *standalone_backbones()}
    for name in ("dba_printed", "performer_relu", "linformer_layer", "synthesizer_mixed", "softmax_explicit"):
        assert found[name] == load_attention(name).func.__module__.rpartition(".")[2]
    assert mechanisms()["dba"][0].name == "dba"
    assert all(choice.text for choices in mechanisms().values() for choice in choices)


@pytest.mark.parametrize(
    ("overrides", "mechanism"),
    [
        (("task=lra/text", "attention=dba_full_n"), "dba"),
        (("attention=softmax", "backbone.attention=null"), "no_attention"),
        (("backbone=s4d", "attention=dba"), "s4"),
        (("backbone=vit", "attention=luna"), "luna"),
        (("experiment=ecoformer/imagenet",), "ecoformer"),
        (("experiment=ecoformer/imagenet", "attention=luna"), "luna"),
        (("experiment=blrp/cifar10",), "blrp"),
        (("task=digits",), ""),
    ],
)
def test_the_mechanism_of_overrides(overrides, mechanism):
    assert mechanism_of(overrides) == mechanism


def test_settings_are_those_of_the_file_and_of_what_it_inherits():
    settings = {key: (value, comment) for key, value, comment in choice_of("attention", "dba_printed").settings}
    assert settings["recon_norm"] == ("none", "softmax, none, inv_len")  # its value, the comment of dba
    assert settings["d_p"] == ("16", "")
    assert choice_of("attention", "nothing") is None


def test_a_file_of_the_user_inherits_a_shipped_one_and_needs_no_comment(tmp_path, monkeypatch):
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "wider.yaml").write_text("defaults:\n  - dba\nd_p: 32\n")
    monkeypatch.setenv("SUBQUAD_CONFIGS", str(tmp_path))
    found = choice_of("attention", "wider")
    assert (found.mechanism, found.text) == ("dba", "")
    assert ("d_p", "32") in [setting[:2] for setting in found.settings]
