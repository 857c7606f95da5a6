"""What was sealed comes back; any other bytes do not."""

from trueloop.core.sealed_json import seal, unseal


def test_only_unchanged_bytes_are_unsealed():
    content = {"a": [1, "ä"], "b": None}
    text = seal(content)
    assert unseal(text) == content
    others = (text + b" ", text.replace(b"1", b"2"), b"", b"[]", b"{}", b'{"sha256": 1}', b"[" * 100_000)
    assert [unseal(other) for other in others] == [None] * len(others)
