"""Models of transformers with other attentions, saved in the form of that library and loaded again."""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from subquad.attention.base import Attention
from subquad.library.building import AttentionChoice
from subquad.library.exchange import KEY, swap
from subquad.utils.errors import UserError, first_line


def load_swapped(source: str, model_class: Any = None, trust_code: bool = False, **options: Any) -> Any:
    """A model of transformers that was swapped and saved by `save_pretrained` or `push_to_hub`, in evaluation mode.

    Args:
        source: a folder, or an id of the Hugging Face hub.
        model_class: a class of transformers with a `from_pretrained`, if not the one that was saved.
        trust_code: import attentions that are not Subquad's; such code runs on this machine.
        options: what `from_pretrained` takes, such as revision, dtype and device_map.

    Raises:
        UserError: if no swap is stored there, or its attentions cannot be built.

    Examples:
        >>> import tempfile, torch, transformers
        >>> from subquad import load_swapped, swap
        >>> config = transformers.BertConfig(
        ...     hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
        ... )
        >>> model = transformers.BertModel(config).eval()
        >>> swapped, folder = swap(model, "dba", d_p=8), tempfile.mkdtemp()
        >>> model.save_pretrained(folder)
        >>> tokens = torch.randint(50, (2, 20))
        >>> torch.equal(model(tokens)[0], load_swapped(folder)(tokens)[0])
        True
    """
    import transformers

    config = options.pop("config", None) or _config(source, options)
    swaps = getattr(config, KEY, None)
    if not swaps:
        raise UserError(f"No swap is stored in {source}; load it by from_pretrained of transformers, then call swap.")
    known = model_class or getattr(transformers, (config.architectures or [""])[0], None)
    if known is None:
        raise UserError(f"{source} does not name a class of transformers; pass it, as model_class.")
    chosen = [(_attention(entry, source, trust_code), entry) for entry in swaps]

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        """The model as it was before the swaps, and then the swaps."""
        known.__init__(self, config, *args, **kwargs)
        delattr(self.config, KEY)
        for attention, entry in chosen:
            parts = {name: part for name, part in self.named_modules() if type(part).__name__ == entry.get("part")}
            path, part = next(iter(parts.items()), ("", self))
            for swapped in swap(part, attention, where=entry["where"], max_len=entry["max_len"], **entry["settings"]):
                place = f"{path}.{swapped.name}".lstrip(".")
                tied = self.get_submodule(place)._tied_weights_keys
                others = {k: v for k, v in self.all_tied_weights_keys.items() if not k.startswith(f"{place}.")}
                names = {f"{place}.{again}": f"{place}.{name}" for again, name in tied.items()}
                self.all_tied_weights_keys = others | names

    loading: Any = type(known.__name__, (known,), {"__init__": build, "__module__": known.__module__})
    model, found = loading.from_pretrained(source, config=config, output_loading_info=True, **options)
    if lost := sorted(name for name in found["missing_keys"] if ".swapped." in name):
        raise UserError(f"{source} has no weights for {', '.join(lost[:3])}; load it with the versions that saved it.")
    model.__class__ = known
    return model.eval()


def _config(source: str, options: Mapping[str, Any]) -> Any:
    import transformers

    own = ("revision", "cache_dir", "token", "subfolder", "local_files_only", "force_download")
    try:
        return transformers.AutoConfig.from_pretrained(
            source, **{name: options[name] for name in own if name in options}
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{source} has no configuration of a model ({first_line(error)}).") from None


def _attention(entry: Mapping[str, Any], source: str, trust_code: bool) -> AttentionChoice:
    """The choice that a swap was given: a name of configs/attention, or a class or function "module:name"."""
    name: str = entry["attention"]
    if ":" not in name:
        return name
    module, _, owner = name.partition(":")
    if not trust_code and not module.startswith("subquad.attention."):
        raise UserError(
            f"{source} has the attention {name}, which is not Subquad's; pass trust_code=True to import it."
        )
    try:
        found: Any = importlib.import_module(module)
        for part in owner.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{source} has the attention {name}, which cannot be imported ({first_line(error)}); make its module "
            "importable."
        ) from None
    if not trust_code and not getattr(found, "__module__", "").startswith("subquad."):
        raise UserError(f"{source} has the attention {name}, which is not Subquad's; do not trust it.")
    if not callable(found):
        raise UserError(f"{source} has the attention {name}, which is no attention.")
    return found if isinstance(found, type) and issubclass(found, Attention) else partial(found)
