"""The text of token ids, by a tokenizer that lies on the disk."""

from __future__ import annotations

import os
from collections.abc import Sequence

from probe.common.errors import FileCheckException, MissingDependency
from probe.rollout.output.text import Decode

_FILE = "tokenizer.json"


def decoder(path: str) -> Decode:
    """A function that gives the text of ids.

    Args:
        path: ``tokenizer.json``, or the folder of a model that has it.

    Raises:
        MissingDependency: the package tokenizers is not installed.
        FileCheckException: there is no such file, or it is damaged.
    """
    try:
        import tokenizers
    except ImportError:
        raise MissingDependency("--tokenizer needs the package tokenizers: pip install tokenizers.") from None
    file = os.path.join(path, _FILE) if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise FileCheckException(f"--tokenizer: {file} does not exist; give {_FILE} or the folder that has it.")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(file)
    except Exception as error:
        # The package raises Exception itself.
        raise FileCheckException(f"--tokenizer: {file}: {str(error).splitlines()[0]}.") from None

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return decode
