"""Workers of torch's DataLoader, which read with gpufile."""

import importlib
import pathlib

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import gpufile
from gpufile.safetensors import safe_open
from gpufile.safetensors.torch import save_file


class Rows(torch.utils.data.Dataset):
    """The rows of a matrix in a file, and those of a tensor in a model."""

    def __init__(self, folder, rows):
        self.folder, self.rows = folder, rows
        # A worker that was forked has both from its parent.
        self.open()

    def open(self):
        self.file = gpufile.File(self.folder / "rows.bin")
        self.model = safe_open(self.folder / "rows.safetensors", "pt")

    def __getstate__(self):
        return self.folder, self.rows

    def __setstate__(self, state):
        self.folder, self.rows = state
        self.open()

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        short, long = torch.empty(100), torch.empty(100)
        self.file.read_into(short, row * 400)
        self.file.read_into_async(long, row * 400).result()
        return short, long, self.model.get_slice("rows")[row], self.model.get_tensor("rows")[row]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_read(tmp_path, method, monkeypatch):
    # A worker that is spawned imports this module by its name.
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent)
    rows_of = importlib.import_module(pathlib.Path(__file__).stem).Rows
    rows = np.random.default_rng(1).random((64, 100), np.float32)
    (tmp_path / "rows.bin").write_bytes(rows.tobytes())
    save_file({"rows": torch.from_numpy(rows)}, tmp_path / "rows.safetensors")
    dataset = rows_of(tmp_path, 64)
    if torch.cuda.is_available():
        # A forked worker cannot use CUDA then.
        torch.zeros(1, device="cuda")
    # The engine of the parent has begun its threads.
    assert torch.equal(dataset[5][0], torch.from_numpy(rows)[5])
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=2, multiprocessing_context=method, timeout=120)
    for _ in range(2):
        batches = list(loader)
        for read in zip(*batches):
            assert np.array_equal(torch.cat(read).numpy(), rows)
