"""ibswinfo: inventory and vitals of an unmanaged switch, ``key | value`` or ``key : value``.

What it assumes: a switch begins with its name between two double rules (full output), or with the
file (``-o vitals``, ``-o status``, ``-o inventory``, which name no switch). There is no table of
fans and power supplies: the switch's temperature is a row of ``link_signal`` for port 0, the
switch's own, with fans, power and states in ``extra``. When it lies: with ``-T`` it numbers
modules, not ports; they are the same only on switches that cannot be split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xtune.collectors._base import (
    Collector,
    Context,
    Item,
    Note,
    Reject,
    RowBuffer,
    Source,
    Unknown,
)
from xtune.collectors._ib import guid, link_id
from xtune.collectors._ib_text import clip
from xtune.collectors._ib_time import content_id, fallback_time
from xtune.collectors._textlines import Line, Lines

_PAIR = re.compile(r"\s*([A-Za-z][\w#./ ()\-:]*?)\s*(\||(?<=\s):(?=\s|$))\s*(.*)")
_RULE = re.compile(r"\s*([=-])\1{9,}\s*")
_PSU = re.compile(r"psu(\d{1,4})(?:[ .](\w+))?", re.I)
_FAN = re.compile(r"fan#(\d{1,4})(?:\.speed)?", re.I)
_MODULE = re.compile(r"QSFP#(\d{1,4})(?:\.temp)?", re.I)
_UPTIME = re.compile(r"(\d{1,6})d-(\d{1,2}):(\d\d):(\d\d)")
_NUMBER = re.compile(r"-?\d{1,7}(\.\d{1,6})?")
_UNIT = re.compile(r"\s*\((C|W|rpm|sec|d-h:m:s)\)\s*$")

#: What each key is called in ``extra``; what has a unit must be a number.
_TEXT = {
    "part number": "part_number",
    "part_number": "part_number",
    "serial number": "serial_number",
    "serial": "serial_number",
    "product name": "product_name",
    "product_name": "product_name",
    "revision": "revision",
    "ports": "ports",
    "psid": "psid",
    "firmware version": "firmware_version",
    "fw_version": "firmware_version",
    "cpld": "cpld",
    "fan status": "fan_status",
    "fans": "fan_status",
    "warn threshold": "warn_threshold_c",
}
_PSU_KEYS = {
    "p/n": "part_number",
    "part_number": "part_number",
    "s/n": "serial_number",
    "serial": "serial_number",
    "dc power": "dc_power",
    "dc": "dc_power",
    "fan status": "fan_status",
    "fan": "fan_status",
    "status": "status",
    "power": "power_w",
}
_INVENTORY = (
    "part_number",
    "serial_number",
    "product_name",
    "revision",
    "ports",
    "psid",
    "firmware_version",
    "cpld",
)
#: Part numbers by ASIC (NVIDIA's product pages); the first two kinds cannot be split.
_FAMILIES = {
    "MSX60": "SwitchX",
    "MSB77": "Switch-IB",
    "MSB78": "Switch-IB 2",
    "MQM87": "Quantum",
    "MQM97": "Quantum-2",
}
_ONE_PORT_A_MODULE = ("MSX60", "MSB77", "MSB78")


class _Switch:
    """One switch of the file."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.guid: str | None = None
        self.temperature: float | None = None
        self.extra: dict[str, str] = {}
        self.modules: dict[int, float] = {}
        self.psu: str | None = None
        self.unknown: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.guid or self.extra or self.modules or self.temperature is not None)

    def take(self, key: str, value: str) -> str | None:
        """Take a pair; what is wrong with it, or ``None``. An empty value is unknown."""
        unit = _UNIT.search(key)
        plain = _UNIT.sub("", key).strip().lower()
        indented = key.startswith(" ")
        psu, fan, module = _PSU.match(plain), _FAN.fullmatch(plain), _MODULE.fullmatch(plain)
        if psu:
            self.psu = psu[1]
            name = _PSU_KEYS.get(psu[2] or "status")
            if name:
                return self._keep(f"psu{psu[1]}_{name}", value, unit)
            self.unknown.append(key.strip()[:64])
            return None
        if indented and self.psu is not None and plain in _PSU_KEYS:
            return self._keep(f"psu{self.psu}_{_PSU_KEYS[plain]}", value, unit)
        self.psu = None
        if plain == "guid":
            self.guid = guid(value)
            return None if self.guid or not value else f"{clip(value)!r} is no GUID"
        if plain in ("node_desription", "node_description"):
            self.name = value or None
            return None
        if fan:
            return self._keep(f"fan{fan[1]}_rpm", value, unit)
        if module or plain in ("temperature", "cur.temp", "max temp", "max.temp"):
            return self._degrees(plain, module, value)
        if plain == "uptime":
            return self._uptime(value)
        if plain not in _TEXT:
            self.unknown.append(key.strip()[:64])
            return None
        # Low and high threshold are two numbers in one value.
        return self._keep(_TEXT[plain], value, None)

    def _keep(self, name: str, value: str, unit: re.Match[str] | None) -> str | None:
        if not value:
            return None
        if unit and not _NUMBER.fullmatch(value):
            return f"{clip(value)!r} is no number"
        self.extra[name] = value[:256]
        return None

    def _degrees(self, plain: str, module: re.Match[str] | None, value: str) -> str | None:
        if not value:
            return None
        if not _NUMBER.fullmatch(value) or not -100 < float(value) < 300:
            return f"{clip(value)!r} is no temperature"
        if module:
            # A cage without a module, or with a copper cable, reads 0.
            if float(value) != 0:
                self.modules[int(module[1])] = float(value)
        elif plain.startswith("max"):
            self.extra["max_temperature_c"] = value
        else:
            self.temperature = float(value)
        return None

    def _uptime(self, value: str) -> str | None:
        days = _UPTIME.fullmatch(value)
        if days:
            day, hour, minute, second = map(int, days.groups())
            self.extra["uptime_s"] = str(((day * 24 + hour) * 60 + minute) * 60 + second)
        elif value.isascii() and value.isdigit():
            self.extra["uptime_s"] = value[:19]
        elif value:
            return f"{clip(value)!r} is no uptime"
        return None

    def rows(self, unknown: str, host: str | None, ts: int | None) -> dict[str, list[Any]]:
        """Rows by table."""
        link = link_id(self.guid, host, "switch", 0, unknown)
        part = self.extra.get("part_number", "")
        family = next((f for start, f in _FAMILIES.items() if part.startswith(start)), None)
        extra = {k: v for k, v in self.extra.items() if k not in _INVENTORY}
        inventory = {k: v for k, v in self.extra.items() if k in _INVENTORY}
        port = {
            "ts": ts,
            "host": None if self.guid else host,
            "device": None if self.guid else "switch",
            "port": 0,
            "node_guid": self.guid,
            "node_description": self.name,
            "link": link,
            "link_layer": "InfiniBand",
            "device_family": family,
            "extra": inventory or None,
        }
        signal = []
        if self.temperature is not None or extra:
            signal.append(
                {
                    "ts": ts,
                    "link": link,
                    "temperature": self.temperature,
                    "extra": {"sensor": "switch", **extra},
                }
            )
        for number, degrees in self.modules.items():
            is_port = self.guid is not None and part.startswith(_ONE_PORT_A_MODULE)
            about = {"sensor": "module", "module": str(number)}
            if self.guid and not is_port:
                about["node_guid"] = self.guid
            signal.append(
                {
                    "ts": ts,
                    "link": f"{self.guid}/{number}" if is_port else None,
                    "temperature": degrees,
                    "extra": about,
                }
            )
        return {"ports": [port], "link_signal": signal}


