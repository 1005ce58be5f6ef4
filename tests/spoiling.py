"""Ways to spoil files, and options with which a command takes a second: what hostile inputs are made of."""

import json
import shutil

import numpy as np

SHORT = ["--tokens", "8", "--batches", "2", "--keep", "probs,scores,hidden", "--out", "new"]
TRAINED = ["--arms", "standard", "--seeds", "1", "--rates", "0.001", "--steps", "2", "--search-steps", "1"]
TRAINED += ["--batch", "2", "--layers", "1", "--heads", "1", "--dim", "8", "--evaluations", "1", "--out", "trained"]


def write(path, content):
    """Bytes, text or JSON as a file."""
    path.unlink(missing_ok=True)
    if not isinstance(content, (bytes, str)):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))


def edited(path, **changes):
    """Change entries of a JSON file."""
    write(path, {**json.loads(path.read_text()), **changes})


def cut(path, share=0.5):
    data = path.read_bytes()
    write(path, data[: int(len(data) * share)])


def looped(path):
    """A link to itself in the place of a file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(path)


def folder_instead(path):
    path.unlink()
    path.mkdir()


def rearranged(path, change):
    """Change the arrays of a safetensors file, keeping what its header says beside them."""
    from headscape.storage import read_arrays, write_arrays

    arrays, said = read_arrays(path)
    arrays = {name: np.array(array) for name, array in arrays.items()}
    change(arrays)
    write_arrays(path, arrays, said)


def retold(path, change):
    """Change what the header of a batch says."""
    from headscape.storage import read_arrays, write_arrays

    arrays, said = read_arrays(path)
    info = json.loads(said["headscape"])
    write_arrays(path, arrays, {"headscape": json.dumps(change(info))})
