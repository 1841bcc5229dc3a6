"""A record of a dump: one call, or one saved value. It is decoded when it is looked at."""

from __future__ import annotations

from typing import Any

import msgspec

from probe.common.dump.naming import ParsedName, parse
from probe.common.dump.reading import fast_path, flattening
from probe.common.dump.reading.items import DEBUG, INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, Item
from probe.common.dump.sketch_file import SketchTable
from probe.common.errors import DumpFormatError

__all__ = ["DEBUG", "INPUT", "OUTPUT", "PARAMETERS", "PARAMETERS_GRAD", "Item", "Record"]


class Record:
    """One call, or one saved value; its items are made when they are asked for."""

    __slots__ = ("_content", "_path", "_sketches", "name")

    def __init__(
        self,
        name: str,
        content: msgspec.Raw | dict[str, Any],
        path: str,
        sketches: SketchTable | None = None,
    ) -> None:
        self.name = name
        self._content: msgspec.Raw | dict[str, Any] | None = content
        self._path = path
        self._sketches = sketches

    def __repr__(self) -> str:
        return f"Record({self.name!r})"

    @property
    def fields(self) -> Any:
        """The record as it stands in the file.

        Raises:
            DumpFormatError: the record is damaged.
        """
        if self._content is None:
            raise DumpFormatError(f"{self._path}: record {self.name} was released; read the dump again.")
        if not isinstance(self._content, msgspec.Raw):
            return self._content
        try:
            return msgspec.json.decode(self._content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DumpFormatError(f"{self._path}: record {self.name} is damaged: {error}.") from None

    @property
    def parsed(self) -> ParsedName | None:
        """Base, number and direction; ``None`` for a saved value and for a name of no known form."""
        return parse(self.name)

    @property
    def content(self) -> bytes | None:
        """The record as it stands in the file; ``None`` in a journal, which holds it in another form."""
        return bytes(self._content) if isinstance(self._content, msgspec.Raw) else None

    @property
    def may_be_nonfinite(self) -> bool:
        """True if a NaN or an infinity may be among its numbers, without decoding it."""
        if not isinstance(self._content, msgspec.Raw):
            return self._content is not None
        content = bytes(self._content)
        return b"NaN" in content or b"Infinity" in content or b'"Nonfinite"' in content

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments that a primitive was made with, as far as the dump has them.

        Raises:
            DumpFormatError: the record is damaged.
        """
        found = self.fields.get("attributes") if isinstance(self.fields, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def waited_after(self) -> str | None:
        """The record that had begun last when the result of this asynchronous call was waited for.

        ``None`` where no other one had begun, where it was not waited for at all, and of any other call.

        Raises:
            DumpFormatError: the record is damaged.
        """
        # Few calls have it, and to look for its name takes less time than to decode them.
        if isinstance(self._content, msgspec.Raw) and b'"waited_after"' not in bytes(self._content):
            return None
        found = self.fields.get("waited_after") if isinstance(self.fields, dict) else None
        return found if isinstance(found, str) else None

    @property
    def sketches(self) -> SketchTable | None:
        """The table of sketches that its items are looked up in; ``None`` without one."""
        return self._sketches

    def release(self) -> None:
        """Keep the name only."""
        self._content = None

    def has_same_text(self, other: Record) -> bool:
        """True if both stand in their files in the same words, so that their items are the same but for names."""
        return isinstance(self._content, msgspec.Raw) and self._content == other._content

    def items(self) -> list[Item]:
        """The items in the order of the tables: inputs, parameters, outputs, gradients of parameters.

        Raises:
            DumpFormatError: the record is damaged; the message names it and the place in it.
        """
        found = fast_path.items(self.name, self._content) if isinstance(self._content, msgspec.Raw) else None
        if found is None:
            found = flattening.flatten(self.name, self.fields)
        if self._sketches is not None:
            for item in found:
                item.table = self._sketches
        return found
