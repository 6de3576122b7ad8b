"""Trained weights as one portable file: safetensors whose header holds what was trained on which data.

That is the record of the run with its resolved configuration, the spec and the classes of the data, and what the model
needs to read further rows: statistics of the training data, the tokenizer. Nothing is pickled, and loading runs no code
but that of Subquad's models and data.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from hydra.utils import get_object, instantiate
from torch import Tensor, nn

from subquad import records, specs
from subquad.config.own_code import targets
from subquad.config.settings import without_weights
from subquad.data.images.augment import Augment
from subquad.data.split_data import SplitData
from subquad.training import hub
from subquad.training.resume import check_code, check_data, data_settings, read_best
from subquad.utils.atomic import atomic_write
from subquad.utils.errors import UserError, first_line

_KEY = "subquad"
_HUB = "hf://"
_OF_BATCHES = ("eval_batch_size", "num_workers")


def pack(run: Path, output: Path) -> None:
    """Writes the best weights of a finished run, with its record and what it knows of its data, to a file.

    Raises UserError if the folder holds no finished run or several, or if its weights or data are missing or have
    changed.
    """
    from safetensors.torch import save_file

    run, record = records.only_run(run)
    data = instantiate(data_settings(record), _convert_="all")
    data.prepare_data()
    check_data(data, record.data_fingerprint, run)
    state = read_best(run, record)["state_dict"]
    weights = {
        name.removeprefix("network."): weight.clone().contiguous()
        for name, weight in state.items()
        if name.startswith("network.")
    }
    fields = {
        name: None if isinstance(value, Tensor) else value for name, value in dataclasses.asdict(data.spec).items()
    }
    spec = {"kind": type(data.spec).__name__, **fields}
    record_there = _portable(dataclasses.asdict(record))
    facts = {"spec": spec, "classes": data.class_names, "data": data.portable_facts(), "record": record_there}
    text = json.dumps(facts)
    with atomic_write(output) as partial:
        save_file(weights, partial, {_KEY: text, "sha256": _digest(text, weights)})


def load_pretrained(source: str | Path, *, revision: str | None = None, trust_code: bool = False) -> nn.Module:
    """The model of a bundle with its trained weights, in evaluation mode.

    Args:
        source: a file that `subquad pack` wrote, or the id of a repository of the Hugging Face hub with such a file.
        revision: the branch, tag or commit of that repository; None is the newest of `main`.
        trust_code: whether the model may have classes from outside of Subquad, which are imported and run.

    Returns:
        The network. Its `spec` describes the data that it takes, its `record` is the record of its run, and its
        `classes` are the names of its outputs: those of series and of the user's own data, otherwise empty.

    Raises:
        UserError: the file is missing, damaged or cannot be downloaded, or of classes that are not trusted.

    Examples:
        >>> from subquad import load_pretrained
        >>> model = load_pretrained("docs/bundles/digits-ecoformer.safetensors")
        >>> model.spec.classes
        10
    """
    path = _file(str(source), revision)
    return _network(*_read(path), path, trust_code)


def load_predictor(
    source: str | Path, changes: Mapping[str, Any], *, trust_code: bool = False
) -> tuple[nn.Module, SplitData]:
    """The model of a bundle, and its data without their splits, which can prepare further rows as those of training.

    Args:
        source: as that of `load_pretrained`.
        changes: settings of the data that differ from those of the run: how the files of further rows are read.
        trust_code: whether the model and the data may be of classes from outside of Subquad.

    Raises:
        UserError: as `load_pretrained`, the data take no further rows, or a setting is not one of reading.
    """
    path = _file(str(source), None)
    content, weights = _read(path)
    data = _reader(content, changes, path, trust_code)
    return _network(content, weights, path, trust_code), data


def _network(content: Mapping[str, Any], weights: Mapping[str, Tensor], path: Path, trust_code: bool) -> nn.Module:
    node = without_weights(content["record"]["config"]["task"]["module"]["backbone"])
    _check_code(node, (nn.Module,), content, path, trust_code)
    spec = _spec(dict(content["spec"]), path)
    network: Any = instantiate(node, _convert_="all")(spec=spec)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            f"The weights of {path} do not fit its model ({' '.join(str(error).split())[:200]}); install the "
            "version of Subquad that wrote it."
        ) from None
    network.spec, network.record, network.classes = spec, content["record"], content.get("classes", [])
    evaluating: nn.Module = network.eval()
    return evaluating


def _reader(content: Mapping[str, Any], changes: Mapping[str, Any], path: Path, trust_code: bool) -> SplitData:
    node = content["record"]["config"]["data"]
    _check_code(node, (SplitData, Augment), content, path, trust_code)
    kind = cast(type[SplitData], get_object(node["_target_"]))
    if unknown := [key for key in changes if key not in (allowed := (*kind.reading_of_further, *_OF_BATCHES))]:
        raise UserError(
            f"{path} holds no training data, so that data.{unknown[0]} changes nothing; of its data you can set "
            f"{', '.join(allowed)}."
        )
    data: SplitData = instantiate({**node, **changes}, _convert_="all")
    if type(data).portable_facts is SplitData.portable_facts:
        data.unlabelled(path)  # raises UserError
    if "data" not in content:
        raise UserError(f"{path} is of a version of Subquad that kept only the model; pack its run again.")
    data.given_facts = content["data"]
    return data


def is_bundle(source: str) -> bool:
    """Whether a command names a bundle, by its file, a folder with it or hf://<repository>, and not a run."""
    path = Path(source)
    in_folder = (path / hub.FILE).is_file() and not (path / records.RESULT).exists()  # a run may be packed into itself
    return source.startswith(_HUB) or path.is_file() or in_folder


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the header of a bundle holds, and its weights."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({first_line(error)}); copy or download it again.") from None
    if _KEY not in header:
        raise UserError(f"{path} is no bundle of Subquad; write one with: subquad pack <run>")
    if header.get("sha256") != _digest(header[_KEY], weights):
        raise UserError(f"{path} is damaged (its checksum does not fit); copy or download it again.")
    return json.loads(header[_KEY]), weights