class Ibswinfo(Collector):
    """Holds one switch at a time."""

    name = "ibswinfo"
    title = "ibswinfo.sh: switch inventory, temperatures, fans, power"
    produce = "ibswinfo.sh -d lid-<lid> -T"
    gives = "switch and module temperatures; fans, power and serial numbers in extra"
    lacks = "port counters, times; the port behind a module where cages hold two ports"

    def claim(self, path: Path, head: bytes) -> float:
        """Certain of several of its keys with its separator."""
        text = head.decode("utf-8", "replace")
        found = set(
            re.findall(
                r"^(PSID|firmware version|uptime \(d-h:m:s\)|PSU\d status|temperature \(C\)"
                r"|max temp \(C\)|fan#\d+ \(rpm\)|part number|product name) +\|",
                text,
                re.M,
            )
        )
        if len(found) >= 2:
            return 0.95
        targeted = set(
            re.findall(
                r"^(uptime \(sec\)|cur\.temp \(C\)|max\.temp \(C\)|fan#\d+\.speed \(rpm\)"
                r"|psu\d\.(?:status|dc|fan|power \(W\)|serial|part_number)|fw_version|fans) +: ",
                text,
                re.M,
            )
        )
        return 0.9 if len(targeted) >= 2 else 0.0

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """Yield a row of ``ports`` and rows of ``link_signal`` a switch."""
        buffers = {name: RowBuffer(name, context) for name in ("ports", "link_signal")}
        ts = fallback_time(source, context)
        host = context.host.lower() if context.host else None
        unknown = ""
        lines = Lines(source)
        switches = 0
        for switch in self._switches(lines):
            if isinstance(switch, Reject | Unknown):
                yield switch
                continue
            if switch.guid is None and host is None and not unknown:
                unknown = content_id(source)
                yield Note("a switch without its GUID: its link is of this file alone")
            device = unknown if not switches else f"{unknown}-{switches}"
            switches += 1
            for table, rows in switch.rows(device, host, ts).items():
                for row in rows:
                    buffers[table].add(row)
                if buffers[table].full:
                    yield from buffers[table].flush()
        for buffer in buffers.values():
            yield from buffer.flush()
        yield from lines.rejects
        if not switches:
            yield Reject("file", "no switch in it", "is it ibswinfo's output?")
        elif ts is None:
            yield Note("readings without a time: ts is null (--time-from says otherwise)")

    @staticmethod
    def _switches(lines: Lines) -> Iterator[_Switch | Reject | Unknown]:
        """The switches in turn, and what is wrong between."""
        switch = _Switch(None)
        title: Line | None = None
        after_double_rule = False
        for line in lines:
            text = line.text
            rule = _RULE.fullmatch(text)
            if rule:
                if rule[1] == "=" and title is not None:
                    if switch:
                        yield switch
                    switch = _Switch(title.text.strip() or None)
                after_double_rule = rule[1] == "=" and title is None
                title = None
                switch.psu = None
                continue
            pair = _PAIR.fullmatch(text)
            if after_double_rule and not (pair and pair[2] == "|"):
                title, after_double_rule = line, False
                continue
            title, after_double_rule = None, False
            if pair:
                key = text[: text.index(pair[2], pair.end(1))].rstrip()
                if not line.whole and _NUMBER.fullmatch(pair[3].strip()):
                    yield Reject(line.place, f"the last line seems cut: {clip(text)!r}")
                    continue
                wrong = switch.take(key, pair[3].strip())
                if wrong:
                    yield Reject(line.place, f"{key.strip()}: {wrong}", "null for it")
                for name in switch.unknown:
                    yield Unknown(name)
                switch.unknown.clear()
            elif text.strip() and not re.match(r"\s*(error|warning|-E-|-W-)", text):
                yield Reject(line.place, f"neither a key nor a rule: {clip(text)!r}")
        if switch:
            yield switch


COLLECTOR = Ibswinfo()
