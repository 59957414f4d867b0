"""What the compressed batches of an Arrow file unpack to, from their headers alone: Arrow itself allocates it on trust."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _field(head: bytes, table: int, number: int) -> int:
    """Return where a field of a table of FlatBuffers lies, or 0 if the table has no such field."""
    fields = table - int.from_bytes(head[table : table + 4], "little", signed=True)
    at, size = fields + 4 + 2 * number, int.from_bytes(head[fields : fields + 2], "little")
    place = int.from_bytes(head[at : at + 2], "little") if at < fields + size else 0
    return table + place if place else 0


def _target(head: bytes, at: int) -> int:
    return at + int.from_bytes(head[at : at + 4], "little")


def _vector(head: bytes, at: int, form: str) -> list[tuple[int, ...]]:
    """Return the structs of a vector of FlatBuffers."""
    start, size = _target(head, at), struct.calcsize(form)
    count = int.from_bytes(head[start : start + 4], "little")
    return list(struct.iter_unpack(form, head[start + 4 : start + 4 + size * count]))


def _messages(source: Any) -> Iterator[Any]:
    """Yield the batches of an Arrow file, dictionaries among them, as its footer lists them (File.fbs); or of a stream."""
    import pyarrow as pa

    size = source.size()
    if source.read(6) == b"ARROW1":
        source.seek(size - 10)
        length = int.from_bytes(source.read(4), "little")
        source.seek(size - 10 - length)
        footer = source.read(length)
        listed = [_field(footer, _target(footer, 0), number) for number in (2, 3)]
        for offset, *_ in (block for at in listed if at for block in _vector(footer, at, "<qi4xq")):
            source.seek(offset)
            yield pa.ipc.read_message(source)
        return
    source.seek(0)
    yield from (one for one in pa.ipc.MessageReader.open_stream(source) if one.type in ("record batch", "dictionary"))


def unpacked_sizes(path: Path) -> Iterator[int]:
    """Yield the bytes that each batch of an Arrow file or stream is unpacked to, 0 where it is not compressed.

    Each buffer of a compressed batch begins with its own size, which Arrow allocates on trust; where the buffers lie says the
    batch's header (Message.fbs).
    """
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        for message in _messages(source):
            head, body = message.metadata.to_pybytes(), memoryview(message.body)
            batch = _target(head, _field(head, _target(head, 0), 2))
            batch = _target(head, _field(head, batch, 1)) if message.type == "dictionary" else batch
            buffers = _vector(head, _field(head, batch, 2), "<qq") if _field(head, batch, 3) else []
            sizes = (int.from_bytes(body[at : at + 8], "little", signed=True) for at, length in buffers if length)
            yield sum(max(size, 0) for size in sizes)
