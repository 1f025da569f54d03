"""What the simulator knows about a cluster and a job: fitted values, intervals, assumptions.

A calibration is data (JSON, schema 1). Two calibrations of the same telemetry have the same
fingerprint, whatever the machine, the day or the order of collection.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from xtune.errors import CalibrationError
from xtune.files import write_atomically

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One number of the simulator and where it comes from.

    Attributes:
        name: Unit included where it has one: ``compute_s``.
        value: What the simulator uses.
        low: Lower end of a 95 % interval; None where none can be given.
        high: Upper end.
        unit: Unit, "" for a pure number.
        n: Source rows it was fitted on; 0 for an assumption.
        tables: Tables of the lake it was fitted on.
        fit: Goodness of fit, see ``fit_kind``; None where there is nothing to say.
        fit_kind: What ``fit`` is: ``relative spread``, ``r2``...
        assumed: Not fitted: ``why`` says what it rests on instead.
        why: How it was fitted, or why it had to be assumed.
        needs: What telemetry would fit it; "" where it is fitted, or none would.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""
    n: int = 0
    tables: tuple[str, ...] = ()
    fit: float | None = None
    fit_kind: str = ""
    assumed: bool = False
    why: str = ""
    needs: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One figure that the calibration predicts, beside what other days showed.

    Attributes:
        name: Unit included where it has one.
        predicted: By the fitted values, or by the simulator that runs on them.
        low: Lower end of the prediction's 95 % interval.
        high: Upper end.
        observed: On the held-out days.
        observed_low: Lower end of its 95 % interval; None where it needs none.
        observed_high: Upper end.
        unit: Unit, "" for a pure number.
        n: Observed rows.
        agrees: Whether the difference is within what both intervals allow.
        why: How both were found.
    """

    name: str
    predicted: float
    low: float | None
    high: float | None
    observed: float
    observed_low: float | None = None
    observed_high: float | None = None
    unit: str = ""
    n: int = 0
    agrees: bool
    why: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over observed, less one; None where nothing was observed."""
        return self.predicted / self.observed - 1.0 if self.observed else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """One layer of the job's model, as one rank holds it.

    Attributes:
        name: Of the layer.
        elements: Elements of its gradient.
        depth: 0 at the input, 1 at the head.
        ranks: Ranks that reduce it among each other; 0: as many as the calibration says. Experts
            that are spread over ranks have fewer copies than the other layers.
    """

    name: str
    elements: int
    depth: float
    ranks: int = 0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Everything a trial needs; picklable, and free of anything but plain values.

    Attributes:
        job: The job it was fitted on; "" where the telemetry does not name one.
        parameters: By name.
        buckets: Bytes of each gradient bucket of one iteration, in the order they are sent.
        layers: The model's layers from input to head.
        loss_kind: ``power`` or ``exponential``: the form of the loss curve.
        inputs: Digest of what was read from each table.
        notes: What a reader must know and no parameter says.
        span_ns: First and last instant of the telemetry, ns since the epoch; None by hand.
        held_out: The same job and fabric as later days show them, which were not fitted on; None
            where no day was held out.
        validation: What this calibration predicts of the held-out days, beside what they showed.
        response: Where a response of one's own is from; None for the stored one.
    """

    job: str
    parameters: Mapping[str, Parameter]
    buckets: tuple[int, ...]
    layers: tuple[LayerShape, ...]
    loss_kind: str = "power"
    inputs: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    span_ns: tuple[int, int] | None = None
    held_out: Calibration | None = None
    validation: tuple[Check, ...] = ()
    response: Mapping[str, Any] | None = None

    def __getitem__(self, name: str) -> float:
        """Value of a parameter by name."""
        return self.parameters[name].value

    @property
    def assumed(self) -> tuple[Parameter, ...]:
        """Parameters that rest on an assumption, not on this telemetry."""
        return tuple(p for p in self.parameters.values() if p.assumed)

    @property
    def fingerprint(self) -> str:
        """12 hex digits over fitted values and the digests of the inputs, held-out days' too."""
        content: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "job": self.job,
            "values": {name: _canonical(p.value) for name, p in sorted(self.parameters.items())},
            "buckets": self.buckets,
            "layers": [
                (layer.name, layer.elements, layer.depth, *([layer.ranks] if layer.ranks else []))
                for layer in self.layers
            ],
            "loss_kind": self.loss_kind,
            "inputs": dict(sorted(self.inputs.items())),
        }
        if self.held_out is not None:
            content["held_out"] = self.held_out.fingerprint
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def with_values(self, **values: float) -> Calibration:
        """The same with some parameters set by hand, which then count as assumed.

        They hold for the held-out days too; what was checked against those no longer counts.

        Raises:
            CalibrationError: A name is not a parameter.
        """
        parameters = dict(self.parameters)
        for name, value in values.items():
            if name not in parameters:
                raise CalibrationError(f"{name}: no such parameter", "see xtune calibrate --json")
            parameters[name] = replace(
                parameters[name], value=value, low=None, high=None, n=0, tables=(), fit=None,
                fit_kind="", assumed=True, why="set by hand", needs="",
            )  # fmt: skip
        held_out = None if self.held_out is None else self.held_out.with_values(**values)
        return replace(self, parameters=parameters, held_out=held_out, validation=())

    def to_json(self) -> dict[str, Any]:
        """JSON document, schema 1; ``from_json`` reads it back."""
        return {
            "schema": SCHEMA_VERSION,
            "fingerprint": self.fingerprint,
            "job": self.job,
            "parameters": [asdict(p) for _, p in sorted(self.parameters.items())],
            "buckets": list(self.buckets),
            "layers": [asdict(layer) for layer in self.layers],
            "loss_kind": self.loss_kind,
            "inputs": dict(self.inputs),
            "notes": list(self.notes),
            "span_ns": None if self.span_ns is None else list(self.span_ns),
            "held_out": None if self.held_out is None else self.held_out.to_json(),
            "validation": [{**asdict(check), "error": check.error} for check in self.validation],
            "response": None if self.response is None else dict(self.response),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Calibration:
        """Read ``to_json`` back.

        Raises:
            CalibrationError: Another schema, a missing part, or a content that its fingerprint
                does not match.
        """
        if not isinstance(document, Mapping):
            raise CalibrationError("it is no JSON object", "run xtune calibrate again")
        if document.get("schema") != SCHEMA_VERSION:
            raise CalibrationError(
                f"calibration of schema {document.get('schema')!r}, this version reads"
                f" {SCHEMA_VERSION}",
                "run xtune calibrate again",
            )
        try:
            span, held_out = document["span_ns"], document.get("held_out")
            checks = [dict(check) for check in document.get("validation", ())]
            parameters = {
                p["name"]: Parameter(**{**p, "tables": tuple(p["tables"])})
                for p in document["parameters"]
            }
            calibration = cls(
                job=document["job"],
                parameters=parameters,
                buckets=tuple(int(b) for b in document["buckets"]),
                layers=tuple(LayerShape(**layer) for layer in document["layers"]),
                loss_kind=document["loss_kind"],
                inputs=dict(document["inputs"]),
                notes=tuple(document["notes"]),
                span_ns=None if span is None else (int(span[0]), int(span[1])),
                held_out=None if held_out is None else cls.from_json(held_out),
                validation=tuple(
                    Check(**{k: v for k, v in check.items() if k != "error"}) for check in checks
                ),
                response=document.get("response"),
            )
            fingerprint = calibration.fingerprint
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CalibrationError(
                f"calibration is incomplete: {error}", "run xtune calibrate again"
            ) from error
        if document.get("fingerprint") != fingerprint:
            raise CalibrationError(
                "calibration was changed by hand: its fingerprint does not match",
                "run xtune calibrate again",
            )
        return calibration

    def save(self, folder: Path) -> Path:
        """Write ``<folder>/<fingerprint>.json`` atomically and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{self.fingerprint}.json"
        text = json.dumps(self.to_json(), indent=1, sort_keys=True, allow_nan=False)
        write_atomically(target, (text + "\n").encode())
        return target

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file that ``save`` wrote.

        Raises:
            CalibrationError: It cannot be read as a calibration.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CalibrationError(
                f"{path}: cannot be read as a calibration: {error}", "run xtune calibrate again"
            ) from error
        try:
            return cls.from_json(document)
        except CalibrationError as error:
            raise CalibrationError(f"{path}: {error.message}", error.hint) from error


def _canonical(value: float) -> float:
    """Twelve significant digits: sums in another order must not change a fingerprint."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, 11 - math.floor(math.log10(abs(value))))
