"""Missing data are named before a run starts, in the words that the run would end with."""

import pytest
from omegaconf import OmegaConf

from subquad.config.choices import options
from subquad.config.compose import compose_run
from subquad.results.needs import missing_data
from subquad.utils.errors import UserError

MADE = {"digits", "digits_pixels", "lra/listops", "lra/pathfinder32", "uea/basic_motions", "tser/covid3month"}
"""Drawn by this package, or brought along by scikit-learn and sktime."""
ONE_OF_MANY = [
    *(name for name in options("task") if not name.startswith(("uea/", "tser/", "lra/pathfinder"))),
    "uea/basic_motions", "uea/heartbeat", "tser/covid3month", "tser/benzene_concentration", "lra/pathfinder32",
]  # fmt: skip


def data_settings(words):
    return OmegaConf.to_container(compose_run(words).data, resolve=True)


def words_of(task, data):
    return [f"task={task}", f"paths.data={data}"]


@pytest.mark.parametrize("task", ONE_OF_MANY)
def test_what_is_missing_is_what_the_run_would_say(task, tmp_path):
    from hydra.utils import instantiate

    settings = data_settings(words_of(task, tmp_path))
    said = missing_data(settings)
    assert (said is None) == (task in MADE)
    assert missing_data(settings | {"synthetic": True}) is None
    if said is not None:
        with pytest.raises(UserError) as refusal:
            instantiate(settings, _convert_="all").prepare_data()
        assert str(refusal.value) == said


@pytest.mark.parametrize("task", ["lra/text", "lra/retrieval", "lra/image", "glue/sst2", "vqa_v2", "tser/tecator"])
def test_data_that_are_there_are_not_missing(task, tmp_path):
    from hydra.utils import instantiate

    made = instantiate(data_settings([*words_of(task, tmp_path), "data=synthetic"]), _convert_="all")
    made.prepare_data()
    places = {
        "lra/text": {"source": str(tmp_path / "synthetic/imdb/aclImdb")},
        "lra/retrieval": {"folder": str(tmp_path / "synthetic/aan")},
        "lra/image": {"folder": str(tmp_path / "synthetic/cifar")},
        "glue/sst2": {"folder": str(tmp_path / "synthetic/glue_sst2")},
        "vqa_v2": {"folder": str(tmp_path / "synthetic/vqa_v2")},
        "tser/tecator": {"folder": str(tmp_path / "synthetic/regression/Tecator")},
    }
    assert missing_data(data_settings(words_of(task, tmp_path)) | places[task]) is None


def test_features_of_images_are_part_of_the_data(tmp_path):
    from hydra.utils import instantiate

    instantiate(data_settings([*words_of("vqa_v2", tmp_path), "data=synthetic"]), _convert_="all").prepare_data()
    settings = data_settings([*words_of("vqa_v2", tmp_path), f"data.folder={tmp_path}/synthetic/vqa_v2"])
    assert "holds no features" in missing_data(settings | {"features": str(tmp_path / "none")})


def test_a_wrong_setting_of_data_is_said_as_well(tmp_path):
    said = missing_data(data_settings([*words_of("lra/listops", tmp_path), "data.source=release"]))
    assert said == "data.source=release needs data.release_dir, the folder of basic_{train,val,test}.tsv."


def test_made_up_data_are_not_looked_for(tmp_path):
    assert data_settings([*words_of("imagenet", tmp_path), "data=synthetic"])["synthetic"] is True
    assert compose_run(words_of("imagenet", tmp_path)).data.synthetic is False
