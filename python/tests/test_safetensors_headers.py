"""Headers as others write them: what the library safetensors takes and refuses, the package takes and refuses."""

import struct

import pytest

pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors")

import gpufile.safetensors as gs

A = '"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'


def tensor(**fields):
    """Returns a header of one tensor, with other fields."""
    fields = {"dtype": '"U8"', "shape": "[2]", "data_offsets": "[0,2]"} | fields
    return '{"a":{' + ",".join(f'"{key}":{value}' for key, value in fields.items()) + "}}"


HEADERS = {
    "metadata null": f'{{"__metadata__":null,{A}}}',
    "metadata empty": f'{{"__metadata__":{{}},{A}}}',
    "metadata twice": f'{{"__metadata__":{{"k":"1"}},"__metadata__":{{"k":"2"}},{A}}}',
    "metadata key twice": f'{{"__metadata__":{{"k":"1","k":"2"}},{A}}}',
    "metadata of numbers": f'{{"__metadata__":{{"k":1}},{A}}}',
    "metadata of null": f'{{"__metadata__":{{"k":null}},{A}}}',
    "metadata array": f'{{"__metadata__":[],{A}}}',
    "space before": f" {{{A}}}",
    "lines before": f"\n\n\t {{{A}}}",
    "space behind": f"{{{A}}}   ",
    "lines behind": f"{{{A}}}\n\t",
    "NUL behind": f"{{{A}}}\0\0",
    "byte order mark": f"\ufeff{{{A}}}",
    "form feed": f"\f{{{A}}}",
    "spaces only": "   ",
    "nothing": "",
    "array": "[]",
    "comment": f"{{/**/{A}}}",
    "comma at the end": f"{{{A},}}",
    "empty name": tensor().replace('"a"', '""'),
    "escaped name": tensor().replace('"a"', '"\\u0061"'),
    "NUL in a name": tensor().replace('"a"', '"\\u0000"'),
    "half a surrogate": tensor().replace('"a"', '"\\ud800"'),
    "unknown key": tensor(x="1"),
    "key twice": tensor().replace('"dtype"', '"dtype":"U8","dtype"'),
    "float": tensor(shape="[2.0]"),
    "exponent": tensor(shape="[2e0]"),
    "minus zero": tensor(data_offsets="[-0,2]"),
    "three offsets": tensor(data_offsets="[0,2,3]"),
    "offsets in an object": tensor(data_offsets='{"0":0,"1":2}'),
    "type in lower case": tensor(dtype='"u8"'),
    "shape null": tensor(shape="null"),
    "shape too large": tensor(shape="[99999999999999999999]"),
    "tensor null": '{"a":null}',
    "no bytes at the end": f'{{{A},"z":{{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}}}',
    "no bytes inside": f'{{{A},"z":{{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}}}',
    "no bytes beyond": f'{{{A},"z":{{"dtype":"U8","shape":[0],"data_offsets":[9,9]}}}}',
    "half a byte": tensor(dtype='"F4"', shape="[3]"),
    "four bits": tensor(dtype='"F4"', shape="[4]"),
    "scales": tensor(dtype='"F8_E8M0"'),
    "too many bytes": tensor(shape="[1]", data_offsets="[0,1]"),
    "too few bytes": tensor(shape="[3]", data_offsets="[0,3]"),
    "gap": tensor(shape="[1]", data_offsets="[1,2]"),
}


def answer(module, path):
    """Returns the names and the metadata, or None if the file is refused."""
    try:
        with module.safe_open(path, "np") as model:
            return sorted(model.keys()), model.metadata()
    except (gs.SafetensorError, safetensors.SafetensorError):
        return None


@pytest.mark.parametrize("header", HEADERS)
def test_headers_are_taken_as_by_safetensors(header, tmp_path):
    path = tmp_path / "model.safetensors"
    head = HEADERS[header].encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"xy")
    assert answer(gs, path) == answer(safetensors, path)
