"""Typed values as MessagePack and back, whatever text they hold. No I/O.

Python keeps what it could not decode as lone surrogates: in the names of files and directories, in
arguments, in the environment, and so in the text of exceptions too. MessagePack text is UTF-8,
which has no room for them. A value that holds such text is written with text and bytes as binary,
each behind a byte that says which it was; then it fits its type no more, which is how the other
side notices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

_BYTES, _TEXT = b"\0", b"\1"
# What msgspec raises for bytes that are no MessagePack or JSON of the type that is asked for: text
# that is no UTF-8 and nesting without end are not its own errors.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_encode = msgspec.msgpack.Encoder().encode


def pack(value: object) -> bytes:
    """MessagePack of a value of a type that msgspec knows."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return encode_surrogates(value)


def unpacker(kind: Any) -> Callable[[bytes | memoryview], Any]:
    """What turns the `pack` of a `kind` into one; it raises `UNREADABLE`."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def unpack(data: bytes | memoryview) -> Any:
        try:
            return decode(data)
        except msgspec.ValidationError:
            return decode_surrogates(data, kind)

    return unpack


def encode_surrogates(value: object) -> bytes:
    """`pack` of a value whose text could not be encoded as it stands."""
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    return _encode(_binary(plain))


def decode_surrogates(data: bytes | memoryview, kind: Any) -> Any:
    """The `kind` that `encode_surrogates` was given.

    Raises:
        UNREADABLE: these bytes are no `kind` so written.
    """
    return msgspec.convert(_text(msgspec.msgpack.decode(data)), kind)


def _binary(value: Any) -> Any:
    if isinstance(value, str):
        return _TEXT + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return _BYTES + value
    if isinstance(value, (list, tuple)):
        return [_binary(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_binary(k): _binary(v) for k, v in cast("dict[Any, Any]", value).items()}
    return value


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value[1:].decode("utf-8", "surrogatepass") if value[:1] == _TEXT else value[1:]
    if isinstance(value, list):  # a tuple is a key, of a map that is no value of ours
        return [_text(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_text(k): _text(v) for k, v in cast("dict[Any, Any]", value).items()}
    return value
