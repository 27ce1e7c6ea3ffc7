"""Prediction with a bank of BatchNorm statistics. Target: at most 1.3 times plain prediction with four domains.

ResNet-18 of width 64 and the small CNN, batches of 256 images of 32×32 pixels, three stored sets and the current one.
"""

from __future__ import annotations

import torch
from timing import Quartiles, arguments, interleave, ratio, set_threads, show, verdict

from fedspecial.core.statistics_bank import StatisticsBank
from fedspecial.core.vector import FlatModel
from fedspecial.models import build

SETS, BATCH, TARGET = 4, 256, 1.3


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    width, batch, repeats = (16, 32, 2) if args.quick else (64, BATCH, 9)
    for name, size in (("resnet18", width), ("cnn", 16)):
        model = FlatModel(build(name, input_shape=(3, 32, 32), num_classes=10, width=size).eval())
        sets = [model.buffers + 0.1 * number for number in range(SETS)]
        bank = StatisticsBank.of_vectors(model.module, model.layout, sets, temperature=0.2)
        x = torch.randn(batch, 3, 32, 32)

        def plain(model: FlatModel = model, x: torch.Tensor = x) -> None:
            model(x)

        def banked(model: FlatModel = model, x: torch.Tensor = x, bank: StatisticsBank = bank) -> None:
            with bank.active():
                model(x)

        with torch.inference_mode():
            times = interleave({"plain": plain, "bank": banked}, args.repeats or repeats, warm_up=1)
        show(f"{name}: seconds per batch", [(key, Quartiles.of(times[key].wall)) for key in times])
        found = ratio(times["bank"].cpu, times["plain"].cpu)
        show(f"{name}: bank : plain", [("processor", found)])
        verdict(f"{name}, processor,", found, TARGET)


if __name__ == "__main__":
    main()
