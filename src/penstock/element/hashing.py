"""The hashes of TensorFlow's buckets of strings.

`fingerprint64` is FarmHash's Fingerprint64 (`to_hash_bucket_fast`), `murmur64` a MurmurHash
(`to_hash_bucket`) and `sip_hash` SipHash-2-4, which has a key (`to_hash_bucket_strong`). Buckets
are stored with models, so every bit must be that of TensorFlow.
"""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F

Pair = tuple[int, int]


def fingerprint64(text: bytes) -> int:
    """The hash of a string, in [0, 2**64)."""
    if len(text) <= 16:
        return _hash_to_16(text)
    if len(text) <= 32:
        return _hash_to_32(text)
    return _hash_to_64(text) if len(text) <= 64 else _hash_long(text)


def _fetch(text: bytes, at: int) -> int:
    return int.from_bytes(text[at : at + 8], "little")


def _rotate(value: int, shift: int) -> int:
    value &= _MASK
    return ((value >> shift) | (value << (64 - shift))) & _MASK


def _shift_mix(value: int) -> int:
    value &= _MASK
    return value ^ (value >> 47)


def _join(first: int, second: int, multiplier: int) -> int:
    mixed = _shift_mix((first ^ second) * multiplier)
    return (_shift_mix((second ^ mixed) * multiplier) * multiplier) & _MASK


def _hash_to_16(text: bytes) -> int:
    size = len(text)
    multiplier = (_K2 + size * 2) & _MASK
    if size >= 8:
        first, last = (_fetch(text, 0) + _K2) & _MASK, _fetch(text, size - 8)
        left = (_rotate(last, 37) * multiplier + first) & _MASK
        return _join(left, ((_rotate(first, 25) + last) * multiplier) & _MASK, multiplier)
    if size >= 4:
        first, last = (int.from_bytes(text[at : at + 4], "little") for at in (0, size - 4))
        return _join((size + (first << 3)) & _MASK, last, multiplier)
    if size:
        low = text[0] + (text[size >> 1] << 8)
        high = size + (text[-1] << 2)
        return (_shift_mix((low * _K2) & _MASK ^ (high * _K0) & _MASK) * _K2) & _MASK
    return _K2


def _hash_ends(text: bytes, factor: int) -> tuple[int, int, int, int]:
    """The multiplier of a text, a mix of its first bytes, and two of its first and last bytes."""
    size = len(text)
    multiplier = (_K2 + size * 2) & _MASK
    first, second = _fetch(text, 0) * factor & _MASK, _fetch(text, 8)
    third = _fetch(text, size - 8) * multiplier & _MASK
    fourth = _fetch(text, size - 16) * _K2 & _MASK
    left = (_rotate(first + second, 43) + _rotate(third, 30) + fourth) & _MASK
    right = (first + _rotate(second + _K2, 18) + third) & _MASK
    return multiplier, first, left, right


def _hash_to_32(text: bytes) -> int:
    multiplier, _, left, right = _hash_ends(text, _K1)
    return _join(left, right, multiplier)


def _hash_to_64(text: bytes) -> int:
    size = len(text)
    multiplier, a, y, right = _hash_ends(text, _K2)
    z = _join(y, right, multiplier)
    e, f = _fetch(text, 16) * multiplier & _MASK, _fetch(text, 24)
    g = (y + _fetch(text, size - 32)) * multiplier & _MASK
    h = (z + _fetch(text, size - 24)) * multiplier & _MASK
    return _join(
        (_rotate(e + f, 43) + _rotate(g, 30) + h) & _MASK,
        (e + _rotate(f + a, 18) + g) & _MASK,
        multiplier,
    )


def _hash_weakly(text: bytes, at: int, a: int, b: int) -> Pair:
    w, x, y, z = struct.unpack_from("<4Q", text, at)
    a = (a + w) & _MASK
    b = _rotate(b + a + z, 21)
    c = a
    a = (a + x + y) & _MASK
    b = (b + _rotate(a, 44)) & _MASK
    return (a + z) & _MASK, (b + c) & _MASK


