"""Train the bundled Vision Transformer `vit-fmnist` on Fashion-MNIST.

    apt-get install dataset-fashion-mnist
    python scripts/train_vit_fmnist.py --out src/headscape/data/vit-fmnist

Writes config.json, model.safetensors (fp16), preprocessor_config.json and train_log.json. The training set is split
55,000 / 5,000; the epoch count is fixed beforehand, the last weights are kept, and the test set is touched once, at the
end, with the fp16 weights that are stored.
"""

import argparse
import gzip
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

LABELS = ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
MEAN, STD = 0.2860, 0.3530  # of the training pixels, scaled to [0, 1]


def read_idx(path: Path) -> np.ndarray:
    """Read one gzipped IDX file of unsigned bytes, the format of the MNIST family."""
    with gzip.open(path) as file:
        raw = file.read()
    n_axes = raw[3]
    shape = np.frombuffer(raw, ">u4", n_axes, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def prepare(images: np.ndarray) -> torch.Tensor:
    """Scale grey bytes (n, 28, 28) to the model's input (n, 1, 28, 28)."""
    return (torch.from_numpy(images.astype(np.float32) / 255.0)[:, None] - MEAN) / STD


def augment(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Flip half of the images and shift every image by up to one pixel."""
    flip = torch.rand(len(x), generator=generator) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(-1), x)
    padded = F.pad(x, (1, 1, 1, 1), value=-MEAN / STD)
    dy, dx = torch.randint(0, 3, (2, len(x)), generator=generator)
    rows = dy[:, None] + torch.arange(28)
    cols = dx[:, None] + torch.arange(28)
    return padded[torch.arange(len(x))[:, None, None], 0, rows[:, :, None], cols[:, None, :]][:, None]


@torch.no_grad()
def evaluate(model: ViTForImageClassification, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Mean cross-entropy and accuracy."""
    model.eval()
    logits = torch.cat([model(pixel_values=chunk).logits for chunk in x.split(500)])
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    x = prepare(read_idx(args.data / "train-images-idx3-ubyte.gz"))
    y = torch.from_numpy(read_idx(args.data / "train-labels-idx1-ubyte.gz").astype(np.int64))
    order = torch.randperm(len(x), generator=generator)
    train, valid = order[5000:], order[:5000]

    config = ViTConfig(
        image_size=28,
        patch_size=4,
        num_channels=1,
        hidden_size=96,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=288,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(LABELS)),
        label2id={name: i for i, name in enumerate(LABELS)},
    )
    model = ViTForImageClassification(config)
    batch, peak = 128, 1.5e-3
    steps = args.epochs * (len(train) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.05, betas=(0.9, 0.98))
    warmup = steps // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warmup, 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    log: dict = {
        "seed": args.seed,
        "epochs": args.epochs,
        "batch": batch,
        "peak_lr": peak,
        "train": len(train),
        "valid": len(valid),
        "history": [],
    }
    start = time.time()
    for epoch in range(args.epochs):
        model.train()
        total, seen = 0.0, 0
        for index in train[torch.randperm(len(train), generator=generator)].split(batch):
            if len(index) < batch:
                continue
            loss = F.cross_entropy(
                model(pixel_values=augment(x[index], generator)).logits, y[index], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total, seen = total + loss.item() * batch, seen + batch
        valid_loss, valid_accuracy = evaluate(model, x[valid], y[valid])
        row = {
            "epoch": epoch + 1,
            "train_loss": round(total / seen, 4),
            "valid_loss": round(valid_loss, 4),
            "valid_accuracy": round(valid_accuracy, 4),
            "minutes": round((time.time() - start) / 60, 1),
        }
        log["history"].append(row)
        print(row, flush=True)

    args.out.mkdir(parents=True, exist_ok=True)
    state = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    model.load_state_dict({name: value.float() for name, value in state.items()})
    test_x = prepare(read_idx(args.data / "t10k-images-idx3-ubyte.gz"))
    test_y = torch.from_numpy(read_idx(args.data / "t10k-labels-idx1-ubyte.gz").astype(np.int64))
    test_loss, test_accuracy = evaluate(model, test_x, test_y)
    log |= {"test_loss": round(test_loss, 4), "test_accuracy": round(test_accuracy, 4)}
    print(log["test_loss"], log["test_accuracy"])
    save_file(state, args.out / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = ["ViTForImageClassification"]
    (args.out / "config.json").write_text(model.config.to_json_string())
    (args.out / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "headscape",
                "size": {"height": 28, "width": 28},
                "num_channels": 1,
                "do_resize": False,
                "rescale_factor": 1 / 255,
                "image_mean": [MEAN],
                "image_std": [STD],
            },
            indent=1,
        )
    )
    (args.out / "train_log.json").write_text(json.dumps(log, indent=1))


if __name__ == "__main__":
    main()
