"""Runs zarr's own tests of a store on `GDSStore`, with memory of the host.

    python -m pytest --override-ini=asyncio_mode=auto python/tests/zarr_store.py

They need the package pytest-asyncio. Their other tests run without it, so pytest does not collect this file by itself.
"""

import asyncio
import pathlib

import pytest
from gpufile.kvikio.zarr import GDSStore
from zarr.core.buffer import Buffer, cpu
from zarr.testing.store import StoreTests


class TestGDSStore(StoreTests[GDSStore, cpu.Buffer]):
    store_cls = GDSStore
    buffer_cls = cpu.Buffer

    async def set(self, store: GDSStore, key: str, value: Buffer) -> None:
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    async def get(self, store: GDSStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes((store.root / key).read_bytes())

    @pytest.fixture
    def store_kwargs(self, tmp_path: pathlib.Path) -> dict[str, pathlib.Path]:
        return {"root": tmp_path}

    async def test_first_calls_at_once_open_the_store(self, tmp_path: pathlib.Path) -> None:
        class Slow(GDSStore):
            """Opens as newer versions of zarr do: other calls run meanwhile, and one that opens an open store fails."""

            async def _open(self) -> None:
                await asyncio.sleep(0.01)
                await super()._open()

            async def _ensure_open(self) -> None:
                await asyncio.sleep(0.01)
                self._is_open = True

        keys = [f"key{number}" for number in range(5)]
        value = self.buffer_cls.from_bytes(b"value")
        store = Slow(tmp_path)
        await asyncio.gather(*(store.set(key, value) for key in keys))
        parts = await Slow(tmp_path).get_partial_values(cpu.buffer_prototype, [(key, None) for key in keys])
        assert [part and part.to_bytes() for part in parts] == [b"value"] * 5

    def test_store_repr(self, store: GDSStore) -> None:
        assert repr(store) == f"GDSStore('file://{store.root.as_posix()}')"

    def test_store_supports_writes(self, store: GDSStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: GDSStore) -> None:
        assert store.supports_listing