def _hash_long(text: bytes) -> int:
    size, seed = len(text), 81
    y = (seed * _K1 + 113) & _MASK
    z = _shift_mix(y * _K2 + 113) * _K2 & _MASK
    x = (seed * _K2 + _fetch(text, 0)) & _MASK
    v: Pair = (0, 0)
    w: Pair = (0, 0)
    end = (size - 1) // 64 * 64
    for at in range(0, end, 64):
        x, y, z, v, w = _round(text, at, x, y, z, v, w, _K1, 1)
    multiplier = (_K1 + ((z & 0xFF) << 1)) & _MASK
    w = ((w[0] + ((size - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    x, y, z, v, w = _round(text, end + ((size - 1) & 63) - 63, x, y, z, v, w, multiplier, 9)
    left = (_join(v[0], w[0], multiplier) + _shift_mix(y) * _K0 + z) & _MASK
    return _join(left, (_join(v[1], w[1], multiplier) + x) & _MASK, multiplier)


def _round(
    text: bytes, at: int, x: int, y: int, z: int, v: Pair, w: Pair, factor: int, weight: int
) -> tuple[int, int, int, Pair, Pair]:
    """One block of 64 bytes."""
    x = _rotate(x + y + v[0] + _fetch(text, at + 8), 37) * factor & _MASK
    y = _rotate(y + v[1] + _fetch(text, at + 48), 42) * factor & _MASK
    x ^= w[1] * weight & _MASK
    y = (y + v[0] * weight + _fetch(text, at + 40)) & _MASK
    z = _rotate(z + w[0], 33) * factor & _MASK
    v = _hash_weakly(text, at, v[1] * factor & _MASK, (x + w[0]) & _MASK)
    w = _hash_weakly(text, at + 32, (z + w[1]) & _MASK, (y + _fetch(text, at + 16)) & _MASK)
    return z, y, x, v, w


_MURMUR_SEED, _MURMUR_FACTOR = 0xDECAFCAFFE, 0xC6A4A7935BD1E995


def murmur64(text: bytes) -> int:
    """The hash of a string, in [0, 2**64), by MurmurHash64A with TensorFlow's seed."""
    hashed = (_MURMUR_SEED ^ (len(text) * _MURMUR_FACTOR)) & _MASK
    whole = len(text) // 8 * 8
    for at in range(0, whole, 8):
        block = _shift_mix(_fetch(text, at) * _MURMUR_FACTOR) * _MURMUR_FACTOR & _MASK
        hashed = (hashed ^ block) * _MURMUR_FACTOR & _MASK
    if whole < len(text):
        hashed = (hashed ^ int.from_bytes(text[whole:], "little")) * _MURMUR_FACTOR & _MASK
    return _shift_mix(_shift_mix(hashed) * _MURMUR_FACTOR)


_SIP_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def sip_hash(text: bytes, key: Pair) -> int:
    """The hash of a string under a key of two numbers, in [0, 2**64), by SipHash-2-4."""
    a, b, c, d = (start ^ (key[index % 2] & _MASK) for index, start in enumerate(_SIP_START))
    padded = text + b"\0" * (7 - len(text) % 8) + bytes([len(text) % 256])
    for at in range(0, len(padded), 8):
        block = _fetch(padded, at)
        a, b, c, d = _sip_rounds(2, a, b, c, d ^ block)
        a ^= block
    a, b, c, d = _sip_rounds(4, a, b, c ^ 0xFF, d)
    return a ^ b ^ c ^ d


def _sip_rounds(count: int, a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    # `_rotate` rotates to the right, and SipHash is defined by rotations to the left.
    for _ in range(count):
        a, c = (a + b) & _MASK, (c + d) & _MASK
        b, d = _rotate(b, 51) ^ a, _rotate(d, 48) ^ c
        a, c = (_rotate(a, 32) + d) & _MASK, (c + b) & _MASK
        b, d = _rotate(b, 47) ^ c, _rotate(d, 43) ^ a
        c = _rotate(c, 32)
    return a, b, c, d