def _portable(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the folders of the machine that trained it."""
    config = dict(record["config"])
    folders = {str(value) for value in config.pop("paths", {}).values() if str(value).startswith("/")}
    return _without(sorted(folders - {"/"}, key=len, reverse=True), record | {"config": config})


def _without(folders: Sequence[str], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(folders, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without(folders, inner) for inner in value]
    for folder in folders if isinstance(value, str) else ():
        value = value.replace(folder, "<folder>")
    return value


def _file(source: str, revision: str | None) -> Path:
    path = Path(source := source.removeprefix(_HUB))
    if path.is_dir():
        path = path / hub.FILE
        if not path.exists():
            raise UserError(f"{source} has no {hub.FILE}; give a bundle that subquad pack wrote.")
    if path.is_file():
        return path
    if not hub.is_repository(source):
        raise UserError(f"{source} is no file; give a bundle that subquad pack wrote, or a repository of the hub.")
    return hub.download(source, revision)


def _digest(text: str, weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(weights):
        weight = weights[name]
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}".encode())
        digest.update(weight.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _check_code(node: Any, kinds: tuple[type, ...], content: Mapping[str, Any], path: Path, trusted: bool) -> None:
    """Raises UserError if a `_target_` is, or may be by a reference, anything but a class of Subquad of these kinds.

    If `trusted`, raises it only where the file of a class has changed since the run was trained.
    """
    if trusted:
        code = content["record"]["config"].get("code", {})
        check_code({"code": {target: code[target] for target in targets(node) if target in code}}, path)
        return
    if "${" in json.dumps(node):
        raise UserError(f"{path} has settings that refer to others, which subquad pack never writes; do not trust it.")
    for target in targets(node):
        found = get_object(target) if target.startswith("subquad.") else None
        if not (isinstance(found, type) and issubclass(found, kinds) and found.__module__.startswith("subquad.")):
            raise UserError(
                f"{path} has the class {target}, which is not Subquad's; pass trust_code=True if you trust its author."
            )


def _spec(fields: dict[str, Any], path: Path) -> Any:
    kind: Any = getattr(specs, str(fields.pop("kind")), None)
    if kind is None or not hasattr(kind, "what"):
        raise UserError(f"{path} is of another version of Subquad; install the one that wrote it.")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
