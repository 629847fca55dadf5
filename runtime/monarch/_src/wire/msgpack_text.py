"""Typed values as MessagePack and back, for any text. No I/O.

Python keeps undecodable bytes as lone surrogates: in names of files and directories, in arguments,
in the environment, and so in texts of exceptions too. MessagePack text is UTF-8, which cannot
represent them. A value with such text is written with text and bytes as binary, each with a prefix
byte that tells which it was. It then no longer matches its type, by which the receiver recognises
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

_BYTES, _TEXT = b"\0", b"\1"
# The errors of msgspec for bytes that are not MessagePack or JSON of the expected type. Text that
# is not UTF-8 and excessive nesting raise errors of Python.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_encode = msgspec.msgpack.Encoder().encode


def pack(value: object) -> bytes:
    """MessagePack of a value of a type that msgspec knows."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return encode_surrogates(value)


def unpacker(kind: Any) -> Callable[[bytes | memoryview], Any]:
    """A function that decodes the `pack` of a `kind`; it raises `UNREADABLE`."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def unpack(data: bytes | memoryview) -> Any:
        try:
            return decode(data)
        except msgspec.ValidationError:
            return decode_surrogates(data, kind)

    return unpack


def encode_surrogates(value: object) -> bytes:
    """`pack` for a value whose text cannot be encoded as UTF-8."""
    plain = msgspec.to_builtins(value, builtin_types=(bytes,))
    return _encode(_binary(plain))


def decode_surrogates(data: bytes | memoryview, kind: Any) -> Any:
    """The `kind` that `encode_surrogates` has encoded.

    Raises:
        UNREADABLE: the bytes are not such a `kind`.
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
    if isinstance(value, list):  # tuples occur only as keys of maps, which we do not use
        return [_text(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_text(k): _text(v) for k, v in cast("dict[Any, Any]", value).items()}
    return value
