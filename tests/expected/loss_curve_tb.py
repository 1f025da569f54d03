"""An event file of a Keras callback."""

from __future__ import annotations

from tests.expected._expected import Expected

EXPECTED = {
    "events.out.tfevents.1585769947.cvp": Expected(
        kind="loss_tensorboard",
        rows={"steps": 17},
        how="tensorboard's EventAccumulator: 17 values of batch_loss",
    ),
}
